"""What a rank writes down, and how: one file a process, a pickle after the other, each there whole or cut off.

The solver reads it in another process, without torch; a process that is killed leaves what it had written.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SUFFIX, ALIVE, STACKS = ".watch", ".alive", ".stack"
"""Endings of a rank's records, of the file that it touches while something moves, and of where it is when asked."""
ASK = "ask"
"""The file with which the launcher asks."""
VARIABLE = "SAMESTEP_WATCH"
"""The environment variable that tells the processes of a run what to watch."""


@dataclass(frozen=True)
class Header:
    """First in a file: whose it is. `started`: seconds since the epoch."""

    rank: int
    world_size: int
    pid: int
    started: float
    script: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Loss:
    """The tokens of one loss in one backward; see `taps.tokens.Source`.

    weights      [tokens], zero for ignored ones; None where no gradient came by
    valid        [tokens] where the targets tell which count
    importance   [tokens] class weights, where there are any; `smoothed`: their mean, where labels are smoothed
    digest       of the targets, to recognise the same data on several ranks; "" without targets
    coupled      it contrasts the rows of a batch with each other
    key          the same for a loss that is differentiated twice
    """

    kind: str
    line: str | None
    reduction: str
    shape: tuple[int, ...] | None
    classes: int | None
    weights: Array | None
    valid: NDArray[np.bool_] | None
    importance: Array | None
    smoothed: float | None
    digest: str
    coupled: bool
    key: int


@dataclass(frozen=True)
class Term:
    """A scalar of the sum that was differentiated: its factor there, and which losses of the cell are in it."""

    name: str
    line: str | None
    factor: float | None
    losses: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One backward of this rank. `contribution`: parameter → sketch. `scale`: the loss scale that it was made with.

    `discarded`: a zero_grad came before any step had used it.
    """

    number: int
    line: str | None
    losses: tuple[Loss, ...]
    terms: tuple[Term, ...]
    contribution: dict[str, Array]
    types: tuple[str, ...]
    ends: tuple[str, ...]
    scale: float | None
    discarded: bool = False


@dataclass(frozen=True)
class Gradient:
    """A gradient as the optimizer has it, or this rank's part of it. `goal`: before clipping; `stepped`: after.

    Parts of the same `copy` add up; None: the rank has a whole copy of its own.
    """

    copy: int | None
    goal: Array
    stepped: Array


@dataclass(frozen=True)
class Update:
    """What one step of an optimizer was made of, as this rank has seen it.

    number      counts this optimizer's steps from the first one that was watched
    gradients   parameter → gradient; empty for a skipped step
    missing     parameters that require a gradient and have none
    leaks       no gradient was cleared since the step before: it may still be in this one
    """

    optimizer: int
    name: str
    number: int
    line: str | None
    cells: tuple[Cell, ...]
    gradients: dict[str, Gradient]
    missing: tuple[str, ...]
    leaks: bool
    clipped: bool
    clipped_while_scaled: bool
    clipped_inside: bool
    skipped: bool
    seconds: float


@dataclass(frozen=True)
class Notice:
    """Something met on the way; codes are those of `taps.features`. `fatal`: no number would be right."""

    code: str
    where: str
    fatal: bool = False


@dataclass(frozen=True)
class Failure:
    """An exception that ended the process: its last line, and the traceback without frames of ours.

    `rank`: whose it was, where a parent tells of a child.
    """

    message: str
    traceback: str
    at: float
    rank: int | None = None


@dataclass(frozen=True)
class Fault:
    """A mistake of watch itself."""

    message: str


@dataclass(frozen=True)
class Done:
    """Nothing more is watched: what was asked for is here, or the process has come to its end (`ended`)."""

    ended: bool


Message = Header | Update | Notice | Failure | Fault | Done


@dataclass
class RankLog:
    """A file, read."""

    header: Header
    updates: list[Update] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    done: bool = False
    ended: bool = False


def read(file: Path) -> RankLog | None:
    """What a process has written so far; None before its header."""
    log: RankLog | None = None
    for message in _messages(file):
        if isinstance(message, Header):
            log = RankLog(message)
        elif log is not None:
            _sort(log, message)
    return log


def _sort(log: RankLog, message: Any) -> None:
    match message:
        case Update():
            log.updates.append(message)
        case Notice():
            log.notices.append(message)
        case Failure():
            log.failures.append(message)
        case Fault():
            log.faults.append(message)
        case Done(ended=ended):
            log.done, log.ended = True, log.ended or ended


def _messages(file: Path) -> Iterator[Any]:
    with file.open("rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except (EOFError, pickle.UnpicklingError):  # the end, or a message that was cut off
                return


def ranks(folder: Path) -> dict[int, RankLog]:
    """The newest log of every rank: an elastic launcher may have started some again."""
    found: dict[int, RankLog] = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        log = read(file)
        if log is not None and _is_better(log, found.get(log.header.rank)):
            found[log.header.rank] = log
    return dict(sorted(found.items()))


def _is_better(log: RankLog, other: RankLog | None) -> bool:
    return other is None or (bool(log.updates), log.header.started) > (bool(other.updates), other.header.started)
