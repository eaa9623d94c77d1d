"""A training run in windows, and the clocks that a scheduler may be driven by.

Words and symbols: a rank reads M = `batches` microbatches an epoch for E = `epochs`, K of them a window. An attempt,
a = 1, 2, …, is the end of a window, where `optimizer.step()` is called. An epoch has A attempts; m(a) is what a rank
has read after attempt a:

    tail update, drop   m(a) = ⌊(a-1)/A⌋·M + min(((a-1) mod A + 1)·K, M),   A = ⌈M/K⌉ or ⌊M/K⌋
    tail carry          m(a) = a·K, of ⌊M·E/K⌋ attempts in all

s(a) is a less the skipped attempts up to a: the updates. A clock is a function c of the attempt that never falls, so
that the first attempt at which it reaches a number is found by bisection, in as many steps as the run's length has
bits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

ClockName = Literal[
    "per_update",
    "per_attempt",
    "per_microbatch",
    "per_update_times_processes",
    "per_microbatch_times_processes",
    "per_epoch",
    "per_token",
]
Tail = Literal["update", "drop", "carry"]


@dataclass(frozen=True)
class Run:
    """The windows of one run; `skipped` are the attempts without a step, ascending."""

    batches: int
    window: int
    epochs: int
    tail: Tail
    skipped: tuple[int, ...]

    @property
    def microsteps(self) -> int:
        return self.batches * self.epochs

    @property
    def attempts(self) -> int:
        if self.tail == "carry":
            return self.microsteps // self.window
        return self._in_an_epoch * self.epochs

    @property
    def _in_an_epoch(self) -> int:
        return self.batches // self.window if self.tail == "drop" else -(-self.batches // self.window)

    def updates(self, attempt: int) -> int:
        """s(a)."""
        return attempt - bisect_right(self.skipped, attempt)

    def read(self, attempt: int) -> int:
        """m(a), 0 before the first attempt."""
        if attempt == 0:
            return 0
        if self.tail == "carry":
            return attempt * self.window
        epoch, place = divmod(attempt - 1, self._in_an_epoch)
        return epoch * self.batches + min((place + 1) * self.window, self.batches)


@dataclass(frozen=True)
class Clock:
    """`at` is c; `final` what the scheduler stands at when the run has ended; `ticks` how often it moves in one full
    window, None where that is no whole number."""

    at: Callable[[int], Fraction]
    final: Fraction
    ticks: int | None

    def reaches(self, count: int, run: Run) -> int | None:
        """The first attempt with c ≥ count, 0 for before the first; None where the run ends earlier."""
        found = bisect_left(range(run.attempts + 1), Fraction(count), key=self.at)
        return None if found > run.attempts else found

    def when_updates_reach(self, count: int, run: Run) -> Fraction | None:
        """c at the first attempt with s ≥ count; None where the run ends earlier."""
        found = bisect_left(range(run.attempts + 1), count, key=run.updates)
        return None if found > run.attempts else self.at(found)


def clocks(run: Run, processes: int) -> dict[ClockName, Clock]:
    """Every clock of a run on that many processes, the right one first."""

    def driven(
        count: Callable[[int], int], ticks: int | None, *, by: Fraction = _ONE, whole_run: bool = False
    ) -> Clock:
        last = run.microsteps if whole_run else count(run.attempts)
        return Clock(lambda attempt: count(attempt) * by, last * by, ticks)

    window, together = run.window, Fraction(processes)
    return {
        "per_update": driven(run.updates, 1),
        "per_attempt": driven(int, 1),
        "per_microbatch": driven(run.read, window, whole_run=True),
        "per_update_times_processes": driven(run.updates, processes, by=together),
        "per_microbatch_times_processes": driven(run.read, processes * window, by=together, whole_run=True),
        "per_epoch": driven(lambda attempt: run.read(attempt) // run.batches, None),
        "per_token": driven(run.read, 1, by=Fraction(1, window)),
    }


_ONE = Fraction(1)
