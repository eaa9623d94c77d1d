"""A gradient that is divided by the same number after every microstep, as if it were new.

Words and symbols: with s_k = Σ_r (n_rk/N)·g_rk, the part of microstep k = 1 … K in the right gradient, what comes out
is Σ s_k / b^(K - k): the earlier, the smaller. The base b is looked for among small whole numbers and those of the
window, and where |Σ x^(K - k)·s_k - g|² is stationary in x = 1/b, which are roots of a polynomial.
"""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from samestep.app.calculators.ratio_fingerprint.target import Target
from samestep.app.calculators.ratio_fingerprint.window_faults import Counts, Weighting
from samestep.app.contract.arrays import Floats

_MAX_ROOT_STEPS = 64
_SMALLEST_ROOT, _LARGEST_ROOT = 1e-4, 1e4
_WHOLE = 1e-4
_LISTED_BASES = 16
_FREE_BASE_ENTRIES = 3
"""A base that is no whole number has to fit this many entries."""


def rescaled(steps: Floats, window: Counts, target: Target) -> Iterator[Weighting]:
    """The bases that come near what was seen; `steps` are the parts of the microsteps, (K, d)."""
    bases = _bases(steps, window, target)
    powers = np.arange(len(steps))[::-1].tolist()
    predicted = np.array([[float(base) ** -power for power in powers] for base in bases]) @ steps
    for index in target.nearest(predicted):
        base = float(bases[index])
        yield Weighting(
            "rescaled_accumulation", gradient=predicted[index], base=base, among=len(bases), free=_is_free(base)
        )


def _is_free(base: float) -> bool:
    """Whether it is neither a whole number nor one over it."""
    return all(abs(number - round(number)) > _WHOLE for number in (base, 1 / base))


def _bases(steps: Floats, window: Counts, target: Target) -> list[Fraction | float]:
    """Small whole numbers, those of the window, one over them, and where the prediction comes nearest."""
    whole = {*range(2, _LISTED_BASES + 1), window.ranks, window.microsteps, window.ranks * window.microsteps} - {1}
    found: set[Fraction | float] = {*map(Fraction, whole), *(Fraction(1, number) for number in whole)}
    if target.gradient is not None and len(steps) <= _MAX_ROOT_STEPS:
        for root in _nearest_roots(steps, target.gradient):
            base = _rounded(1 / root)
            if isinstance(base, Fraction) or len(target.gradient) >= _FREE_BASE_ENTRIES:
                found.add(base)
    return sorted(found)


def _nearest_roots(steps: Floats, seen: Floats) -> list[float]:
    """Where |Σ x^(K-k)·s_k - seen|² is stationary in x > 0."""
    size = float(np.abs(np.vstack([steps, seen])).max())
    if not size:
        return []
    coefficients = steps[::-1] / size  # by rising power of x
    coefficients[0] -= seen / size
    square = np.zeros(2 * len(steps) - 1)
    for column in coefficients.T:
        square += np.convolve(column, column)
    derivative = np.trim_zeros((square * np.arange(len(square)))[:0:-1], "f")
    roots = np.roots(derivative) if len(derivative) > 1 else np.array([])
    real = roots.real[np.abs(roots.imag) <= _WHOLE * np.abs(roots)]
    return [float(x) for x in real if _SMALLEST_ROOT < x < _LARGEST_ROOT and abs(x - 1) > _WHOLE]


def _rounded(base: float) -> Fraction | float:
    """The whole number, or one over it, that is within rounding; else the base itself."""
    for number, inverse in ((base, False), (1 / base, True)):
        nearest = round(number)
        if nearest > 1 and abs(number - nearest) <= _WHOLE * nearest:
            return Fraction(1, nearest) if inverse else Fraction(nearest)
    return base
