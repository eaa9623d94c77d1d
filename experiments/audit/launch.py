"""Start the ranks of an audit, and say in the reader's terms why they ended early.

Every rank has a log (the reader's prints go there). Messages that the reader gets name the rank, what it was doing, and
the reader's own lines. This module does not import torch.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.experiments.audit.failure import Failure
from samestep.experiments.audit.job import Job
from samestep.experiments.ranks import parent
from samestep.experiments.ranks.parent import Frame, Limits, Message, Program, Rank, RunFailedError, StuckError

STARTING = 300.0
"""Seconds in which the first rank has to say something: importing torch is slow on a busy machine."""

_NOT_THEIRS = (f'  File "{Path(__file__).parents[1]}{os.sep}', '  File "<frozen runpy>"', "Extension modules:")
"""Lines in the log of a crashed rank that say nothing about the reader's code."""


class LaunchError(RuntimeError):
    """A launch that ended early: which file was being audited, and what to say about it."""

    def __init__(self, index: int, failure: Failure) -> None:
        super().__init__(str(failure))
        self.index = index
        self.failure = failure


@dataclass
class _Work:
    """Which file a rank is at, and whether it has nothing left to do there but wait for others."""

    index: int = 0
    waits: bool = False


def launch(job: Job) -> None:
    """Run the job and return when every rank is done; raises LaunchError."""
    (job.folder / "rendezvous").unlink(missing_ok=True)
    works = {rank: _Work() for rank in range(job.settings.ranks)}

    def hear(rank: Rank, message: Message) -> None:
        works[rank.number] = _Work(message["file"], message["waits"])

    timeout = job.settings.timeout
    limits = Limits(silent_after=None, stuck_after=timeout, start_within=max(timeout, STARTING))
    try:
        parent.run(Program("samestep.experiments.audit.rank", job.settings.ranks), job.folder, hear, limits)
    except StuckError as error:
        raise _stuck(job, works, error) from None
    except RunFailedError as error:
        raise LaunchError(works[error.rank].index, _fallen(error.culprit)) from None


def _fallen(rank: Rank) -> Failure:
    """A mistake that the rank found in the reader's file, or how it ended and what it wrote last."""
    if rank.traceback is not None:
        return Failure(rank.complaint or "", rank.number, rank.step, rank.traceback)
    return Failure(rank.ending, rank.number, rank.step, log=_tail(rank.log))


def _tail(log: Path) -> str:
    """The last lines of what the rank wrote, without the frames of this package below the reader's."""
    lines = log.read_text(errors="replace").strip().splitlines()
    kept = [line for line in lines if not line.startswith(_NOT_THEIRS) and line.strip()]
    return "\n".join(f"    | {line}" for line in kept[-12:])


def _stuck(job: Job, works: dict[int, _Work], error: StuckError) -> LaunchError:
    """Say of every rank where it is, and name one that the others may be waiting for."""
    running = error.running
    culprit = min(running, key=lambda each: (works[each.number].waits, error.waiting[each.number]))
    where = "\n".join(
        f"    rank {each.number}: {each.step}; {_own_line(job.files[works[each.number].index], each.stack)}"
        for each in running
    )
    message = f"nothing has moved for {job.settings.timeout:g} s: the ranks wait for each other, or one is stuck"
    return LaunchError(works[culprit.number].index, Failure(message, culprit.number, culprit.step, log=where))


def _own_line(file: Path, stack: Sequence[Frame]) -> str:
    own = next((frame for frame in stack if Path(frame[0]) == file), None)
    if own is None:
        return "outside the reader's file"
    inside = "" if own is stack[0] else f", inside {stack[0][2]}()"
    return f"at {file.name}:{own[1]} in {own[2]}(){inside}"
