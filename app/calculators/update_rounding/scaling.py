"""Scales of an 8-bit format, and what they keep of the largest magnitudes.

Words and symbols: rank r has seen the largest magnitude a_rk (`amax`) in microstep k. A scale is L/a/2^margin, L the
largest number of the format, a one of

    max_over_all         the maximum over ranks and microsteps        the right one: nothing saturates, all ranks agree
    last_microbatch      the maximum over ranks in the last microstep
    own_maximum          each rank's own, over its microsteps
    own_last_microbatch  each rank's own, in its last microstep

which is what delayed scaling takes over its history (TransformerEngine's DelayedScaling; there over the ranks too, with
`reduce_amax`). A value is kept as round(min(a·scale, L))/scale. Up to MAX_EXACT_CELLS cells in exact fractions.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from samestep.app.contract.arrays import Floats
from samestep.app.mathematics.float_formats import FloatFormat

ScaleName = Literal["max_over_all", "last_microbatch", "own_maximum", "own_last_microbatch"]
Amax = list[list[Fraction]]


def chosen_amax(amax: Amax) -> dict[ScaleName, list[Fraction]]:
    """The magnitude that each scheme takes on each rank."""
    last, own = [row[-1] for row in amax], [max(row) for row in amax]
    return {
        "max_over_all": [max(own)] * len(amax),
        "last_microbatch": [max(last)] * len(amax),
        "own_maximum": own,
        "own_last_microbatch": last,
    }


@dataclass(frozen=True)
class Kept:
    """What is left of each cell, exactly where there are few, and how many saturate."""

    values: list[list[float]]
    exact: list[list[Fraction]] | None
    saturated: int


def kept_exactly(amax: Amax, scales: list[Fraction], form: FloatFormat) -> Kept:
    """Every cell by itself."""
    largest = Fraction(form.largest)
    exact = [
        [Fraction(form.nearest(min(cell * scale, largest))) / scale for cell in row]
        for row, scale in zip(amax, scales, strict=True)
    ]
    saturated = sum(cell * scale > largest for row, scale in zip(amax, scales, strict=True) for cell in row)
    return Kept([[_as_float(cell) for cell in row] for row in exact], exact, saturated)


def _as_float(value: Fraction) -> float:
    """Infinite beyond float64."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def kept_in_bulk(amax: Floats, scales: Floats, form: FloatFormat) -> Kept:
    """All cells at once, in float64."""
    scaled = amax * scales[:, None]
    inside = np.minimum(scaled, form.largest)
    exponent = np.maximum(np.frexp(inside)[1] - 1, form.least_exponent)
    unit = np.ldexp(1.0, exponent + 1 - form.digits)
    return Kept((np.rint(inside / unit) * unit / scales[:, None]).tolist(), None, int((scaled > form.largest).sum()))
