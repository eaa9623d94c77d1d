"""Which rows of a table the tokens of a window have, and what an update of the table says of each: plain arrays.

A table W [ids, V], zero at first; every valid token has a row of its own, so that plain SGD with learning rate 1 leaves
ΔW[id] = c · (onehot(label) − 1/V) there: c is read off, and whatever else moved is the residual. Exact up to rounding;
rows are never shared, so windows that follow one another can be read from one table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.experiments.conformance.scenarios import Counts

VOCABULARY = 4
IGNORED = -100
Floats = NDArray[np.float64]


class Layout:
    """Rows, ids and labels of each micro-batch, padded to one width.

    `first`: the first free row, for windows that follow one another. Row 0 belongs to the padding, whose label is
    IGNORED, so the same module serves for empty micro-batches. `width`: the number of positions of every micro-batch.
    """

    def __init__(self, counts: Counts, first: int = 1, width: int = 8) -> None:
        self.counts = counts
        self.width = width
        starts = [first]
        for n in (n for microbatches in counts for n in microbatches):
            starts.append(starts[-1] + n)
        self.end = starts[-1]
        flat = iter(starts)
        self.rows = [[list(range(start := next(flat), start + n)) for n in microbatches] for microbatches in counts]

    def numbers(self, rank: int, k: int) -> list[int]:
        """Ids of a micro-batch, [width]."""
        rows = self.rows[rank][k]
        return rows + [0] * (self.width - len(rows))

    def targets(self, rank: int, k: int) -> list[int]:
        """Labels of a micro-batch, [width], each valid one in 0 … V − 1."""
        rows = self.rows[rank][k]
        return [row % VOCABULARY for row in rows] + [IGNORED] * (self.width - len(rows))

    def found(self, update: NDArray[Any], others: Sequence["Layout"] = ()) -> tuple[list[list[list[float]]], float]:
        """Coefficients [r][k][i] and residual from `update` = (W before − W after) ÷ learning rate, with its sign as
        a gradient has it. Rows of `others` (windows in the same update range) are left out of the residual.
        """
        update = np.asarray(update, dtype=np.float64)
        explained = np.zeros_like(update)
        tokens = [[[_coefficient(update, explained, row) for row in cell] for cell in rank] for rank in self.rows]
        known = {row for window in others for rank in window.rows for cell in rank for row in cell}
        kept = [row for row in range(len(update)) if row not in known]
        left, whole = np.linalg.norm(update[kept] - explained[kept]), np.linalg.norm(update[kept])
        return tokens, 0.0 if left == 0 else float(left / whole)


def _coefficient(update: Floats, explained: Floats, row: int) -> float:
    """The coefficient c of the row's token; writes c · (1/V − onehot), the gradient that it explains."""
    label = row % VOCABULARY
    pattern = np.full(VOCABULARY, 1 / VOCABULARY)
    pattern[label] -= 1
    c = update[row, label] / pattern[label]
    explained[row] = c * pattern
    return float(c) + 0.0
