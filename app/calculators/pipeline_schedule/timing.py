"""The order in which a stage works through the microbatches of one call, and when.

Words and symbols: S stages, n microbatches; F and B are a microbatch's forward and backward on one stage.

    gpipe   F0 … F(n-1), then B0 … B(n-1)
    1f1b    min(n, S - s) forwards on stage s, then one backward and one forward in turn, then the backwards left over

A stage keeps the activations of a microbatch from its forward to its backward: n of them at most, or min(n, S - s).
With equal times on all stages a stage is idle for (S - 1)/(n + S - 1) of the call under both schedules. The orders are
those of `ScheduleGPipe` and `Schedule1F1B` in torch 2.13, which takes 1f1b for n ≥ S only.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

ScheduleName = Literal["1f1b", "gpipe"]

BACKWARD_SLOTS = 2
"""A backward is drawn as long as two forwards."""


@dataclass(frozen=True)
class Slot:
    """One forward (`F`) or backward (`B`) of a microbatch on a stage, from `start`, in units of a forward."""

    kind: Literal["F", "B"]
    microbatch: int
    start: int
    length: int


def in_flight(schedule: ScheduleName, stages: int, microbatches: int) -> list[int]:
    """The most microbatches whose activations each stage keeps."""
    if schedule == "gpipe":
        return [microbatches] * stages
    return [min(microbatches, stages - stage) for stage in range(stages)]


def bubble(stages: int, microbatches: int) -> Fraction:
    """The share of a call for which a stage is idle."""
    return Fraction(stages - 1, microbatches + stages - 1)


def order(ahead: int, microbatches: int) -> list[tuple[Literal["F", "B"], int]]:
    """What a stage does that keeps `ahead` microbatches."""
    found: list[tuple[Literal["F", "B"], int]] = [("F", j) for j in range(ahead)]
    for j in range(microbatches):
        found.append(("B", j))
        if j + ahead < microbatches:
            found.append(("F", j + ahead))
    return found


def slots(schedule: ScheduleName, stages: int, microbatches: int) -> list[list[Slot]]:
    """Every stage's work in time: each as early as its order, the stage before and the stage after allow."""
    orders = [order(ahead, microbatches) for ahead in in_flight(schedule, stages, microbatches)]
    ends: dict[tuple[str, int, int], int] = {}
    free, done = [0] * stages, [0] * stages
    placed: list[list[Slot]] = [[] for _ in range(stages)]
    while any(len(work) < 2 * microbatches for work in placed):
        for stage, work in enumerate(orders):
            while done[stage] < len(work):
                kind, j = work[done[stage]]
                needs = (kind, stage - 1, j) if kind == "F" else (kind, stage + 1, j)
                is_end = not 0 <= needs[1] < stages
                if not is_end and needs not in ends:
                    break
                length = 1 if kind == "F" else BACKWARD_SLOTS
                start = max(free[stage], 0 if is_end else ends[needs])
                free[stage] = ends[kind, stage, j] = start + length
                placed[stage].append(Slot(kind, j, start, length))
                done[stage] += 1
    return placed
