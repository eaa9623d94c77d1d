"""With which factor does every backward arrive in the gradient that was stepped with? Least squares on sketches.

    goal ≈ Σ_j c_j · column_j   (+ x · the gradient of the step before, where it was not cleared)

First one factor c for all; where that does not explain the goal as well as factors of their own do, those. Where most
tensors follow one set of factors and some do not, the fit is that of the majority, and the others are named.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samestep.experiments.watch.records import Array

SINGULAR = {False: 1e-6, True: 3e-3}
"""Relative size of a singular value, by low precision, below which two columns cannot be told apart."""
EXPLAINED = {False: 1e-4, True: 1e-2}
"""Greatest relative residual of a goal that counts as explained, by low precision."""
ROUNDS = 60


@dataclass(frozen=True)
class Off:
    """A tensor that does not follow the others: the factors that explain it alone, and how well they do."""

    name: str
    factors: tuple[float, ...]
    residual: float


@dataclass(frozen=True)
class Fit:
    """`kind` one: the same factor for every backward. `errors`: bounds of each factor from the residual.

    `determined[j]`: whether column j can be told from the others. `leak`: the factor of the step before; None: none.
    `residual_all`: before tensors were taken out as `off`.
    """

    kind: str
    factors: Array
    errors: Array
    determined: NDArray[np.bool_]
    residual: float
    residual_one: float
    one_factor: float
    residual_all: float
    leak: float | None = None
    off: tuple[Off, ...] = ()


def fit(columns: Array, goal: Array, names: tuple[str, ...], low_precision: bool, before: Array | None = None) -> Fit:
    """columns [T, W, C], goal [T, W]; `before`: [T, W], what the step before was made with, where it may be left."""
    tensors, width, count = columns.shape
    matrix, wanted = columns.reshape(-1, count), goal.ravel()
    leak = None
    if before is not None:
        leak = _leak(matrix, wanted, before.ravel(), low_precision)
        if leak is not None:
            wanted = wanted - leak * before.ravel()
    length = float(np.linalg.norm(wanted))
    one = _one(matrix, wanted)
    found = _free(matrix, wanted, low_precision)
    off: tuple[Off, ...] = ()
    everything = found.residual
    if found.residual > EXPLAINED[low_precision] and tensors > 1 and count:
        keep = _majority(columns, wanted.reshape(tensors, width), low_precision)
        if keep is not None:
            off = tuple(
                _alone(names[i], columns[i], wanted.reshape(tensors, width)[i], low_precision)
                for i in np.flatnonzero(~keep)
            )
            rows = np.repeat(keep, width)
            found, one = _free(matrix[rows], wanted[rows], low_precision), _one(matrix[rows], wanted[rows])
            length = float(np.linalg.norm(wanted[rows]))
    if count and _suffices(one, found, length, low_precision):
        errors = np.full(count, one[1] * length / max(one[2], 1e-300))
        return Fit(
            "one", np.full(count, one[0]), errors, found.determined, one[1], one[1], one[0], everything, leak, off
        )
    return Fit(
        "free", found.factors, found.errors, found.determined, found.residual, one[1], one[0], everything, leak, off
    )


@dataclass(frozen=True)
class _Free:
    factors: Array
    errors: Array
    determined: NDArray[np.bool_]
    residual: float


def _free(matrix: Array, wanted: Array, low_precision: bool) -> _Free:
    """A factor for each column, the smallest ones where several would do."""
    count = matrix.shape[1]
    length = float(np.linalg.norm(wanted))
    scale = np.linalg.norm(matrix, axis=0)
    used = np.flatnonzero(scale > 1e-12 * scale.max(initial=0.0))
    factors, errors, determined = np.zeros(count), np.zeros(count), scale > 0
    if not len(used):
        return _Free(factors, errors, determined, float(length > 0))
    unit = matrix[:, used] / scale[used]
    left, sizes, right = np.linalg.svd(unit, full_matrices=False)
    kept = sizes > SINGULAR[low_precision] * sizes[0]
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    solution = right.T @ ((left.T @ wanted) / sizes)
    away = float(np.linalg.norm(unit @ solution - wanted))
    factors[used] = solution / scale[used]
    errors[used] = away * np.sqrt(np.sum((right.T / sizes) ** 2, axis=1)) / scale[used]
    determined[used] = 1 - np.sum(right**2, axis=0) < 1e-3
    return _Free(factors, errors, determined, away / length if length else float(away > 0))


def _one(matrix: Array, wanted: Array) -> tuple[float, float, float]:
    """The common factor, its relative residual, and the length of the sum of the columns."""
    together = matrix.sum(axis=1)
    square, length = float(together @ together), float(np.linalg.norm(wanted))
    factor = float(together @ wanted) / square if square else 0.0
    away = float(np.linalg.norm(factor * together - wanted))
    return factor, away / length if length else float(away > 0), square**0.5


def _suffices(one: tuple[float, float, float], free: _Free, length: float, low_precision: bool) -> bool:
    """One factor explains the goal, and no column asks for another one by more than its error."""
    if one[1] > EXPLAINED[low_precision]:
        return False
    if low_precision:
        return True
    apart = np.abs(free.factors - one[0])
    allowed = np.maximum(10 * free.errors, 1e-4 * abs(one[0]))
    return bool(np.all((apart <= allowed) | ~free.determined))


def _leak(matrix: Array, wanted: Array, before: Array, low_precision: bool) -> float | None:
    """The factor of what was there before, if the goal cannot do without."""
    if not np.any(before):
        return None
    without = _free(matrix, wanted, low_precision)
    if without.residual <= EXPLAINED[low_precision]:
        return None
    more = _free(np.column_stack([matrix, before]), wanted, low_precision)
    return float(more.factors[-1]) if more.residual < 0.5 * without.residual else None


def _majority(columns: Array, wanted: Array, low_precision: bool) -> NDArray[np.bool_] | None:
    """Which tensors follow one set of factors, by weights that lose those who do not; None if that explains little."""
    tensors, _, count = columns.shape
    sizes = np.linalg.norm(wanted, axis=1)
    sizes = np.maximum(sizes, np.linalg.norm(columns, axis=(1, 2)))
    sizes = np.maximum(sizes, 1e-12 * sizes.max(initial=0.0))
    weights = np.ones(tensors)
    for _ in range(ROUNDS):
        rows = (columns * weights[:, None, None]).reshape(-1, count)
        factors = np.linalg.lstsq(rows, (wanted * weights[:, None]).ravel(), rcond=1e-10)[0]
        away = np.linalg.norm(columns @ factors - wanted, axis=1) / np.maximum(sizes, 1e-300)
        weights = 1 / (np.maximum(sizes, 1e-300) * np.maximum(away, 1e-7))
        weights /= weights.max()
    keep = away < EXPLAINED[low_precision]
    if not keep.any() or keep.all():
        return None
    rows = columns[keep].reshape(-1, count)
    return keep if _free(rows, wanted[keep].ravel(), low_precision).residual <= EXPLAINED[low_precision] else None


def _alone(name: str, columns: Array, wanted: Array, low_precision: bool) -> Off:
    found = _free(columns, wanted, low_precision)
    return Off(name, tuple(float(factor) for factor in found.factors), found.residual)
