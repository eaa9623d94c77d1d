"""Pairs of every rank, and the two shared encoders."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from samestep.app.evidence.bags import Text


class Fixture(NamedTuple):
    """`a` and `b` are [P, dimensions], row i on rank i; `temperature` is τ."""

    title: Text
    a: list[list[float]]
    b: list[list[float]]
    temperature: float


_A = [[1.0, 0.5], [-0.3, 2.0], [0.8, -1.2], [1.5, 0.4]]
_B = [[0.7, -0.4], [0.2, 1.1], [-0.9, 0.6], [1.3, -0.5]]


def fixtures(size: int) -> dict[str, Fixture]:
    """What `size` ranks of the world are to compute; names are unique over all sizes."""
    a = [*_A, *([math.cos(i), math.sin(2 * i)] for i in range(4, size))][:size]
    b = [*_B, *([math.sin(i), math.cos(3 * i)] for i in range(4, size))][:size]
    title: Text = {"zh": f"不对称样例，P = {size}，τ = 0.5", "en": f"asymmetric fixture, P = {size}, τ = 0.5"}
    found = {f"asymmetric_{size}": Fixture(title, a, b, 0.5)}
    if size == 2:
        page: Text = {
            "zh": "页面样例 q = [1, 2]，d = [1, −1]，τ = 1",
            "en": "the page's q = [1, 2], d = [1, −1], τ = 1",
        }
        found = {"page": Fixture(page, [[1.0], [2.0]], [[1.0], [-1.0]], 1.0)} | found
    return found


class Encoders(nn.Module):
    """q = w_q ⊙ a and d = w_d ⊙ b, one weight per dimension."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.wq = nn.Parameter(torch.ones(dimensions))
        self.wd = nn.Parameter(torch.ones(dimensions))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.wq * a, self.wd * b
