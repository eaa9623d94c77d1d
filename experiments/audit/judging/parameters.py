"""Parameter by parameter: which gradients are right, which are a multiple, which neither."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from samestep.experiments.audit.judging.compare import greatest, noise
from samestep.experiments.audit.running.vectors import Vectors


@dataclass(frozen=True)
class ParameterRow:
    """`status`: same, scaled (by `ratio`), different, zero (the reference's gradient is zero or None), not finite."""

    name: str
    status: str
    ratio: float | None
    max_abs_difference: float
    norm: float
    reference_norm: float


def table(reference: Vectors, found: Vectors, allowed: float, near: float) -> tuple[ParameterRow, ...]:
    """A row for every parameter with a gradient in either. `near`: relative residual of a tensor that is a multiple."""
    silent = set(noise(reference))
    rows = []
    for name in dict.fromkeys([*reference, *found]):
        expected = reference[name] if name in reference else np.zeros_like(found[name])
        got = found[name] if name in found else np.zeros_like(expected)
        apart = greatest(expected, got)
        square = float(np.vdot(expected, expected))
        ratio = float(np.vdot(expected, got)) / square if square and np.isfinite(got).all() else None
        status = "different"
        if not np.isfinite(got).all():
            status = "not finite"
        elif name in silent or not square:
            status, ratio = ("zero" if apart <= allowed else "different"), None
        elif apart <= allowed:
            status = "same"
        elif ratio is not None and float(np.linalg.norm(got - ratio * expected)) <= near * np.sqrt(square):
            status = "scaled"
        norm = float(np.linalg.norm(got)) if isfinite(apart) else float("nan")
        rows.append(ParameterRow(name, status, ratio, apart, norm, float(np.sqrt(square))))
    return tuple(rows)


def common_factor(reference: Vectors, found: Vectors) -> tuple[float, float]:
    """k = ⟨g, g*⟩ / ⟨g*, g*⟩ and the relative residual ‖g - k g*‖ / ‖g‖ over all parameters."""
    square, inner = reference.dot(reference), found.dot(reference)
    factor = inner / square if square else 0.0
    missed = total = 0.0
    for name in dict.fromkeys([*reference, *found]):
        got = found[name] if name in found else np.zeros_like(reference[name])
        expected = reference[name] if name in reference else np.zeros_like(got)
        missed += float(np.sum((got - factor * expected) ** 2))
        total += float(np.sum(got**2))
    return factor, float(np.sqrt(missed / total)) if total else float(factor != 0.0)


def residual(reference: Vectors, found: Vectors) -> float:
    """‖g - g*‖ / ‖g*‖."""
    missed = 0.0
    for name in dict.fromkeys([*reference, *found]):
        got = found[name] if name in found else np.zeros_like(reference[name])
        expected = reference[name] if name in reference else np.zeros_like(got)
        missed += float(np.sum((got - expected) ** 2))
    return float(np.sqrt(missed)) / reference.norm if reference.norm else float(missed > 0)
