"""Right and wrong ways to gather the documents of all ranks, and the paths that are made of them."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

from samestep.app.evidence.bags import Expectation, Text

Group = dist.ProcessGroup
Gather = Callable[[Tensor, Group], Tensor]


class AllGather(torch.autograd.Function):
    """Rows of all ranks; backward sums over every rank that used a row and hands it to the row's owner."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


class OwnSlice(AllGather):
    """The same rows; backward hands each rank its own slice of its own gradient and forgets to add the others'."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def with_gradient(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, AllGather.apply(own, group))  # type: ignore[no-untyped-call]


def by_the_library(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, functional.wait_tensor(functional.all_gather_single(own, 0, group)))  # type: ignore[no-untyped-call]


def own_slice(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, OwnSlice.apply(own, group))  # type: ignore[no-untyped-call]


def remote_detached(own: Tensor, group: Group) -> Tensor:
    parts = list(detached(own, group).chunk(dist.get_world_size(group)))
    parts[dist.get_rank(group)] = own
    return torch.cat(parts)


def detached(own: Tensor, group: Group) -> Tensor:
    """Plain all_gather: it returns tensors without gradient and gives no warning."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own.detach(), group=group)
    return torch.cat(parts)


def own_only(own: Tensor, group: Group) -> Tensor:
    return own


class Path(NamedTuple):
    """`whole`: every rank computes the loss of all queries, not only of its own. `factor(P)` multiplies the loss.

    `otherwise`: quantities that behave otherwise than `expectation` says. `reduced`: DDP averages; if not, replicas
    drift apart, and DDP says so only when the next step begins.
    """

    title: Text
    gather: Gather
    expectation: Expectation
    otherwise: dict[str, Expectation]
    whole: bool = False
    factor: Callable[[int], float] = lambda size: 1.0
    collectives: int = 3
    reduced: bool = True


PATHS: dict[str, Path] = {
    "gather_with_grad": Path(
        {"zh": "可微 gather，反向按拥有者求和", "en": "differentiable gather, backward sums at the owner"},
        with_gradient,
        "agrees",
        {},
    ),
    "library_gather_with_grad": Path(
        {"zh": "同上，用框架自带的可微 gather", "en": "the same with the framework's own differentiable gather"},
        by_the_library,
        "agrees",
        {},
    ),
    "remote_detached": Path(
        {"zh": "切断远端梯度", "en": "remote documents detached"},
        remote_detached,
        "differs",
        {"loss": "agrees", "queries": "agrees", "wq": "agrees"},
        collectives=2,
    ),
    "own_slice": Path(
        {
            "zh": "gather 的反向只取自己那一片，不相加",
            "en": "a gather whose backward keeps its own slice only",
        },
        own_slice,
        "differs",
        {"loss": "agrees", "queries": "agrees", "wq": "agrees"},
        collectives=2,
    ),
    "single_pair": Path(
        {"zh": "只用本卡候选（一对样本，没有负例）", "en": "local candidates only (one pair, no negatives)"},
        own_only,
        "differs",
        {},
        collectives=1,
    ),
    "every_slice_detached": Path(
        {"zh": "普通 all_gather：连自己那份也没有梯度", "en": "plain all_gather: its own slice has no gradient either"},
        detached,
        "differs",
        {"loss": "agrees", "queries": "agrees"},
        collectives=1,
        reduced=False,
    ),
    "whole_loss_gather_with_grad": Path(
        {"zh": "每卡算完整损失，可微 gather", "en": "the whole loss on every rank, differentiable gather"},
        with_gradient,
        "agrees",
        {},
        whole=True,
        collectives=5,
    ),
    "whole_loss_remote_detached": Path(
        {
            "zh": "每卡算完整损失，切断远端：只有应有的 1/P",
            "en": "the whole loss on every rank, remote detached: P too small",
        },
        remote_detached,
        "differs",
        {"loss": "agrees"},
        whole=True,
    ),
    "whole_loss_remote_detached_times_p": Path(
        {"zh": "同上再乘 P 补偿", "en": "the same, multiplied by P to compensate"},
        remote_detached,
        "agrees",
        {"loss": "differs"},
        whole=True,
        factor=float,
    ),
    "gather_with_grad_divided_by_p": Path(
        {"zh": "可微 gather，又多除一次 P", "en": "differentiable gather, divided by P once more"},
        with_gradient,
        "differs",
        {},
        factor=lambda size: 1.0 / size,
    ),
}
