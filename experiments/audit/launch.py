"""Start the ranks of an audit, and say in the reader's terms why they ended early.

Every rank has a log (the reader's prints go there). Messages that the reader gets name the rank, what it was doing, and
the reader's own lines. This module does not import torch.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.experiments.audit.failure import Failure, Fault
from samestep.experiments.audit.job import Job
from samestep.experiments.audit.running.hints import hint
from samestep.experiments.audit.settings import Settings
from samestep.experiments.ranks import parent
from samestep.experiments.ranks.parent import Frame, Limits, Message, Program, Rank, RunFailedError, StuckError

IDLE = 10.0
"""Seconds without processor time after which ranks that are all inside torch wait for each other: Gloo's ranks "
"sleep."""
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
    """Which file a rank is at, whether it has nothing left to do there but wait for others, and what helps if it "
    "hangs."""

    index: int = 0
    waits: bool = False
    hint: str = ""


def launch(job: Job) -> None:
    """Run the job and return when every rank is done; raises LaunchError."""
    (job.folder / "rendezvous").unlink(missing_ok=True)
    works = {rank: _Work() for rank in range(job.common.ranks)}

    def hear(rank: Rank, message: Message) -> None:
        works[rank.number] = _Work(message["file"], message["waits"], message["hint"])

    timeout = job.common.timeout
    idle = IDLE if job.common.backend == "gloo" else None
    limits = Limits(silent_after=None, stuck_after=timeout, start_within=max(timeout, STARTING), idle_after=idle)
    try:
        parent.run(Program("samestep.experiments.audit.rank", job.common.ranks), job.folder, hear, limits)
    except StuckError as error:
        raise _stuck(job, works, error) from None
    except RunFailedError as error:
        index = works[error.rank].index
        raise LaunchError(index, _fallen(job.settings[index], error.culprit)) from None


def _fallen(settings: Settings, rank: Rank) -> Failure:
    """A mistake that the rank found in the reader's file, or how it ended and what it wrote last."""
    if rank.traceback is not None:
        message = rank.complaint or ""
        what = hint(settings, rank.step, message, rank.traceback)
        return Failure(message, rank.number, rank.step, rank.traceback, hint=what)
    log = _tail(rank.log)
    fault: Fault = "ours" if rank.complaint else "yours"  # what is the reader's comes with a traceback
    return Failure(
        rank.ending, rank.number, rank.step, log=log, fault=fault, hint=hint(settings, rank.step, rank.ending, log)
    )


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
    message = f"nothing has moved for {error.seconds:.0f} s: the ranks wait for each other, or one is stuck"
    hints = "\n".join(works[each.number].hint for each in running if works[each.number].hint)
    failure = Failure(message, culprit.number, culprit.step, log=where, fault="hang", hint=hints)
    return LaunchError(works[culprit.number].index, failure)


def _own_line(file: Path, stack: Sequence[Frame]) -> str:
    """The reader's line, and what torch does in it."""
    at = next((i for i, frame in enumerate(stack) if Path(frame.file).parent == file.parent), None)
    if at is None:
        return "outside the reader's file"
    own = stack[at]
    inside = [frame for frame in stack[:at] if "/torch/" in frame.file and frame.function not in _BETWEEN]
    called = inside[-1].function if inside else ""
    waits = f", waiting inside {_NAMES.get(called, f'{called}()')}" if called else ""
    return f"at {Path(own.file).name}:{own.line} in {own.function}(){waits}"


_BETWEEN = ("wrapper", "method", "decorate_context", "_wrapped_call_impl", "_call_impl")
"""Functions of torch that only pass a call on."""
_NAMES = {"backward": "backward(), where a wrapper reduces the gradients"}
