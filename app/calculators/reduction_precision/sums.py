"""Quotients and sums of numbers of one format that stay in it: what is rounded, and after which operation."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from samestep.app.mathematics.float_formats import FloatFormat

Order = Literal["rounded_once", "sequential", "tree"]
ORDERS: tuple[Order, ...] = ("rounded_once", "sequential", "tree")


@dataclass(frozen=True)
class Quotients:
    """Values after a division in a format: how many that were not 0 became 0, and whether any became an inexact
    subnormal number (which is IEEE 754's underflow; 0 is one)."""

    values: list[float]
    vanished: int
    underflow: bool


def divided(values: Sequence[float], divisor: Fraction, form: FloatFormat) -> Quotients:
    """Every value over the divisor, each rounded once."""
    counts = Counter(values)
    quotients = {value: value for value in counts if not math.isfinite(value)}
    vanished, underflow = 0, False
    for value in counts.keys() - quotients.keys():
        quotient = Fraction(value) / divisor
        quotients[value] = rounded = form.nearest(quotient)
        vanished += counts[value] * (rounded == 0 != value)
        underflow |= abs(rounded) < form.smallest_normal and rounded != quotient
    return Quotients([quotients[value] for value in values], vanished, underflow)


def exact_sum(values: Sequence[float]) -> Fraction | float:
    """The sum without rounding; non-finite as float64 has it."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    return sum((Fraction(value) * count for value, count in Counter(values).items()), Fraction(0))


def added(values: Sequence[float], order: Order, form: FloatFormat) -> float:
    """The sum in the format.

    `rounded_once` is the exact sum, rounded: an accumulator wide enough. `sequential` rounds after every addition, rank
    after rank, as a ring does; `tree` adds neighbours in pairs, then pairs of pairs (the last one waits if odd).
    """
    if order == "rounded_once":
        total = exact_sum(values)
        return form.nearest(total) if isinstance(total, Fraction) else total
    if order == "sequential":
        running = values[0]
        for value in values[1:]:
            running = form.rounded(running + value)
        return running
    level = list(values)
    while len(level) > 1:
        pairs = [form.rounded(one + other) for one, other in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


@dataclass(frozen=True)
class Norms:
    """The 2-norm of values of a format: squares, sum and root rounded after every operation in it (`plain`), the same
    in float32, and `divided_first` by the largest value, in the format again."""

    largest_square: float
    plain: float
    in_float32: float
    divided_first: float


def norms(values: Sequence[float], form: FloatFormat, single: FloatFormat) -> Norms:
    """`single` is float32; for float64 values it must round them first."""
    largest = max(map(abs, values))
    ratios = divided([abs(value) for value in values], Fraction(largest), form).values if 0 < largest < math.inf else []
    return Norms(
        largest_square=form.rounded(largest * largest),
        plain=_root_of_squares(values, form),
        in_float32=_root_of_squares([single.rounded(value) for value in values], single),
        divided_first=form.rounded(largest * _root_of_squares(ratios, form)) if ratios else largest,
    )


def _root_of_squares(values: Sequence[float], form: FloatFormat) -> float:
    squares = {value: form.rounded(value * value) for value in set(values)}
    return form.rounded(math.sqrt(added([squares[value] for value in values], "sequential", form)))
