"""What was seen over what is right: the ratio of each kind of number, and what a factor leaves of the direction."""

import numpy as np

from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence
from samestep.app.calculators.ratio_fingerprint.results import Ratios
from samestep.app.contract.arrays import Floats


def ratios_of(evidence: Evidence) -> Ratios:
    gradient = None
    if evidence.seen_gradient is not None:
        gradient = projection(evidence.seen_gradient[1], evidence.seen_gradient[0])
    return Ratios(loss=_quotient(evidence.seen_loss), gradient_norm=_quotient(evidence.seen_norm), gradient=gradient)


def _quotient(seen: tuple[float, float] | None) -> float | None:
    return seen[1] / seen[0] if seen is not None and seen[0] else None


def projection(vector: Floats, reference: Floats) -> float | None:
    """<vector, reference> / <reference, reference>."""
    peak = float(np.abs(reference).max())
    if peak == 0:
        return None
    unit = reference / peak
    return float((vector / peak) @ unit) / float(unit @ unit)


def residual_of(evidence: Evidence, ratio: float | None) -> float | None:
    if evidence.seen_gradient is None or ratio is None:
        return None
    reference, observed = evidence.seen_gradient
    peak = float(np.abs(observed).max())
    if peak == 0:
        return 0.0
    return float(np.linalg.norm((observed - ratio * reference) / peak) / np.linalg.norm(observed / peak))
