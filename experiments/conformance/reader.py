"""Two ways to read from an update which coefficient every token got.

Unit coordinates. A bigram table in which every valid token has a row of its own: what an update leaves in that row is
the token's coefficient (see `layout`, which needs no torch).

Tomography. For a framework's real model: with G [tokens, parameters], the gradient of every token's loss at the
parameters before the update, solve min ‖Gᵀc − update‖; the residual certifies that the update is nothing but a
re-weighting of these token losses at these parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.experiments.conformance.layout import IGNORED as IGNORED, VOCABULARY as VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Counts


class Bigram(nn.Module):
    """logits = weight[id]; weight is zero at first, so that every token sees the uniform distribution."""

    def __init__(self, ids: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ids, VOCABULARY, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """[…] → […, V]"""
        return self.weight[ids]


class Tokens(Layout):
    """The tokens of a window as tensors."""

    def ids(self, rank: int, k: int) -> Tensor:
        """[width]"""
        return torch.tensor(self.numbers(rank, k))

    def labels(self, rank: int, k: int) -> Tensor:
        """[width], each valid one in 0 … V − 1"""
        return torch.tensor(self.targets(rank, k))

    def read(self, update: Tensor, others: Sequence["Tokens"] = ()) -> tuple[list[list[list[float]]], float]:
        """`Layout.found` of a tensor on any device."""
        return self.found(update.detach().cpu().double().numpy(), others)


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
