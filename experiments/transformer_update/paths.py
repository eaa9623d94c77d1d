"""Right and wrong ways to compute the gradient of one update over several windows, for `transformer_update`.

N is the number of supervised labels in the whole update, P the number of processes, K the number of windows (the
micro-batches) of a process, S_k and n_k the sum of losses and the number of labels of window k. The update wanted is
that of Σ S_k / N. Every path says in which case it agrees with that, differs from it, or is undefined.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.app.evidence.bags import Expectation, Text
from samestep.experiments.ranks.world import collectives
from samestep.experiments.tiny.tiny_transformer import IGNORED, WINDOW, loss_mean, loss_sum

Named = dict[str, Tensor]


class Case(NamedTuple):
    """`counts[k]`: how many labels of window k are supervised, the last ones."""

    title: Text
    counts: tuple[int, int, int, int]

    @property
    def total(self) -> int:
        return sum(self.counts)


CASES: dict[str, Case] = {
    "unequal": Case({"zh": "标签数 8、24、48、80", "en": "8, 24, 48, 80 labels"}, (8, 24, 48, 80)),
    "equal": Case({"zh": "标签数相等：各 32", "en": "equal counts: 32 labels each"}, (32, 32, 32, 32)),
    "tail": Case({"zh": "尾窗口不完整：96、96、96、5", "en": "incomplete last window: 96, 96, 96, 5"}, (96, 96, 96, 5)),
    "empty": Case({"zh": "空标签进程：0、0、40、60", "en": "a process without labels: 0, 0, 40, 60"}, (0, 0, 40, 60)),
    "none": Case({"zh": "没有任何标签：N = 0", "en": "no labels at all: N = 0"}, (0, 0, 0, 0)),
}


def labels(windows: Tensor, counts: tuple[int, ...]) -> Tensor:
    """The next tokens [windows, 96], all but the last `counts[k]` of window k ignored."""
    wanted = windows[:, 1:].clone()
    for k, count in enumerate(counts):
        wanted[k, : WINDOW - count] = IGNORED
    return wanted


class Share(NamedTuple):
    """What one process sees of an update: its windows, their labels, N over all processes, and P."""

    inputs: Tensor
    labels: Tensor
    total: Tensor
    processes: int

    @property
    def windows(self) -> int:
        return len(self.inputs)


# ---- what is backpropagated for micro-batch k -------------------------------------------------------------------


def whole_batch(model: nn.Module, share: Share) -> Tensor:
    """Σ S_k / N in one forward: the reference."""
    return loss_sum(model(share.inputs), share.labels) / share.total


def by_global_count(model: nn.Module, share: Share, k: int) -> Tensor:
    """P·S_k/N: the average over processes undoes the P."""
    return share.processes * window_sum(model, share, k) / share.total


def equal_means(model: nn.Module, share: Share, k: int) -> Tensor:
    """(S_k/n_k)/K, the mean by the framework's own cross-entropy."""
    return window_mean(model, share, k) / share.windows


def masked_means(model: nn.Module, share: Share, k: int) -> Tensor:
    """(S_k/n_k)/K, written as a masked sum divided by the sum of the mask."""
    logits, wanted = model(share.inputs[k : k + 1])[0], share.labels[k]
    mask = (wanted != IGNORED).to(logits.dtype)
    each = cross_entropy(logits, wanted.clamp(min=0), reduction="none")
    return (each * (mask / mask.sum())).sum() / share.windows


def clamped_means(model: nn.Module, share: Share, k: int) -> Tensor:
    """(S_k/max(n_k, 1))/K: an empty window counts as a mean of 0."""
    count = (share.labels[k] != IGNORED).sum().clamp(min=1)
    return window_sum(model, share, k) / count / share.windows


def divided_again(model: nn.Module, share: Share, k: int) -> Tensor:
    """(P·S_k/N)/K."""
    return by_global_count(model, share, k) / share.windows


def window_sum(model: nn.Module, share: Share, k: int) -> Tensor:
    """S_k."""
    return loss_sum(model(share.inputs[k : k + 1]), share.labels[k : k + 1])


def window_mean(model: nn.Module, share: Share, k: int) -> Tensor:
    """S_k/n_k."""
    return loss_mean(model(share.inputs[k : k + 1]), share.labels[k : k + 1])


def local_mean(model: nn.Module, share: Share, k: int) -> Tensor:
    """Σ S_k / Σ n_k over this process's windows, in one forward."""
    return loss_mean(model(share.inputs), share.labels)


# ---- the paths --------------------------------------------------------------------------------------------------

Behaviour = Mapping[str, Expectation]
RIGHT: Behaviour = {
    "unequal": "agrees", "equal": "agrees", "tail": "agrees", "empty": "agrees", "none": "undefined",
}  # fmt: skip
MEANS: Behaviour = {
    "unequal": "differs", "equal": "agrees", "tail": "differs", "empty": "undefined", "none": "undefined",
}  # fmt: skip
TWICE: Behaviour = {
    "unequal": "differs", "equal": "differs", "tail": "differs", "empty": "differs", "none": "undefined",
}  # fmt: skip
SUMS: Behaviour = {**MEANS, "equal": "differs"}


