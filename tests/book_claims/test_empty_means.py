"""What PyTorch makes of a mean over no label: chapters 20 and 60."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = torch.full((4,), -100)
CLASSES = torch.arange(4)
MASK = torch.zeros(4)


def _masked(logits: Tensor) -> Tensor:
    losses = cross_entropy(logits, CLASSES, reduction="none")
    return (losses * MASK).sum() / MASK.sum()


def _ignored_and_masked(logits: Tensor) -> Tensor:
    losses = cross_entropy(logits, IGNORED, reduction="none")
    return (losses * MASK).sum() / MASK.sum()


def _clamped(logits: Tensor) -> Tensor:
    losses = cross_entropy(logits, CLASSES, reduction="none")
    return (losses * MASK).sum() / MASK.sum().clamp(min=1)


MEANS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "ignore_index": (lambda z: cross_entropy(z, IGNORED), math.nan, 0),
    "rows selected beforehand": (lambda z: cross_entropy(z[IGNORED != -100], IGNORED[IGNORED != -100]), math.nan, 0),
    "losses selected afterwards": (lambda z: cross_entropy(z, CLASSES, reduction="none")[MASK > 0].mean(), math.nan, 0),
    "multiplied by the mask": (_masked, math.nan, math.nan),
    "ignored, then multiplied by the mask": (_ignored_and_masked, math.nan, 0),
    "denominator clamped to 1": (_clamped, 0, 0),
    "a sum, scaled": (lambda z: cross_entropy(z, IGNORED, reduction="sum") * 2 / 10, 0, 0),
}
"""The loss and every entry of its gradient, by the table of chapter 20."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MEANS)
def test_where_the_labels_are_dropped_decides_between_zero_and_nan(name: str, dtype: torch.dtype) -> None:
    of, loss, gradient = MEANS[name]
    logits = torch.randn(4, 7, dtype=dtype, requires_grad=True)
    result = of(logits)
    result.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    expected = torch.full_like(logits.grad, gradient)
    torch.testing.assert_close(result, torch.full_like(result, loss), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=0, equal_nan=True)


def test_one_empty_replica_of_two_leaves_half_of_the_token_mean() -> None:
    """DDP's mean over two replicas of the gradients of local means, one of them over no label."""
    logits = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    (full,) = torch.autograd.grad(cross_entropy(logits, CLASSES), logits)
    (empty,) = torch.autograd.grad(cross_entropy(logits, IGNORED), logits)
    torch.testing.assert_close((full + empty) / 2, full / 2, rtol=0, atol=0)
