"""Context parallel: one sequence in four slices; keys and values are gathered, so that attention sees them all.

The keys and values of all ranks are gathered here, as Gloo carries it; a ring would exchange them piece by piece.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.app.calculators.mesh_ledger.mesh import Mesh, factors
from samestep.experiments.mesh.measuring import Found, Group, Way, added

AXES = Mesh(dp=1, fsdp=1, cp=4, tp=1, pp=1, ep=1, sequence_parallel=True, loss="cp_group_mean")
SLICE, WIDTH = 2, 4
_SAID = {name: float(factor) for name, (_, factor, _) in factors(AXES).items()}
WAYS: dict[str, Way] = {
    "context_summed": Way({"zh": "上下文：沿 cp 相加", "en": "context: added over cp"}, 1),
    "context_averaged": Way(
        {"zh": "上下文：沿 cp 取平均", "en": "context: averaged over cp"}, _SAID["dense_divided_by_data_and_context"]
    ),
    "context_not_reduced": Way({"zh": "上下文：没有归约", "en": "context: not reduced"}, None),
}


class Gather(torch.autograd.Function):
    """Slices to the whole sequence; the backward adds what all ranks say of each slice."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return added(gradients[0], ctx.group).chunk(AXES.cp)[dist.get_rank(ctx.group)], None


def attention(weight: Tensor, queries: Tensor, keys: Tensor, first: int) -> Tensor:
    """Causal attention of some tokens, the first of which stands at `first`, to the whole sequence."""
    scores = (queries @ weight) @ keys.T
    places = torch.arange(len(queries))[:, None] + first
    return torch.softmax(scores.masked_fill(torch.arange(len(keys)) > places, -torch.inf), 1) @ keys


def start() -> tuple[Tensor, Tensor, Tensor]:
    """Two weights, and the sequence."""
    source = torch.Generator().manual_seed(10)
    shapes = (WIDTH, WIDTH), (WIDTH, WIDTH), (AXES.cp * SLICE, WIDTH)
    first, second, tokens = (torch.randn(shape, generator=source) for shape in shapes)
    return first.requires_grad_(), second.requires_grad_(), tokens


def measure(rank: int, group: Group) -> dict[str, Found]:
    """Every way on this rank: the gradients of both weights, one after the other."""
    first, second, tokens = start()
    torch.autograd.backward(attention(first, tokens @ second, tokens @ second, 0).square().mean())
    right = _both(first, second)

    first, second, tokens = start()
    own = tokens.chunk(AXES.cp)[rank] @ second
    keys = Gather.apply(own, group)  # type: ignore[no-untyped-call]
    seen = attention(first, own, keys, rank * SLICE)
    torch.autograd.backward(seen.square().sum() / tokens.numel())  # its part of the mean over the sequence
    part = _both(first, second)
    return {
        "context_summed": Found(added(part, group) / AXES.divisor, right),
        "context_averaged": Found(added(part, group) / AXES.data_ranks, right),
        "context_not_reduced": Found(part, right),
    }


def _both(first: Tensor, second: Tensor) -> Tensor:
    assert first.grad is not None
    assert second.grad is not None
    return torch.stack([first.grad, second.grad])
