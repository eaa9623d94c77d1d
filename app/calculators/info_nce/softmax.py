"""Softmax cross-entropy over a table of similarities, with every derivative that its owners may keep.

Row i has the vector x_i, column j the vector y_j, and

    logit_ij = s·⟨x_i, y_j⟩    (s = 1/τ)        p_i = softmax over j of logit_i
    ℓ_i = −log p_i[label_i]                     G_ij = ∂ℓ_i/∂logit_ij = p_ij − 1[j = label_i]

The table is never held whole: blocks of rows are made, used and dropped, so the memory is that of the vectors plus two
blocks. Two choices keep relative accuracy where a plain softmax loses it. Differences from the row's largest similarity
are taken before the scale is applied, so that logits of 8e6 do not round each other away; and p − 1 at the label is
summed as −Σ of the other probabilities, so that a loss of 1e-13 has a gradient with all its digits.

Arrays are float64. Results that float64 cannot hold come out as inf or nan: callers check, with warnings off.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt

from samestep.app.contract.arrays import Floats

Indices = npt.NDArray[np.intp]

BLOCK = 1 << 20
"""Logits held at one time (8 MiB, twice)."""


@dataclass(frozen=True)
class Block:
    """Some rows of the table. G = signed / total[:, None]."""

    differences: Floats
    """logit − the row's largest, [rows, columns]."""
    signed: Floats
    """exp(differences), and at the label −`others`, [rows, columns]."""
    label_difference: Floats
    label_weight: Floats
    """exp(label_difference), [rows]."""
    others: Floats
    """Σ exp(differences) over all columns but the label, [rows]."""
    total: Floats

    @classmethod
    def of(cls, similarities: Floats, labels: Indices, scale: float) -> "Block":
        """From ⟨x_i, y_j⟩, which is overwritten."""
        rows = np.arange(len(labels))
        differences = similarities
        differences -= differences.max(axis=1, keepdims=True)
        differences *= scale
        signed = np.exp(differences)
        label_weight = signed[rows, labels]
        signed[rows, labels] = 0.0
        others = signed.sum(axis=1)
        signed[rows, labels] = -others
        return cls(differences, signed, differences[rows, labels], label_weight, others, others + label_weight)

    def loss(self) -> Floats:
        """ℓ_i, with all its digits both when the label has nearly everything and when it has next to nothing."""
        usual = self.label_difference > -600.0
        return np.where(
            usual,
            np.log1p(self.others / np.where(usual, self.label_weight, 1.0)),
            np.log(self.total) - self.label_difference,
        )

    def probabilities(self, labels: Indices) -> Floats:
        """p_ij, [rows, columns]."""
        weights = self.signed.copy()
        weights[np.arange(len(labels)), labels] = self.label_weight
        return weights / self.total[:, None]

    def derivative(self) -> Floats:
        """G_ij, [rows, columns]."""
        return self.signed / self.total[:, None]


@dataclass(frozen=True)
class Sums:
    """What a table leaves behind, for N rows and M columns of D dimensions, and K weightings w_k of the rows.

    Gradients lack the factor s, and w_0 = 1.
    """

    loss: Floats
    """ℓ_i, [N]."""
    scale_gradient: Floats
    """∂ℓ_i/∂log s = Σ_j G_ij logit_ij, [N]."""
    row_gradient: Floats
    """Σ_j G_ij y_j, [N, D]."""
    column_gradient: Floats
    """Σ_i w_k[i] G_ij x_i, [K, M, D]."""
    own_gradient: Floats | None
    """Σ over the rows i of the column's own rank of G_ij x_i, [M, D]."""

    @classmethod
    def empty(cls, rows: int, columns: int, dimensions: int, weightings: int, own: bool) -> "Sums":
        """Zeros, to add to."""
        return cls(
            loss=np.zeros(rows),
            scale_gradient=np.zeros(rows),
            row_gradient=np.zeros((rows, dimensions)),
            column_gradient=np.zeros((weightings, columns, dimensions)),
            own_gradient=np.zeros((columns, dimensions)) if own else None,
        )

    def keep_rows(self, rows: slice, block: Block) -> None:
        """Note what belongs to the rows alone."""
        self.loss[rows] = block.loss()
        self.scale_gradient[rows] = np.einsum("ij,ij->i", block.signed, block.differences) / block.total


