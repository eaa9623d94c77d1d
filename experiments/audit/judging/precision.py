"""Was a gradient carried in a smaller floating-point type on its way?"""

import numpy as np
import torch

from samestep.experiments.audit.running.vectors import Array, Vectors

UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Greatest relative error of one rounding, the finest type first."""
LIKELY = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 4 * 2.0**-8}
"""Relative error of a whole gradient up to which a type is the likely one: about the geometric mean of neighbours."""
SLACK = 4.0
"""How many units the sum of a few rounded parts may be off."""
TERMS = 16.0
"""The same where each term of the gradient was rounded, not the gradient: terms may be larger than their sum."""


def is_exactly(found: Vectors, kind: str) -> bool:
    """Whether every number is one of that type: something has rounded them to it, and nothing has been added since."""
    to = getattr(torch, kind)
    return all(
        bool((tensor.to(to).double() == tensor).all())
        for tensor in map(torch.from_numpy, map(found.__getitem__, found))
    )


def carried_in(reference: Vectors, found: Vectors, residual: float, slack: float = SLACK) -> str | None:
    """The type whose rounding explains so small a difference; None if it is larger, or not spread as rounding is.

    slack   units of the type by which a number may be off, relative to the greatest of its tensor
    """
    likely = next((name for name, most in LIKELY.items() if 0 < residual <= most), None)
    if likely is None or not all(
        _close(reference[name], found[name], slack * UNITS[likely]) for name in found if name in reference
    ):
        return None
    return likely


def _close(expected: Array, got: Array, relative: float) -> bool:
    """No number is off by more than so much of the greatest one."""
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1e-30)
    return bool(np.max(np.abs(expected - got), initial=0.0) <= relative * scale)