class Path(NamedTuple):
    """`loss` is backpropagated for each micro-batch; `whole`: once, for all windows of the process.

    `behaviour` by case; cases that it does not name are left out. `nan_gradient`: where the loss is NaN, so is the
    gradient (the framework's cross-entropy gives ignored labels the gradient 0 whatever they are divided by).
    """

    title: Text
    loss: Callable[[nn.Module, Share, int], Tensor]
    behaviour: Behaviour
    ddp: bool = False
    no_sync: bool = False
    whole: bool = False
    nan_gradient: bool = False


PATHS: dict[str, Path] = {
    "accumulation_global_count": Path(
        {"zh": "单进程累积，按全局标签数归一", "en": "one process, accumulated, divided by the global count"},
        by_global_count, RIGHT,
    ),
    "ddp_global_count": Path(
        {"zh": "DDP，P·S/N，每次反传都通信", "en": "DDP, P·S/N, communicating in every backward"},
        by_global_count, RIGHT, ddp=True,
    ),
    "ddp_global_count_no_sync": Path(
        {"zh": "DDP，P·S/N，no_sync 累积", "en": "DDP, P·S/N, accumulated under no_sync"},
        by_global_count, RIGHT, ddp=True, no_sync=True,
    ),
    "microbatch_means": Path(
        {"zh": "单进程，微批均值等权", "en": "one process, micro-batch means weighted equally"},
        equal_means, MEANS,
    ),
    "ddp_microbatch_means": Path(
        {"zh": "DDP，微批均值等权", "en": "DDP, micro-batch means weighted equally"},
        equal_means, MEANS, ddp=True, no_sync=True,
    ),
    "ddp_local_means": Path(
        {"zh": "DDP 默认：各进程自己的均值再平均", "en": "DDP's default: each process's own mean, averaged"},
        local_mean, MEANS, ddp=True, whole=True,
    ),
    "divided_again": Path(
        {"zh": "按全局标签数归一后又除以 K", "en": "divided by the global count and by K again"},
        divided_again, TWICE,
    ),
    "sum_of_means": Path(
        {"zh": "微批均值相加，没有除以 K", "en": "micro-batch means added, not divided by K"},
        window_mean, SUMS,
    ),
    "masked_means": Path(
        {"zh": "微批均值等权，均值写成掩码求和再相除", "en": "micro-batch means, written as masked sum over mask"},
        masked_means, MEANS, nan_gradient=True,
    ),
    "clamped_means": Path(
        {"zh": "微批均值等权，空均值当作 0", "en": "micro-batch means, an empty one taken as 0"},
        clamped_means, {"empty": "differs"},
    ),
}  # fmt: skip


# ---- one gradient -----------------------------------------------------------------------------------------------


class Computed(NamedTuple):
    """What a process has before the optimizer steps; `loss` is what was backpropagated, averaged over processes."""

    loss: Tensor
    gradient: Named
    collectives: int


def gradient_of(model: nn.Module) -> Named:
    return {name: cast(Tensor, parameter.grad).clone() for name, parameter in model.named_parameters()}


def reference(model: nn.Module, windows: Tensor, case: Case) -> Computed:
    """All windows in one batch on one process, one backward."""
    loss = whole_batch(model, Share(windows[:, :-1], labels(windows, case.counts), torch.tensor(case.total), 1))
    torch.autograd.backward(loss)
    return Computed(loss.detach(), gradient_of(model), 0)


def compute(model: nn.Module, windows: Tensor, case: Case, path: Path, group: dist.ProcessGroup) -> Computed:
    """By one path on this process, with its share of the windows if the path uses DDP, else with all of them."""
    processes = dist.get_world_size(group) if path.ddp else 1
    mine = torch.arange(len(windows)).chunk(processes)[dist.get_rank(group) if path.ddp else 0]
    wanted = labels(windows, case.counts)[mine]
    total = (wanted != IGNORED).sum()
    if path.ddp:
        dist.all_reduce(total, group=group)
    share = Share(windows[mine, :-1], wanted, total, processes)
    replica = DistributedDataParallel(model, process_group=group) if path.ddp else model
    count, loss = collectives(group), torch.tensor(0.0)
    rounds = 1 if path.whole else share.windows
    for k in range(rounds):
        quiet = path.no_sync and k < rounds - 1
        with cast(DistributedDataParallel, replica).no_sync() if quiet else contextlib.nullcontext():
            part = path.loss(replica, share, k)
            torch.autograd.backward(part)
        loss += part.detach()
    count = collectives(group) - count
    if path.ddp:
        dist.all_reduce(loss, dist.ReduceOp.AVG, group=group)
    return Computed(loss, gradient_of(model), count)
