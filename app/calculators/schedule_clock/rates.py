"""The learning rate of a schedule with a linear warm-up, as a function of what its scheduler has counted.

Words and symbols: x is the count, W = `warmup`, T = `total`, ρ = `min_ratio`. The rate is `base_lr` times

    x/W                                     while x < W
    ρ + (1 - ρ)·h                           from there on
    linear     h = max(0, (T - x)/max(1, T - W))
    cosine     h = (1 + cos π·progress)/2,  progress = (x - W)/max(1, T - W)
    constant   h = 1

as in transformers' `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` (ρ = 0 there), whose cosine
rises again beyond T; `hold` keeps progress at 1. The cosine is taken of the exact progress, less whole turns, so that
it is as good at 10^15 counts as at ten; where it is rational (Niven's theorem) so is the rate.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Shape = Literal["linear", "cosine", "constant"]
Beyond = Literal["formula", "hold"]

_HALF = Fraction(1, 2)
_RATIONAL_COSINES = {
    Fraction(0): Fraction(1),
    Fraction(1, 3): _HALF,
    _HALF: Fraction(0),
    Fraction(2, 3): -_HALF,
    Fraction(1): Fraction(-1),
}
"""cos πr of the r between 0 and 1 for which it is rational."""


@dataclass(frozen=True)
class Rate:
    """A rate, exactly where it is rational."""

    value: float
    exact: Fraction | None

    def over(self, other: "Rate") -> float | None:
        """The ratio to another rate, infinite where float64 ends; None where that one is 0."""
        if other.value == 0:
            return None
        exact = Fraction(self.value if self.exact is None else self.exact)
        try:
            return float(exact / (Fraction(other.value) if other.exact is None else other.exact))
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class Schedule:
    """The fields of the module's docstring."""

    shape: Shape
    warmup: int
    total: int
    base_lr: Fraction
    min_ratio: Fraction
    beyond: Beyond

    def rate(self, count: Fraction) -> Rate:
        """The rate that the optimizer steps with after `count` steps of the scheduler."""
        if count < self.warmup:
            return _rational(self.base_lr * count / self.warmup)
        height = self._height(count)
        if isinstance(height, Fraction):
            return _rational(self.base_lr * (self.min_ratio + (1 - self.min_ratio) * height))
        ratio = float(self.min_ratio) + float(1 - self.min_ratio) * height
        return Rate(float(self.base_lr) * ratio, None)

    def _height(self, count: Fraction) -> Fraction | float:
        """h: how much of the way from the floor to the full rate is left."""
        length = max(1, self.total - self.warmup)
        if self.shape == "constant":
            return Fraction(1)
        if self.shape == "linear":
            return max(Fraction(0), (self.total - count) / length)
        progress = (count - self.warmup) / length
        turn = (min(progress, Fraction(1)) if self.beyond == "hold" else progress) % 2
        angle = min(turn, 2 - turn)
        if angle in _RATIONAL_COSINES:
            return (1 + _RATIONAL_COSINES[angle]) / 2
        return math.cos(math.pi * float(angle) / 2) ** 2


def _rational(value: Fraction) -> Rate:
    return Rate(float(value), value)
