"""Expert parallel by all-to-all: four data ranks, two experts, each on two ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.app.calculators.mesh_ledger.mesh import Mesh, factors
from samestep.experiments.mesh.measuring import Found, Group, Way, added

AXES = Mesh(dp=4, fsdp=1, cp=1, tp=1, pp=1, ep=2, sequence_parallel=True, loss="local_mean")
EACH, WIDTH = 3, 4
_FACTOR = float(factors(AXES)["expert_divided_by_its_own_group"][1])
WAYS: dict[str, Way] = {
    "expert_right": Way({"zh": "专家：沿 edp 相加，除以 D", "en": "expert: added over edp, divided by D"}, 1),
    "expert_divided_by_its_own_group": Way(
        {"zh": "专家：除以自己那组的大小", "en": "expert: divided by its own group"}, _FACTOR
    ),
}


class Exchange(torch.autograd.Function):
    """As many rows for every rank of the group; the backward sends the gradients back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _exchanged(rows, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(rows: Tensor, group: Group) -> Tensor:
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows.contiguous(), group=group)
    return received


def experts() -> Tensor:
    return torch.randn(AXES.ep, WIDTH, WIDTH, generator=torch.Generator().manual_seed(8))


def tokens() -> Tensor:
    """`tokens[d][e]`: those of data rank d that the router sends to expert e."""
    return torch.randn(AXES.dp, AXES.ep, EACH, WIDTH, generator=torch.Generator().manual_seed(9))


def measure(rank: int) -> dict[str, Found]:
    """Every way on this rank, which holds expert `rank % ep`; neighbours exchange their tokens."""
    exchange = [dist.new_group([first, first + 1]) for first in range(0, AXES.dp, AXES.ep)][rank // AXES.ep]
    holders = [dist.new_group(range(expert, AXES.dp, AXES.ep)) for expert in range(AXES.ep)][rank % AXES.ep]
    mine = experts()[rank % AXES.ep].clone().requires_grad_()
    x = tokens()[rank].flatten(0, 1)
    arrived = Exchange.apply(x, exchange)  # type: ignore[no-untyped-call]
    answers = Exchange.apply(torch.tanh(arrived @ mine), exchange)  # type: ignore[no-untyped-call]
    torch.autograd.backward((x + answers).square().mean())
    assert mine.grad is not None

    whole = experts().requires_grad_()
    everybody = tokens()
    torch.autograd.backward((everybody + torch.tanh(torch.einsum("detw,ewv->detv", everybody, whole))).square().mean())
    assert whole.grad is not None
    total, right = added(mine.grad, holders), whole.grad[rank % AXES.ep]
    return {
        "expert_right": Found(total / AXES.divisor, right),
        "expert_divided_by_its_own_group": Found(total / AXES.expert_data_ranks, right),
    }
