"""Read the graph of a loss before its backward: its summands, and matrices that hold a number for every pair of rows.

Backward is linear. So the gradient of one summand is what comes out when the others' incoming gradients are set to
zero; no second graph is needed, and nothing in the reader's code changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import Node

from samestep.experiments.taps.graph import children, operation, outputs, signed, walk

SCALING = {"DivBackward0", "MulBackward0", "NegBackward0", "ToCopyBackward0", "CloneBackward0", "SqueezeBackward0"}
"""Nodes above a sum that change all of its summands alike."""
SUMS = {"AddBackward0", "SubBackward0"}
TOKEN_LOSSES = {"NllLossBackward0", "NllLoss2DBackward0"}
MOST = 6
"""Summands that are told apart; a longer sum is one term."""


def summands(root: torch.Tensor) -> list[Node]:
    """The nodes of the scalars whose sum, times a number, is the loss; none where it is no sum."""
    node = root.grad_fn
    while node is not None and node.name() in SCALING and len(children(node)) == 1:
        node = children(node)[0]
    if node is None or node.name() not in SUMS or not _scalar(node):
        return []
    found = list(_flattened(node))
    alone = all(found.count(each) == 1 for each in found)
    return found if 1 < len(found) <= MOST and alone else []


def _flattened(node: Node) -> Iterator[Node]:
    for child in children(node):
        if child.name() in SUMS and _scalar(child):
            yield from _flattened(child)
        else:
            yield child


def _scalar(node: Node) -> bool:
    return all(list(shape) in ([], [1]) for shape in outputs(node))


def name(node: Node) -> str:
    """What a summand ends in: the first node under it that is no scaling, such as NllLoss."""
    while node.name() in SCALING and len(children(node)) == 1:
        node = children(node)[0]
    return operation(node)


@contextmanager
def silenced(nodes: Iterable[Node]) -> Iterator[None]:
    """Let no gradient pass these nodes."""

    def nothing(gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if gradient is None else torch.zeros_like(gradient) for gradient in gradients)

    handles = [node.register_prehook(nothing) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def matrices(root: torch.Tensor) -> set[tuple[int, ...]]:
    """Shapes of all matrices in the graph."""
    return {shape for node in _all(root) for shape in outputs(node) if len(shape) == 2}


def targets(root: torch.Tensor) -> int | None:
    """How many targets the token losses in the graph count; None where there is none of them."""
    nodes: list[Any] = _all(root)
    counts = [
        int((node._saved_target != signed(node._saved_ignore_index)).sum())
        for node in nodes
        if node.name() in TOKEN_LOSSES and node._saved_target is not None
    ]
    return sum(counts) if counts else None


def _all(root: torch.Tensor) -> list[Node]:
    """The nodes of the graph, up to a number of them."""
    return walk([root.grad_fn], into_model=True).nodes if root.grad_fn is not None else []


class _Silent(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradients[0])


def silent(value: torch.Tensor) -> torch.Tensor:
    """The same value, through which no gradient passes."""
    found: torch.Tensor = _Silent.apply(value)  # type: ignore[no-untyped-call]
    return found
