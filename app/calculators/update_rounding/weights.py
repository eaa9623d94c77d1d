"""A weight that is moved by the same update again and again, and rounded after each: in closed form.

Between two powers of two the numbers of a format are evenly spaced, so that a step that has once moved the weight by
some multiple of the spacing moves it by the same multiple until it leaves that stretch (after one step that a tie may
make different). What is left to do one by one is a few steps a stretch, of which a format has at most some hundred.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from samestep.app.mathematics.float_formats import FloatFormat


@dataclass(frozen=True)
class Moved:
    """Where a weight is after its steps, infinite where the format ends; `stopped` after how many steps it stood still,
    None where the last one still moved it."""

    after: float
    stopped: int | None


def moved(start: Fraction, update: Fraction, steps: int, form: FloatFormat) -> Moved:
    """w ← round(w + u), `steps` times; w starts at a number of the format, u is exact."""
    weight, done = start, 0
    while done < steps:
        rounded = form.nearest(weight + update)
        if not math.isfinite(rounded):
            return Moved(rounded, None)
        change = Fraction(rounded) - weight
        if not change:
            return Moved(float(weight), done)
        weight, done = weight + change, done + 1
        if form.nearest(weight + update) == weight + change:
            again = min(_steps_inside(weight, change, form), steps - done)
            weight, done = weight + again * change, done + again
    return Moved(float(weight), None)


def _steps_inside(weight: Fraction, change: Fraction, form: FloatFormat) -> int:
    """How many equal steps stay well inside the stretch of even spacing round a weight."""
    size = form.spacing(weight) * Fraction(2) ** (form.digits - 1)
    low, high = (size, 2 * size) if abs(weight) >= form.smallest_normal * 2 else (-2 * size, 2 * size)
    if weight < 0:
        low, high = -high, -low
    room = (high - weight) / change if change > 0 else (weight - low) / -change
    return max(0, math.floor(room) - 2)


@dataclass(frozen=True)
class Neighbours:
    """The numbers of a format on both sides of a value, the same one where the value is such a number."""

    lower: float
    upper: float

    def probability_of_upper(self, value: Fraction) -> Fraction:
        """With which stochastic rounding goes up: its expectation is the value."""
        lower, upper = Fraction(self.lower), Fraction(self.upper)
        return (value - lower) / (upper - lower) if upper > lower else Fraction(0)


def neighbours(value: Fraction, form: FloatFormat) -> Neighbours:
    """Both, infinite beyond the largest number of the format."""
    unit = form.spacing(value)
    lower, upper = (unit * rounding(value / unit) for rounding in (math.floor, math.ceil))
    return Neighbours(*(_in_range(number, form) for number in (lower, upper)))


def _in_range(value: Fraction, form: FloatFormat) -> float:
    if abs(value) > form.largest:
        return math.inf if value > 0 else -math.inf
    return float(value)


def accumulated(gradients: tuple[Fraction, ...], form: FloatFormat) -> float:
    """A sum that starts at 0 and is rounded after each addition; infinite from where the format ends."""
    total = Fraction(0)
    for gradient in gradients:
        rounded = form.nearest(total + gradient)
        if not math.isfinite(rounded):
            return rounded
        total = Fraction(rounded)
    return float(total)
