"""Is the gradient a re-weighting of the cells' own gradients, and by which rule?

Words and symbols: B_c is the gradient of cell c (one microbatch on one rank) alone, normalised by its own weight n_c;
the reference is Σ w_c B_c with w_c = n_c / N. A step that weights otherwise has Σ v_c B_c: v are its effective weights.
Up to a million parameters v comes from least squares on the matrix B, above from the Gram matrix BᵀB and Bᵀg, one
tensor at a time. Residuals are always formed element by element, as a Gram matrix alone would lose half the digits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from samestep.experiments.audit.running.vectors import Array, Vectors

DENSE = 1_000_000
"""Numbers of a gradient up to which the whole basis is held in memory."""
FITS = 1e-8
"""Greatest relative residual of a fit."""
SAME_WEIGHT = 1e-6
"""Relative difference up to which two weights are the same."""
CONDITION = 1e-13
"""Smallest eigenvalue of the Gram matrix, relative to the greatest, with which weights are told apart."""


class Span:
    """The gradients of the cells as columns; a cell without samples has none, its weight is always 0."""

    def __init__(self, columns: Sequence[Vectors | None]) -> None:
        self.cells = len(columns)
        self.used = [i for i, column in enumerate(columns) if column is not None]
        self._columns = [column for column in columns if column is not None]
        self.gram = np.zeros((len(self.used), len(self.used)))
        for matrix, _ in self.slices(None):
            self.gram += matrix.T @ matrix
        lengths = np.sqrt(np.diag(self.gram))
        self.scale = np.where(lengths > 0, lengths, 1.0)
        cosines = np.linalg.eigvalsh(self.gram / np.outer(self.scale, self.scale)) if self.used else np.zeros(1)
        self.unique = bool(cosines[0] > CONDITION * cosines[-1])

    def slices(self, vector: Vectors | None) -> Iterator[tuple[Array, Array]]:
        """Tensor by tensor: the columns' numbers as a matrix, and the vector's; what is missing is zero."""
        everything = [*self._columns, *([vector] if vector else [])]
        for name in dict.fromkeys(name for each in everything for name in each):
            size = next(each.size(name) for each in everything if name in each)
            matrix = np.zeros((size, len(self._columns)))
            for i, column in enumerate(self._columns):
                if name in column:
                    matrix[:, i] = column[name].ravel()
            yield matrix, vector[name].ravel() if vector and name in vector else np.zeros(size)

    def length(self, weights: Array) -> float:
        """‖Bv‖."""
        chosen = weights[self.used]
        return float(np.sqrt(max(float(chosen @ self.gram @ chosen), 0.0)))

    def against(self, vector: Vectors) -> "Against":
        """This span with a vector to be explained."""
        return Against(self, vector)


class Against:
    """How well weights of the cells explain one vector g. Weights are given and returned for all cells."""

    def __init__(self, span: Span, vector: Vectors) -> None:
        self.span, self.vector = span, vector
        self._projected = np.zeros(len(span.used))
        self._square = 0.0
        for matrix, part in span.slices(vector):
            self._projected += matrix.T @ part
            self._square += float(part @ part)

    def fit(self) -> tuple[Array, float]:
        """The weights that come closest, and the relative residual."""
        span, weights = self.span, np.zeros(self.span.cells)
        if self.vector.numel <= DENSE and span.used:
            matrices, parts = zip(*span.slices(self.vector), strict=True)
            normal, target, least = np.concatenate(matrices) / span.scale, np.concatenate(parts), CONDITION
        else:
            normal, target, least = span.gram / np.outer(span.scale, span.scale), self._projected / span.scale, 1e-14
        if span.used:
            weights[span.used] = np.linalg.lstsq(normal, target, rcond=least)[0] / span.scale
        return weights, self.residual(weights)

    def residual(self, weights: Array) -> float:
        """‖g - Bv‖ / ‖g‖. Far from a fit the Gram matrix says enough; near one, every element is looked at."""
        if not self._square:
            return float(bool(np.any(weights)))
        chosen = weights[self.span.used]
        missed = self._square - 2 * float(chosen @ self._projected) + float(chosen @ self.span.gram @ chosen)
        if missed > 1e-10 * self._square:
            return float(np.sqrt(missed / self._square))
        missed = sum(float(np.sum((part - matrix @ chosen) ** 2)) for matrix, part in self.span.slices(self.vector))
        return float(np.sqrt(missed / self._square))

    def multiple(self, weights: Array) -> tuple[float, float]:
        """The factor x with which x·Bv comes closest, and the relative residual."""
        chosen = weights[self.span.used]
        square = float(chosen @ self.span.gram @ chosen)
        factor = float(chosen @ self._projected) / square if square else 0.0
        return factor, self.residual(factor * weights)


@dataclass(frozen=True)
class Reweighting:
    """A rule that explains the gradient: its name, the effective weights, and a constant on top (1 if none).

    `cells` are those that were dropped or repeated.
    """

    pattern: str
    weights: Array
    factor: float = 1.0
    cells: tuple[int, ...] = ()


def fitting(near: float) -> float:
    """Greatest relative residual of a fit, where gradients that are proportional within `near` count as equal."""
    return max(FITS, near)


def explain(
    against: Against, right: Array, counts: Array, ranks: int, fits: float = FITS, shares: Array | None = None
) -> Reweighting | None:
    """The first rule that gives the gradient, or unnamed weights if they are unique; None if it is no re-weighting.

    right   w_c, weights of the reference
    counts  n_c, in rank order, as many cells a rank
    shares  what the weights are called in the report, where a column is no mean: weights count relative to `right`
    """
    called = right if shares is None else shares
    scale = np.divide(right, called, out=np.ones_like(right), where=called != 0)
    for pattern, weights in patterns(called, counts, ranks):
        factor, residual = against.multiple(weights * scale)
        if residual < fits and factor:
            return Reweighting(pattern, factor * weights, factor)
    weights, residual = against.fit()
    if residual < fits and against.span.unique:
        return _named_by_ratio(weights / scale, called, max(SAME_WEIGHT, 100 * fits))
    if shares is not None:
        return None
    return _single_cells(against, right, fits)


def named(weights: Array, right: Array, counts: Array, ranks: int, close: float) -> Reweighting:
    """The rule that weights which are known already follow."""
    for pattern, wanted in patterns(right, counts, ranks):
        factor = float(weights @ wanted) / float(wanted @ wanted)
        if np.max(np.abs(weights - factor * wanted)) <= close * np.max(np.abs(weights)):
            return Reweighting(pattern, weights, factor)
    return _named_by_ratio(weights, right, close)


def distinct(rules: Iterable[tuple[str, Array]]) -> list[tuple[str, Array]]:
    """Rules by name, without those that are a multiple of an earlier one."""
    kept: list[tuple[str, Array]] = []
    for pattern, weights in rules:
        unit = weights / (np.linalg.norm(weights) or 1.0)
        if not any(abs(unit @ other / np.linalg.norm(other)) > 1 - 1e-12 for _, other in kept):
            kept.append((pattern, weights))
    return kept


def patterns(right: Array, counts: Array, ranks: int) -> Iterator[tuple[str, Array]]:
    """Rules by name. Where some weight of the reference is unknown, n_c stands for it up to a constant."""
    table, present = right.reshape(ranks, -1), (counts > 0).reshape(ranks, -1)
    of_rank = table.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        replica = np.nan_to_num(table / of_rank) / ranks
        within = of_rank * present / np.maximum(present.sum(axis=1, keepdims=True), 1)
        alone = present / np.maximum(present.sum(axis=1, keepdims=True), 1) / ranks
    yield "replica_equal", replica.ravel()
    yield "microbatch_equal", (present / present.size).ravel()
    yield "microbatch_equal", alone.ravel()
    yield "microbatch_equal", within.ravel()
    if counts.sum() and not np.allclose(right, counts / counts.sum(), rtol=1e-6):
        yield "sample_share", counts / counts.sum()
    if ranks > 1 and table.shape[1] > 1:
        yield "reduced_repeatedly", (table * float(ranks) ** np.arange(table.shape[1])[::-1]).ravel()


def _named_by_ratio(weights: Array, right: Array, close: float) -> Reweighting:
    """Compare cell by cell with the reference's weights: dropped (0) and repeated (2, 3, …) ones have a name."""
    used = np.flatnonzero(right)
    ratios = weights[used] / right[used]
    dropped = [int(cell) for cell, ratio in zip(used, ratios, strict=True) if abs(ratio) < close]
    kept = ratios[np.abs(ratios) >= close]
    if not len(kept):
        return Reweighting("dropped_microbatch", weights, 0.0, tuple(dropped))
    least = float(np.min(np.abs(kept))) * float(np.sign(kept[0]))
    if not dropped and not _usual(least, weights, right, close):
        return Reweighting("unknown", weights)
    times = kept / least
    often = np.unique(np.round(times))
    if np.all(np.abs(times - np.round(times)) < close) and len(often) <= 2 and often[-1] <= max(8, len(right)):
        repeated = [int(cell) for cell, ratio in zip(used, ratios, strict=True) if ratio / least > 1.5]
        if dropped:
            return Reweighting("dropped_microbatch", weights, least, tuple(dropped))
        if repeated:
            return Reweighting("duplicated_samples", weights, least, tuple(repeated))
    return Reweighting("unknown", weights)


def _usual(least: float, weights: Array, right: Array, close: float) -> bool:
    """The cells that count least are right, or all together make a mean: then it is the others that count too often."""
    return abs(abs(least) - 1) < close or abs(float(weights.sum() / right.sum()) - 1) < close


def _single_cells(against: Against, right: Array, fits: float) -> Reweighting | None:
    """Too few parameters to solve for the weights: try what is left when cells are dropped or one is repeated."""
    used = [int(cell) for cell in np.flatnonzero(right)]
    for many in range(1, len(used)):
        for cells in combinations(used, many):
            weights = right.copy()
            weights[list(cells)] = 0.0
            for factor in (1.0, 1.0 / float(weights.sum() / right.sum())):
                if against.residual(factor * weights) < fits:
                    return Reweighting("dropped_microbatch", factor * weights, factor, cells)
        if many >= 2 and len(used) > 8:
            break
    for cell in used:
        for times in (2, 3):
            weights = right.copy()
            weights[cell] *= times
            if against.residual(weights) < fits:
                return Reweighting("duplicated_samples", weights, 1.0, (cell,))
    return None
