"""When clipping hides a constant factor of the gradient and when it exposes it: chapters 10 and 50."""

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

GRADIENTS = torch.tensor([[3.0, 4.0], [0.3, -0.4], [-1.2, 0.5], [0.05, 0.12]], dtype=torch.float64)
"""Those of four updates; their norms are 5, 0.5, 1.3 and 0.13."""


def adamw(factor: float, max_norm: float | None) -> Tensor:
    """The parameter after the four updates, each gradient times `factor` and then clipped; epsilon is 0."""
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, eps=0)
    for gradient in GRADIENTS:
        parameter.grad = gradient * factor
        if max_norm is not None:
            clip_grad_norm_([parameter], max_norm)
        optimizer.step()
    return parameter.detach()


def clipped(gradient: Tensor, max_norm: float) -> Tensor:
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    clip_grad_norm_([parameter], max_norm)
    return parameter.grad


@pytest.mark.parametrize("factor", [0.5, 2, 8])
def test_a_factor_is_hidden_where_both_norms_exceed_the_threshold(factor: float) -> None:
    torch.testing.assert_close(clipped(GRADIENTS[0] * factor, 1), clipped(GRADIENTS[0], 1), rtol=1e-5, atol=0)


def test_a_factor_is_exposed_where_only_one_norm_exceeds_the_threshold() -> None:
    assert clipped(GRADIENTS[1] * 8, 1).norm() > 1.9 * clipped(GRADIENTS[1], 1).norm()


def test_adamw_cancels_a_constant_factor_and_clipping_makes_it_a_changing_one() -> None:
    torch.testing.assert_close(adamw(8, None), adamw(1, None), rtol=1e-12, atol=0)
    assert (adamw(8, 1) - adamw(1, 1)).abs().max() > 0.01
