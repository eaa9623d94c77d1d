"""How much the update rounds by itself: no smaller difference is one.

A step that computes in float64 throughout needs the usual tolerance. Where the reference itself goes through a coarser
type (`logits.float()`, autocast, a mixed-precision policy), cutting the batch changes what is rounded. How much is
measured: the reference's gradient against the sum Σ n_c/N B_c of what the cells give alone, on one process. Only a
difference as small as that type's rounding counts as such; a larger one is a term between samples.
"""

from dataclasses import dataclass

import numpy as np

from samestep.experiments.audit.judging.precision import UNITS
from samestep.experiments.audit.running.plans import Plan
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.variations import Variations
from samestep.experiments.audit.running.vectors import Array

MOST = 8.0
"""Units of the type up to which a measured difference is rounding."""
SLACK = 4.0
"""How many times as much as was measured is allowed."""
UNKNOWN = 4.0
"""Units that are allowed where it cannot be measured."""


@dataclass(frozen=True)
class Noise:
    """`level`: relative to the greatest number of the gradient. `type`: the coarsest type; None: none but the "
    "audit's."""

    level: float
    type: str | None = None


def floor(reference: Trace, plan: Plan, weights: list[float], variations: Variations, atol: float) -> Noise:
    """The tolerance of this update."""
    coarsest = variations.probe.coarsest
    if coarsest is None or "gradient" not in reference.vectors or coarsest not in UNITS:
        return Noise(atol)
    unit = UNITS[coarsest]
    measured = _measured(reference, plan, weights, variations)
    if measured is None or measured > MOST * unit:
        return Noise(max(atol, UNKNOWN * unit), coarsest)
    return Noise(max(atol, min(SLACK * measured, MOST * unit), unit), coarsest)


def _measured(reference: Trace, plan: Plan, weights: list[float], variations: Variations) -> float | None:
    """The greatest difference from the sum of the parts, relative to the greatest number."""
    cells = [cell for rank in plan.cells for cell in rank if cell]
    gradient, total = reference.gradient, sum(weights)
    parts = [variations.gradient(cell) for cell in cells]
    if any(part is None for part in parts) or not total:
        return None
    shares = [sum(weights[i] for i in cell) / total for cell in cells]
    worst = 0.0
    for name in gradient:
        added: Array = np.zeros(gradient.shape(name))
        for share, part in zip(shares, parts, strict=True):
            if part is not None and name in part:
                added = added + share * part[name]
        worst = max(worst, float(np.max(np.abs(gradient[name] - added), initial=0.0)))
    return worst / gradient.scale if gradient.scale else None
