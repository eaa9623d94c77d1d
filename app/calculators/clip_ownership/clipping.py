"""Clipping by a p-norm: n = (Σ |g_j|^p)^(1/p), for p = inf the largest |g_j|, and with a threshold C and e

    c = 1 if n = 0, else min(1, C / (n + e)),   applied g' = c g.

Norms are taken of values divided by the largest one, so that their squares cannot leave float64. A non-finite value
makes a norm `inf`, or `nan` where there is one; such a norm has no coefficient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError

_SMALLEST_NORMAL = float(np.finfo(np.float64).smallest_normal)


@dataclass(frozen=True)
class ClippingRule:
    """p = `norm_type`, C = `max_norm`, e = `eps`."""

    norm_type: float
    max_norm: float
    eps: float

    def norms(self, values: Floats, sizes: NDArray[np.intp]) -> Floats:
        """The norm of each of the segments that `values` is made of; 0 for an empty one."""
        norms = np.zeros(len(sizes))
        filled = sizes > 0
        if not filled.any():
            return norms
        starts = (np.cumsum(sizes) - sizes)[filled]
        magnitudes = np.abs(values)
        peaks = np.maximum.reduceat(magnitudes, starts)
        if self.norm_type == math.inf:
            norms[filled] = peaks
            return norms
        # A power of two divides without rounding, so 3 and 4 give exactly 5; other p need the maximum itself.
        units = np.ldexp(1.0, np.frexp(peaks)[1] - 1) if self.norm_type in (1, 2) else peaks
        units = np.where(peaks > 0, units, 1.0)
        powers = (magnitudes / np.repeat(units, sizes[filled])) ** self.norm_type
        roots = units * np.add.reduceat(powers, starts) ** (1 / self.norm_type)
        finite = np.isfinite(peaks)
        if not np.isfinite(roots[finite]).all():
            raise InputError(
                "have a norm beyond float64", "的范数超出 float64 的范围", field="ranks", code="number_range"
            )
        norms[filled] = np.where(finite, roots, peaks)
        return norms

    def norms_of(self, *vectors: Floats) -> list[float]:
        """The norm of each vector."""
        sizes = np.array([len(vector) for vector in vectors], dtype=np.intp)
        norms: list[float] = self.norms(np.concatenate(vectors), sizes).tolist()
        return norms

    def coefficient(self, norm: float) -> float | None:
        """c; None where the norm is not finite."""
        if not math.isfinite(norm):
            return None
        whole = norm + self.eps
        if not math.isfinite(whole):
            en, zh = "makes norm + eps leave float64", "使范数 + eps 超出 float64 的范围"
            raise InputError(en, zh, field="eps", code="number_range")
        return 1.0 if norm == 0 or whole <= self.max_norm else self.max_norm / whole

    def coefficients(self, norms: Sequence[float]) -> list[float | None]:
        return [self.coefficient(norm) for norm in norms]

    def applied(self, gradient: Floats, norms: Sequence[float], which: NDArray[np.intp] | int = 0) -> Floats:
        """c·g, where element i is clipped by the norm number `which[i]`; the norms are finite."""
        coefficient, norm = (np.array(each, dtype=np.float64)[which] for each in (self.coefficients(norms), norms))
        # A coefficient below the normal range has lost digits that the product need not lose.
        by_ratio = gradient / (norm + self.eps) * self.max_norm
        return np.where(coefficient >= _SMALLEST_NORMAL, gradient * coefficient, by_ratio)
