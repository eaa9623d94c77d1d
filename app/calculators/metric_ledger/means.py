"""Ways to make one number of an evaluation's batches: pooled, or a mean of what the batches or the ranks have.

An entry (a batch or a rank) without mass has no value of its own. `empty` says what becomes of a mean over such
entries: it is undefined, or they are left out, or they count as 0. The answer is undefined in any case if no entry has
mass.

Whether a mean of exponentials equals the exponential of a mean is decided on the exponents: rational numbers that are
distinct have exponentials that are linearly independent over the rationals (Lindemann and Weierstrass), so both are
equal only where all exponents are.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators.metric_ledger.batches import Batches, Level
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Numbers, divided, total

Empty = Literal["undefined", "skip", "zero"]

_SAME = 1e-12
"""Float64 numbers this near, relative to the larger, are the same; fractions are compared exactly."""


@dataclass(frozen=True)
class Outcome:
    """A number, exact or float64, or the reason why there is none. `equals_right` is set where it cannot be read from
    the value."""

    value: Any = None
    reason: Reason | None = None
    equals_right: bool | None = None


@dataclass(frozen=True, eq=False)
class Entries:
    """A value for each batch or rank, 0 where it has none; (E,)."""

    values: Numbers
    filled: NDArray[np.bool_]

    @classmethod
    def of(cls, level: Level) -> "Entries":
        return cls(divided(level.sums, level.mass), np.asarray(level.mass != 0, dtype=bool))

    def why_undefined(self, empty: Empty) -> Reason | None:
        if not self.filled.any():
            return "zero_count"
        return "empty_cell" if empty == "undefined" and not self.filled.all() else None

    def averaged(self, empty: Empty) -> Outcome:
        """The plain mean of the entries."""
        if reason := self.why_undefined(empty):
            return Outcome(reason=reason)
        number = int(np.count_nonzero(self.filled)) if empty == "skip" else len(self.filled)
        return Outcome(total(self.values) / number if self.values.dtype == object else total(self.values / number))

    def added(self, empty: Empty) -> Outcome:
        reason = self.why_undefined(empty)
        return Outcome(reason=reason) if reason else Outcome(total(self.values))


def pooled(level: Level) -> Outcome:
    """Σ sums / Σ mass."""
    mass = total(level.mass)
    return Outcome(total(level.sums) / mass) if mass else Outcome(reason="zero_count")


def of_ranks_own_batches(batches: Batches, level: Level, empty: Empty) -> Outcome:
    """Every rank averages its batches, then the ranks are averaged."""
    entries = Entries.of(level)
    if reason := entries.why_undefined(empty):
        return Outcome(reason=reason)
    number = int if batches.is_exact else float
    filled, every = (
        batches.by_rank(mask.astype(number).astype(entries.values.dtype))
        for mask in (entries.filled, np.ones_like(entries.filled))
    )
    of_ranks = divided(batches.by_rank(entries.values), filled if empty == "skip" else every)
    return Entries(of_ranks, np.asarray(filled != 0, dtype=bool)).averaged(empty)


def first(level: Level, empty: Empty) -> Outcome:
    """What the first entry has."""
    entries = Entries.of(level)
    if entries.filled.any() and not entries.filled[0] and empty != "zero":
        return Outcome(reason="empty_cell")
    return Outcome(entries.values[0]) if entries.filled.any() else Outcome(reason="zero_count")


def exponential(log: Outcome) -> Outcome:
    """exp of an outcome; `non_finite` beyond float64."""
    if log.value is None:
        return log
    try:
        return Outcome(math.exp(log.value))
    except OverflowError:
        return Outcome(reason="non_finite")


def mean_exponential(level: Level, right: Outcome, empty: Empty) -> Outcome:
    """The plain mean of the entries' exponentials."""
    entries = Entries.of(level)
    with np.errstate(over="ignore"):
        powers = np.where(entries.filled, np.exp(entries.values.astype(float)), 0.0)
    found = Entries(powers, entries.filled).averaged(empty)
    counted_as_zero = empty == "zero" and not entries.filled.all()
    return _finite(found, not counted_as_zero and _all_equal(entries, right))


def weighted_exponential(level: Level, right: Outcome) -> Outcome:
    """The mean of the entries' exponentials, weighed by mass: an entry without any weighs nothing."""
    entries, mass = Entries.of(level), total(level.mass)
    if not mass:
        return Outcome(reason="zero_count")
    with np.errstate(over="ignore"):
        powers = np.exp(entries.values[entries.filled].astype(float))
        value = total(powers * (level.mass / mass).astype(float)[entries.filled])
    return _finite(Outcome(value), _all_equal(entries, right))


def _finite(found: Outcome, equals_right: bool) -> Outcome:
    if found.value is None or math.isfinite(found.value):
        return Outcome(found.value, found.reason, equals_right)
    return Outcome(reason="non_finite")


def _all_equal(entries: Entries, right: Outcome) -> bool:
    if right.value is None:
        return False
    values = entries.values[entries.filled]
    return same(values.min(), right.value) and same(values.max(), right.value)


def same(one: Any, other: Any) -> bool:
    """Exactly for fractions, up to rounding for float64."""
    if isinstance(one, float) or isinstance(other, float):
        return bool(abs(one - other) <= _SAME * max(abs(one), abs(other)))
    return bool(one == other)
