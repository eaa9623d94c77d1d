"""The loss scales of all ranks, how they are written, and how a dynamic scale moves.

The rule is that of `torch.amp.GradScaler` (documentation; defaults of torch 2.13): on a skip S·0.5 and the growth
tracker 0; on a step the tracker goes up by one, and where it then equals the growth interval, S·2 and the tracker 0. A
tracker that is already past the interval therefore never grows the scale. A static scale has no such rule: neither
scale nor tracker changes. Not modelled: the float32 in which GradScaler keeps its scale.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import numbers
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import positive

Flags = NDArray[np.bool_]

GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5


Scales = Annotated[tuple[Fraction, ...], numbers(positive, most=MAX_RANKS, exclusiveMinimum=0)]
"""One for all ranks, or one each."""


@dataclass(frozen=True)
class LossScaler:
    """Applied on each rank by the flag that it follows."""

    tracker: int
    interval: int
    static: bool

    def update(self, scale: Floats, flags: Flags) -> tuple[list[float], list[int]]:
        """The next scale and growth tracker of every rank; InputError where float64 cannot hold a scale."""
        if self.static:
            return scale.tolist(), [self.tracker] * len(scale)
        grown = self.tracker + 1 == self.interval
        after = scale * np.where(flags, BACKOFF_FACTOR, GROWTH_FACTOR if grown else 1.0)
        if not np.isfinite(after).all() or (after == 0).any():
            en, zh = "would grow or back off out of float64", "增长或回退后超出 float64 的范围"
            raise InputError(en, zh, field="scale", code="number_range")
        stepped = 0 if grown else self.tracker + 1
        return after.tolist(), np.where(flags, 0, stepped).tolist()