@dataclass(frozen=True)
class Ranks:
    """Which rows and which columns belong together: rank r owns the next rows[r] rows and columns[r] columns."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @cached_property
    def _edges(self) -> tuple[list[int], list[int]]:
        return list(accumulate(self.rows, initial=0)), list(accumulate(self.columns, initial=0))

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int, int, int]]:
        """The ranks that own rows first … last−1, gathered into runs of equal shape.

        Yields (ranks, first row, rows of each, first column, columns of each); a rank cut by the limits is a rank of
        the rows inside.
        """
        row_edges, column_edges = self._edges

        def shape(rank: int) -> tuple[int, int]:
            return min(row_edges[rank + 1], last) - max(row_edges[rank], first), self.columns[rank]

        inside = range(bisect_right(row_edges, first) - 1, bisect_left(row_edges, last))
        for (rows, columns), alike in groupby(inside, key=shape):
            run = list(alike)
            yield len(run), max(row_edges[run[0]], first), rows, column_edges[run[0]], columns


def gathered(
    x: Floats, y: Floats, labels: Indices, scale: float, weights: Sequence[Floats] = (), ranks: Ranks | None = None
) -> Sums:
    """Sums over the whole table: every row against every column.

    x is [N, D], y [M, D], labels [N], each of the weights (after w_0 = 1) [N]. With `ranks`, `own_gradient` too.
    """
    sums = Sums.empty(len(x), len(y), x.shape[1], 1 + len(weights), own=ranks is not None)
    step = max(1, BLOCK // len(y))
    buffer = np.empty((min(step, len(x)), len(y)))
    for first in range(0, len(x), step):
        rows = slice(first, min(first + step, len(x)))
        similarities = np.matmul(x[rows], y.T, out=buffer[: rows.stop - first])
        block = Block.of(similarities, labels[rows], scale)
        sums.keep_rows(rows, block)
        total = block.total[:, None]
        sums.row_gradient[rows] = (block.signed @ y) / total
        shares = x[rows] / total
        sums.column_gradient[0] += block.signed.T @ shares
        for k, weight in enumerate(weights, start=1):
            sums.column_gradient[k] += block.signed.T @ (shares * weight[rows, None])
        if ranks is not None and sums.own_gradient is not None:
            _add_own(sums.own_gradient, block.signed, shares, ranks, first)
    return sums


def _add_own(own: Floats, signed: Floats, shares: Floats, ranks: Ranks, first: int) -> None:
    """Add to each column what the block's rows of its own rank send."""
    row_stride, item = signed.strides
    for count, row, rows, column, columns in ranks.runs(first, first + len(signed)):
        blocks: Floats = np.ndarray(  # the run's blocks along the diagonal, transposed: no copy
            (count, columns, rows),
            buffer=signed,
            offset=(row - first) * row_stride + column * item,
            strides=(rows * row_stride + columns * item, item, row_stride),
        )
        sent = np.matmul(blocks, shares[row - first :][: count * rows].reshape(count, rows, -1))
        own[column : column + count * columns] += sent.reshape(count * columns, -1)


def local(x: Floats, y: Floats, scale: float, ranks: Ranks) -> Sums:
    """Sums where each rank's rows meet its own columns only; the label of its b-th row is its b-th column."""
    sums = Sums.empty(len(x), len(y), x.shape[1], 1, own=False)
    for count, row, rows, column, columns in ranks.runs(0, len(x)):
        step = max(1, BLOCK // (rows * columns))
        for done in range(0, count, step):
            here = min(step, count - done)
            own_rows = slice(row + done * rows, row + (done + here) * rows)
            own_columns = slice(column + done * columns, column + (done + here) * columns)
            if here == 1:
                part = gathered(x[own_rows], y[own_columns], np.arange(rows), scale)
            else:
                part = _side_by_side(
                    x[own_rows].reshape(here, rows, -1), y[own_columns].reshape(here, columns, -1), scale
                )
            _place(sums, part, own_rows, own_columns)
    return sums


def _side_by_side(x: Floats, y: Floats, scale: float) -> Sums:
    """Sums of several tables of one shape: x is [tables, rows, D], y [tables, columns, D]."""
    tables, rows, dimensions = x.shape
    columns = y.shape[1]
    sums = Sums.empty(tables * rows, tables * columns, dimensions, 1, own=False)
    labels = np.tile(np.arange(rows), tables)
    block = Block.of(np.matmul(x, y.transpose(0, 2, 1)).reshape(-1, columns), labels, scale)
    sums.keep_rows(slice(None), block)
    signed = block.signed.reshape(tables, rows, columns)
    shares = x / block.total.reshape(tables, rows, 1)
    sums.row_gradient[:] = np.matmul(signed, y).reshape(-1, dimensions) / block.total[:, None]
    sums.column_gradient[0] = np.matmul(signed.transpose(0, 2, 1), shares).reshape(-1, dimensions)
    return sums


def _place(sums: Sums, part: Sums, rows: slice, columns: slice) -> None:
    for name in ("loss", "scale_gradient", "row_gradient"):
        getattr(sums, name)[rows] = getattr(part, name)
    sums.column_gradient[:, columns] = part.column_gradient
