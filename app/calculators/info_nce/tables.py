"""What a table of similarities leaves behind: losses and every derivative that its owners may keep.

The table is never held whole: blocks of rows are made (by `softmax` or `sigmoid`, whose words are used here), used and
dropped, so the memory is that of the vectors plus a few blocks.

Arrays are float64. Results that float64 cannot hold come out as inf or nan: callers check, with warnings off.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import numpy as np

from samestep.app.calculators.info_nce.sigmoid import SigmoidBlock
from samestep.app.calculators.info_nce.softmax import Indices, SoftmaxBlock
from samestep.app.contract.arrays import Floats

BLOCK = 1 << 20
"""Logits held at one time (8 MiB, twice)."""

Block = SoftmaxBlock | SigmoidBlock


@dataclass(frozen=True)
class Logits:
    """What makes a loss of similarities: s, and b for the sigmoid, None for softmax, where it would cancel."""

    scale: float
    bias: float | None = None

    def block(self, similarities: Floats, labels: Indices) -> Block:
        """Some rows; `similarities` are overwritten."""
        if self.bias is None:
            return SoftmaxBlock.of(similarities, labels, self.scale)
        return SigmoidBlock.of(similarities, labels, self.scale, self.bias)


@dataclass(frozen=True)
class Sums:
    """What a table leaves behind, for N rows and M columns of D dimensions, and K weightings w_k of the rows.

    Gradients lack the factor s, and w_0 = 1.
    """

    loss: Floats
    """ℓ_i, [N]."""
    scale_gradient: Floats
    """∂ℓ_i/∂log s = Σ_j G_ij s⟨x_i, y_j⟩, [N]."""
    bias_gradient: Floats
    """∂ℓ_i/∂b = Σ_j G_ij, [N]."""
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
            bias_gradient=np.zeros(rows),
            row_gradient=np.zeros((rows, dimensions)),
            column_gradient=np.zeros((weightings, columns, dimensions)),
            own_gradient=np.zeros((columns, dimensions)) if own else None,
        )

    def keep_rows(self, rows: slice, block: Block) -> None:
        """Note what belongs to the rows alone."""
        self.loss[rows] = block.loss()
        self.scale_gradient[rows] = block.scale_gradient()
        self.bias_gradient[rows] = block.bias_gradient()


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
    x: Floats, y: Floats, labels: Indices, logits: Logits, weights: Sequence[Floats] = (), ranks: Ranks | None = None
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
        block = logits.block(similarities, labels[rows])
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


def local(x: Floats, y: Floats, logits: Logits, ranks: Ranks) -> Sums:
    """Sums where each rank's rows meet its own columns only; the label of its b-th row is its b-th column."""
    sums = Sums.empty(len(x), len(y), x.shape[1], 1, own=False)
    for count, row, rows, column, columns in ranks.runs(0, len(x)):
        step = max(1, BLOCK // (rows * columns))
        for done in range(0, count, step):
            here = min(step, count - done)
            own_rows = slice(row + done * rows, row + (done + here) * rows)
            own_columns = slice(column + done * columns, column + (done + here) * columns)
            if here == 1:
                part = gathered(x[own_rows], y[own_columns], np.arange(rows), logits)
            else:
                part = _side_by_side(
                    x[own_rows].reshape(here, rows, -1), y[own_columns].reshape(here, columns, -1), logits
                )
            _place(sums, part, own_rows, own_columns)
    return sums


def _side_by_side(x: Floats, y: Floats, logits: Logits) -> Sums:
    """Sums of several tables of one shape: x is [tables, rows, D], y [tables, columns, D]."""
    tables, rows, dimensions = x.shape
    columns = y.shape[1]
    sums = Sums.empty(tables * rows, tables * columns, dimensions, 1, own=False)
    labels = np.tile(np.arange(rows), tables)
    block = logits.block(np.matmul(x, y.transpose(0, 2, 1)).reshape(-1, columns), labels)
    sums.keep_rows(slice(None), block)
    signed = block.signed.reshape(tables, rows, columns)
    shares = x / block.total.reshape(tables, rows, 1)
    sums.row_gradient[:] = np.matmul(signed, y).reshape(-1, dimensions) / block.total[:, None]
    sums.column_gradient[0] = np.matmul(signed.transpose(0, 2, 1), shares).reshape(-1, dimensions)
    return sums


def _place(sums: Sums, part: Sums, rows: slice, columns: slice) -> None:
    for name in ("loss", "scale_gradient", "bias_gradient", "row_gradient"):
        getattr(sums, name)[rows] = getattr(part, name)
    sums.column_gradient[:, columns] = part.column_gradient
