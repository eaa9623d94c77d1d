"""What every cell really weighed: the weights w_rk of g = Σ w_rk·g_rk, where the cells' gradients determine them.

They do if there are no more cells with a count than entries, and the gradients are independent. A cell without a count
has the weight 0. Weights are least squares, given only where nothing of the observed gradient is left over.
"""

from fractions import Fraction

import numpy as np

from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence
from samestep.app.contract.arrays import Floats
from samestep.app.contract.numbers import fraction_text

_INDEPENDENT = 1e-8
_LEFT_OVER = 1e-6
_CLOSER_THAN_CHANCE = 1e-3
_EXACT, _LARGEST_DENOMINATOR = 1e-9, 100_000


def solved_weights(evidence: Evidence) -> Floats | None:
    """The weights, (P, K); None where they are not determined or do not explain what was seen."""
    gradients, window = evidence.units.gradients, evidence.window
    shape = (window.ranks, window.microsteps)
    if evidence.seen_gradient is None or gradients is None or len(gradients) != window.ranks * window.microsteps:
        return None
    counted = np.ones(len(gradients), dtype=bool)
    if window.counts is not None and window.counts.shape == shape:
        counted = window.counts.ravel() > 0
    seen = evidence.seen_gradient[1]
    found = _solved(gradients[counted].T, seen, max(_LEFT_OVER, 3 * evidence.rounding))
    if found is None:
        return None
    weights = np.zeros(len(gradients))
    weights[counted] = found
    return weights.reshape(shape)


def _solved(columns: Floats, seen: Floats, left_over: float) -> Floats | None:
    """x with columns·x = seen, None where that has no solution or several."""
    entries, cells = columns.shape
    sizes = np.abs(columns).max(axis=0, initial=0.0)
    peak = float(np.abs(seen).max())
    if not 0 < cells <= entries or not sizes.all():
        return None
    if not peak:
        return np.zeros(cells)
    unit = columns / sizes
    found, _, rank, _ = np.linalg.lstsq(unit, seen / peak, rcond=_INDEPENDENT)
    off = float(np.linalg.norm(unit @ found - seen / peak)) / float(np.linalg.norm(seen / peak))
    if rank < cells or off > left_over:
        return None
    weights = found / sizes * peak
    return weights if np.isfinite(weights).all() else None


def as_fractions(weights: Floats) -> list[list[str]] | None:
    """The fractions that the weights are, None unless each is nearer to one than chance would bring it."""
    found = [[_fraction(weight) for weight in row] for row in weights.tolist()]
    if any(fraction is None for row in found for fraction in row):
        return None
    return [[fraction_text(fraction) for fraction in row if fraction is not None] for row in found]


def _fraction(weight: float) -> Fraction | None:
    """The simplest fraction m/D with |weight - m/D| far below the 1/D² that some fraction always reaches."""
    limit = 10
    while limit <= _LARGEST_DENOMINATOR:
        nearest = Fraction(weight).limit_denominator(limit)
        off = abs(weight - float(nearest))
        if off <= min(_EXACT, _CLOSER_THAN_CHANCE / nearest.denominator**2):
            return nearest
        limit *= 10
    return None
