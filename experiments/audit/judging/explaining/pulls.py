"""How often something was pulled towards an anchor: m = c (a - b) once; n times it is 1 - (1 - c)ⁿ in place of c."""

from collections.abc import Sequence
from math import isclose, log

import numpy as np

from samestep.experiments.audit.running.vectors import Array

CLEAR = 1e-6
"""Relative residual below which tensors are a multiple of each other."""
WHOLE = 1e-4
"""Relative difference up to which a number of times is whole."""


def pull(towards: Sequence[Array], moved: Sequence[Array]) -> float:
    """c with moved = c · towards in all tensors; 0 where there is none."""
    square = sum(float(np.vdot(each, each)) for each in towards)
    length = sum(float(np.vdot(each, each)) for each in moved) ** 0.5
    if not square or not length:
        return 0.0
    weight = sum(float(np.vdot(a, b)) for a, b in zip(towards, moved, strict=True)) / square
    missed = sum(float(np.sum((b - weight * a) ** 2)) for a, b in zip(towards, moved, strict=True)) ** 0.5
    return weight if missed <= CLEAR * length else 0.0


def times_of(once: float, often: float) -> int | None:
    """n with onceⁿ = often, both between 0 and 1; None where it is no whole number of 2 or more."""
    if not 0 < once < 1 or not 0 < often < 1:
        return None
    times = log(often) / log(once)
    whole = round(times)
    return whole if whole > 1 and isclose(times, whole, rel_tol=WHOLE) else None
