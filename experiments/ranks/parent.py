"""Start the ranks of a run on this machine, watch them, and end them all as soon as one of them fails.

No launcher is needed. Every rank is `python -m MODULE FOLDER RANK SIZE PIPE PARENT` (see `child`) with a log, a session
and a pipe to this parent of its own. Over the pipe come lines of JSON:

    {}                          a sign of life
    {"failed": …, "at": …}      why the rank is about to end; a `traceback` where the mistake is not ours
    {"over": true}              it has done everything, and is about to end with code 0
    anything else               it has begun something: that is movement, and is handed on; `step` names it, and
                                `together` says that the ranks may wait for each other in it

The run ends when

    a rank ends before it is over    at once                        "was killed by SIGKILL", "ended with code 1"
    a rank gives no sign of life     after `silent_after` seconds     it is stopped, or the machine swaps
    no rank begins anything          after `stuck_after` seconds      one of them is stuck, the others wait for it
    all ranks sleep in collectives   after `idle_after` seconds       they wait for each other

The error names the rank, its step and its log. This module does not import torch.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from samestep.app.paths import IMPORTED_FROM
from samestep.experiments.ranks import PEER_GONE
from samestep.experiments.ranks.idleness import Idleness

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LAUNCHED_BY_OTHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# With DETAIL the constructor of DistributedDataParallel crashes in torch 2.13 on Gloo.
_UNSAFE = ("TORCH_DISTRIBUTED_DEBUG",)
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
COLLECTIVES = ("/torch/distributed/", "/torch/autograd/")
"""Where in torch a rank waits for others: a collective, or a backward that reduces."""
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """What `size` ranks run: the module, with a rank's own environment `variables` on top of the common ones.

    `path`: folders in front of Python's path. `homes`: each rank works in a fresh folder, its `home`, not in ours.
    `python`: the interpreter of another environment. Then `path` has to name the folder that this package can be
    imported from, and is all of Python's path that the rank gets from here.
    """

    module: str
    size: int
    variables: Callable[[int], Mapping[str, str]] = lambda rank: {}
    path: Sequence[Path] = ()
    homes: bool = False
    python: Path | None = None


@dataclass(frozen=True)
class Limits:
    """Seconds of silence of one rank (None: ranks need not speak), and of standstill of all, that end a run.

    `idle_after`: seconds in which no rank uses the processor, while all say that they are `together` and wait for each
    other inside torch (None: they may; only to be used where waiting ranks sleep, as Gloo's do).
    `start_within`: the standstill that is allowed before anything was heard, where importing takes long.
    """

    silent_after: float | None = 30.0
    stuck_after: float = 50.0
    start_within: float | None = None
    idle_after: float | None = None


class Frame(NamedTuple):
    """A line of a stack, as faulthandler writes it."""

    file: str
    line: int
    function: str


@dataclass
class Rank:
    """A rank as its parent sees it. `traceback`: the one it sent with its complaint, None where it sent none."""

    number: int
    process: "subprocess.Popen[bytes]"
    pipe: int
    log: Path
    step: str = "start"
    steps: int = 0
    together: bool = False
    over: bool = False
    complaint: str | None = None
    traceback: str | None = None
    failed_at: float = float("inf")
    last_sign: float = 0.0
    unread: bytes = field(default=b"", repr=False)

    @property
    def fallen(self) -> bool:
        """It has ended, and not because it was done: what it ran may end a process with any code."""
        return self.process.returncode is not None and not (self.process.returncode == 0 and self.over)

    @property
    def ending(self) -> str:
        """How it ended."""
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    @property
    def last_line(self) -> str:
        """Of its log; empty where there is none."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def lost_its_peer(self) -> bool:
        """It fell because another one had fallen."""
        return any(sign in (self.complaint or self.last_line) for sign in PEER_GONE)

    @property
    def stack(self) -> list[Frame]:
        """The last stack of the main thread in its log, innermost first."""
        _, _, stack = self.log.read_text(errors="replace").rpartition("(most recent call first):\n")
        found = [_FRAME.match(line) for line in stack.splitlines()]
        return [Frame(each["file"], int(each["line"]), each["function"]) for each in found if each]


Hear = Callable[[Rank, Message], None]


class RunFailedError(RuntimeError):
    """A run that ended early: which rank, at which step, why, and where its log is."""

    def __init__(self, culprit: Rank, reason: str) -> None:
        lines = culprit.log.read_text(errors="replace").strip().splitlines()[-12:]
        tail = "".join(f"\n    | {line}" for line in lines)
        super().__init__(f"rank {culprit.number} {reason} at step “{culprit.step}”; its log is {culprit.log}{tail}")
        self.culprit = culprit
        self.rank, self.step, self.log = culprit.number, culprit.step, culprit.log
        self.reason = reason


class StuckError(RunFailedError):
    """Nothing moved any more. `waiting`: of every rank that ran, whether it was waiting for others inside torch."""

    def __init__(self, running: Sequence[Rank], seconds: float) -> None:
        self.waiting = {each.number: _waits(each.stack) for each in running}
        self.running, self.seconds = running, seconds
        culprit = min(running, key=lambda each: (self.waiting[each.number], each.steps))
        super().__init__(culprit, f"is stuck: nothing has moved for {seconds:.0f} s")


def _waits(stack: Sequence[Frame], inside: tuple[str, ...] = ("/torch/",)) -> bool:
    """Inside torch, or inside a patch of ours that passes a call on to it."""
    theirs = next((frame for frame in stack if not frame.file.startswith(_OURS)), None)
    return theirs is not None and any(part in theirs.file for part in inside)


def _together(ranks: Sequence[Rank]) -> bool:
    return all(each.together and each.process.poll() is None for each in ranks)


def run(program: Program, folder: Path, hear: Hear, limits: Limits | None = None) -> None:
    """Run the program's ranks, whose logs go to `folder`, until all are over; raises RunFailedError."""
    ranks: list[Rank] = []
    try:
        for number in range(program.size):
            ranks.append(_start(program, number, folder))
        _watch(ranks, hear, limits or Limits())
    finally:
        for each in ranks:
            _end(each)


def home(folder: Path, rank: int) -> Path:
    """Where a rank works that does not work where its parent does."""
    return folder / f"home{rank}"


def _environment(program: Program) -> dict[str, str]:
    unwanted = {name for name in os.environ if name.startswith("TORCHELASTIC_")} | {*_LAUNCHED_BY_OTHERS, *_UNSAFE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    ours = () if program.python else (str(IMPORTED_FROM), os.environ.get("PYTHONPATH"))
    places = (*map(str, program.path), *ours)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    return environment


def _start(program: Program, number: int, folder: Path) -> Rank:
    log = folder / f"rank{number}.log"
    place = home(folder, number) if program.homes else None
    if place:
        place.mkdir()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    command = [str(program.python or sys.executable), "-m", program.module]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *map(str, (folder, number, program.size, writer, os.getpid()))],
            env=_environment(program) | dict(program.variables(number)), cwd=place,
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    return Rank(number, process, reader, log)


def _watch(ranks: Sequence[Rank], hear: Hear, limits: Limits) -> None:
    """Return when all are over. The clock counts only time in which this loop ran: a suspended parent blames none."""
    clock, before, moved = 0.0, time.monotonic(), 0.0
    idleness = Idleness(each.process.pid for each in ranks)
    while True:
        now = time.monotonic()
        clock, before = clock + min(now - before, 1.0), now
        running = [each for each in ranks if each.process.poll() is None]  # first, so that its last words are heard
        for each in ranks:
            if _listen(each, clock, hear):
                moved = clock
        if any(each.fallen for each in ranks):
            raise _first_to_fall(ranks, hear)
        if not running:
            return
        for each in running:
            if limits.silent_after is not None and clock - each.last_sign > limits.silent_after:
                raise RunFailedError(each, f"gave no sign of life for {limits.silent_after:.0f} s")
        allowed = limits.stuck_after if any(each.steps for each in ranks) else limits.start_within or limits.stuck_after
        if clock - moved > allowed:
            raise _stuck(running, allowed)
        if limits.idle_after is not None and idleness.lasts(limits.idle_after, clock, moved) and _together(ranks):
            asleep = _stuck(running, clock - moved)
            if all(_waits(each.stack, COLLECTIVES) for each in running):
                raise asleep
        time.sleep(0.02)


def _listen(rank: Rank, clock: float, hear: Hear) -> bool:
    """Take what the rank says; whether it moves."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(rank.pipe, 65536):
            rank.unread += chunk
            rank.last_sign = clock
    *lines, rank.unread = rank.unread.split(b"\n")
    messages = [message for message in map(json.loads, lines) if message]
    for message in messages:
        if "failed" in message:
            rank.complaint, rank.traceback = message["failed"], message.get("traceback")
            rank.failed_at = message["at"]
        elif "over" in message:
            rank.over = True
        else:
            rank.steps += 1
            rank.step = message.get("step", rank.step)
            rank.together = message.get("together", False)
            hear(rank, message)
    return bool(messages)


def _first_to_fall(ranks: Sequence[Rank], hear: Hear) -> RunFailedError:
    """The others fall a moment later, because their peer is gone."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until and any(each.process.poll() is None for each in ranks):
        time.sleep(0.02)
    for each in ranks:
        _listen(each, 0.0, hear)
    fallen = [each for each in ranks if each.fallen]
    first = min(fallen, key=lambda each: (each.lost_its_peer, each.process.returncode > 0, each.failed_at))
    spoke = first.complaint and first.process.returncode > 0
    return RunFailedError(first, f"failed ({first.complaint})" if spoke else first.ending)


def _stuck(running: Sequence[Rank], seconds: float) -> StuckError:
    """Ask every rank for its stack, to name the one that does not wait for others."""
    for each in running:
        each.process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    return StuckError(running, seconds)


def _end(rank: Rank) -> None:
    """Make sure that the rank and everything in its session is gone, stopped or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process.pid, signal.SIGKILL)
    rank.process.wait()
    os.close(rank.pipe)
