"""Update directions that are functions of a whole matrix: of its singular values, or of its rows and columns.

Words and symbols: G = U·diag(s)·Vᵀ is a gradient, m × n, rank by its singular values above rounding.

    polar           U·Vᵀ, the nearest matrix with orthonormal rows or columns
    newton_schulz   X₀ = G/(|G| + 1e-7), then X ← aX + (bA + cA²)X, A = XXᵀ, the smaller side first (Keller Jordan's
                    muon.py; torch 2.13's Muon divides by max(|G|, 1e-7)); both in bfloat16, here in float64
    shampoo         L^(-1/4)·G·R^(-1/4) of the first step, L = GGᵀ + d·1, R = GᵀG + d·1: U·diag(s/√(s² + d))·Vᵀ
    adafactor       g/√v of the first step, v = R·C/mean(R) with the means R of the rows and C of the columns of g²

With the 2-norms r_i of the rows, c_j of the columns and F of the whole, √v_ij = r_i·c_j/F: this is how it is computed,
since no square can then leave float64. All in float64.
"""

import numpy as np

from samestep.app.contract.arrays import Floats

_NORM_EPS = 1e-7


def norms(matrix: Floats, axis: int) -> Floats:
    """The 2-norms along an axis, kept as an axis of length one; no square overflows or vanishes on the way."""
    peak = np.abs(matrix).max(axis=axis, keepdims=True)
    unit = np.where(peak > 0, peak, 1.0)
    return np.asarray(unit * np.sqrt(np.square(matrix / unit).sum(axis=axis, keepdims=True)))


def norm(matrix: Floats) -> float:
    """The Frobenius norm."""
    return float(norms(matrix.reshape(1, -1), 1)[0, 0])


def polar(gradient: Floats) -> Floats:
    left, singular, right = _decomposed(gradient)
    return np.asarray((left * (singular > 0)) @ right)


def shampoo(gradient: Floats, damping: float) -> Floats:
    left, singular, right = _decomposed(gradient)
    scaled = np.divide(singular, np.hypot(singular, np.sqrt(damping)), out=np.zeros_like(singular), where=singular > 0)
    return np.asarray((left * scaled) @ right)


def _decomposed(gradient: Floats) -> tuple[Floats, Floats, Floats]:
    """U, s, Vᵀ; singular values that are rounding of 0 are 0."""
    peak = float(np.abs(gradient).max()) or 1.0
    left, singular, right = np.linalg.svd(gradient / peak, full_matrices=False)
    floor = singular[0] * max(gradient.shape) * np.finfo(np.float64).eps
    return left, np.where(singular > floor, singular, 0.0) * peak, right


def newton_schulz(gradient: Floats, steps: int, coefficients: tuple[float, float, float]) -> Floats:
    a, b, c = coefficients
    tall = gradient.shape[0] > gradient.shape[1]
    x = (gradient.T if tall else gradient) / (norm(gradient) + _NORM_EPS)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return np.asarray(x.T if tall else x)


def adafactor(gradient: Floats, columns: Floats | None = None, whole: float | None = None) -> Floats:
    """g/√v before its clip; `columns` and `whole` are norms of more rows than these, where they are pooled."""
    columns = norms(gradient, 0) if columns is None else columns
    whole = norm(gradient) if whole is None else whole
    rows = norms(gradient, 1)
    safe_rows, safe_columns = np.where(rows > 0, rows, 1.0), np.where(columns > 0, columns, 1.0)
    return np.asarray(gradient / safe_rows * (whole / safe_columns))


def root_mean_square(update: Floats) -> float:
    return norm(update) / float(np.sqrt(update.size))
