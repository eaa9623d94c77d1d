"""Is the reference's gradient the derivative of its own loss? Central differences along one direction say so.

    L(θ + h d) - L(θ - h d)
    ───────────────────────  =  ⟨g, d⟩,     d = g/‖g‖ + r/‖r‖ with r drawn at random: a tensor whose gradient is lost
             2 h                            altogether has no part in g, so it needs r.

Where the two disagree a part of the graph is cut. That may be meant: a target, a teacher or an advantage that is
detached. So by itself it decides nothing; with a collective that was given a gradient and returned none it does.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.variations import Variations
from samestep.experiments.audit.running.vectors import Array, Vectors

STEPS = (1e-5, 5e-6)
"""h, relative to the size of the parameters. Both have to agree, or the loss has a kink there."""
AGREE = 1e-4
"""Relative difference up to which two derivatives are the same."""
SEED = 7


@dataclass(frozen=True)
class SelfCheck:
    """`slope`: the difference quotient; `expected`: ⟨g, d⟩. `reason`: why neither could be had, or ""."""

    slope: float = math.nan
    expected: float = math.nan
    reason: str = ""

    @property
    def ratio(self) -> float:
        """What the gradient gives, over what the loss does."""
        return self.expected / self.slope if self.slope else math.inf

    @property
    def cut(self) -> bool:
        """The gradient is not the derivative."""
        scale = max(abs(self.slope), abs(self.expected))
        return not self.reason and abs(self.slope - self.expected) > AGREE * scale


def check(reference: Trace, variations: Variations) -> SelfCheck:
    """Compare, where the reference is one backward of one scalar in exact arithmetic."""
    if reason := _hindrance(reference, variations):
        return SelfCheck(reason=reason)
    gradient = reference.vectors.get("computed") or reference.gradient
    scale = 1.0 / (reference.loss_scale or 1.0)
    direction = _direction(gradient, reference)
    expected = scale * sum(float(np.vdot(gradient[name], direction[name])) for name in gradient if name in direction)
    size = max(1.0, reference.vectors["initial"].scale)
    slopes = []
    for relative in STEPS:
        h = relative * size
        try:
            ahead, behind = (
                sum(variations.losses({name: np.asarray(sign * h * each) for name, each in direction.items()}))
                for sign in (1.0, -1.0)
            )
        except ReaderError as error:
            return SelfCheck(reason=error.message)
        slopes.append((ahead - behind) / (2 * h))
    if not all(map(math.isfinite, slopes)) or abs(slopes[0] - slopes[1]) > AGREE / 2 * max(map(abs, slopes)):
        return SelfCheck(reason="the loss has a kink where it is")
    return SelfCheck(slopes[-1], expected)


def _hindrance(reference: Trace, variations: Variations) -> str:
    backwards = reference.events.count("backward")
    if backwards != 1 or len(reference.losses) != 1:
        return "one update of it has several backwards, or none of a single number"
    if "initial" not in reference.vectors or not reference.gradient.norm or not reference.gradient.finite:
        return "its gradient is zero or not finite"
    if variations.dtype != torch.float64:
        return "it is audited in a coarser type than float64"
    if variations.probe.drawn:
        return "it draws random numbers"
    if variations.probe.coarser:
        return "it computes in a coarser type than float64"
    return ""


def _direction(gradient: Vectors, reference: Trace) -> dict[str, Array]:
    """Of the parameters that were stepped."""
    chance = np.random.default_rng(SEED)
    initial = reference.vectors["initial"]
    names = [name for name in initial if not reference.owned or name in reference.owned]
    noise = {name: chance.normal(size=initial[name].shape) for name in names}
    length = math.sqrt(sum(float(np.vdot(each, each)) for each in noise.values())) or 1.0
    norm = gradient.norm
    return {name: noise[name] / length + (gradient[name] / norm if name in gradient else 0.0) for name in names}
