"""Two ways to read from an update which coefficient every token got.

Unit coordinates. A bigram table W [ids, V], zero at first; every valid token has a row of its own, so that plain SGD
with learning rate 1 leaves ΔW[id] = c · (onehot(label) − 1/V) there: c is read off, and whatever else moved is the
residual. Exact up to rounding; rows are never shared, so windows that follow one another can be read from one table.

Tomography. For a framework's real model: with G [tokens, parameters], the gradient of every token's loss at the
parameters before the update, solve min ‖Gᵀc − update‖; the residual certifies that the update is nothing but a
re-weighting of these token losses at these parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.experiments.conformance.scenarios import Counts

VOCABULARY = 4
IGNORED = -100


class Bigram(nn.Module):
    """logits = weight[id]; weight is zero at first, so that every token sees the uniform distribution."""

    def __init__(self, ids: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ids, VOCABULARY, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """[…] → […, V]"""
        return self.weight[ids]


class Tokens:
    """Which rows of the table the labels of a window have: ids and labels of each micro-batch, padded to one width.

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

    def ids(self, rank: int, k: int) -> Tensor:
        """[width]"""
        rows = self.rows[rank][k]
        return torch.tensor(rows + [0] * (self.width - len(rows)))

    def labels(self, rank: int, k: int) -> Tensor:
        """[width], each valid one in 0 … V − 1"""
        rows = self.rows[rank][k]
        return torch.tensor([row % VOCABULARY for row in rows] + [IGNORED] * (self.width - len(rows)))

    def read(self, update: Tensor, others: Sequence["Tokens"] = ()) -> tuple[list[list[list[float]]], float]:
        """Coefficients [r][k][i] and residual from `update` = (W before − W after) ÷ learning rate, with its sign as
        a gradient has it. Rows of `others` (windows in the same update range) are left out of the residual.
        """
        update = update.detach().cpu().double()
        explained = torch.zeros_like(update)
        tokens = [[[_coefficient(update, explained, row) for row in cell] for cell in rank] for rank in self.rows]
        known = {row for window in others for rank in window.rows for cell in rank for row in cell}
        kept = [row for row in range(len(update)) if row not in known]
        return tokens, relative(update[kept] - explained[kept], update[kept])


def _coefficient(update: Tensor, explained: Tensor, row: int) -> float:
    """The coefficient c of the row's token; writes c · (1/V − onehot), the gradient that it explains."""
    label = row % VOCABULARY
    pattern = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=torch.float64)
    pattern[label] -= 1
    c = update[row, label] / pattern[label]
    explained[row] = c * pattern
    return float(c) + 0.0


def relative(part: Tensor, whole: Tensor) -> float:
    """‖part‖ ÷ ‖whole‖, 0 for a part of length 0; NaN where anything is not finite."""
    length = float(part.norm())
    return 0.0 if length == 0 else length / float(whole.norm())


def tomography(gradients: Tensor, update: Tensor) -> tuple[Tensor, float]:
    """Coefficients [tokens] with gradientsᵀ c ≈ update, and the relative residual.

    `gradients` [tokens, parameters] must have full row rank (else coefficients could be exchanged): ValueError.
    """
    gradients, update = gradients.double(), update.double()
    if int(torch.linalg.matrix_rank(gradients)) < len(gradients):
        raise ValueError("the gradients of the tokens are not independent: coefficients cannot be told apart")
    solution = torch.linalg.lstsq(gradients.T, update.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    return solution, relative(gradients.T @ solution - update, update)


def by_cell(flat: Sequence[float], counts: Counts) -> list[list[list[float]]]:
    """Values in the order rank, micro-batch, token, as [r][k][i]."""
    values = iter(flat)
    return [[[next(values) for _ in range(n)] for n in microbatches] for microbatches in counts]


def proportion(measured: Tensor, reference: Tensor) -> tuple[float, float]:
    """Best factor f of measured ≈ f · reference, and ‖measured − f · reference‖ ÷ ‖f · reference‖."""
    measured, reference = measured.double().reshape(-1), reference.double().reshape(-1)
    factor = float(measured @ reference / (reference @ reference))
    return factor, relative(measured - factor * reference, factor * reference)
