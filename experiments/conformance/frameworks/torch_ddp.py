"""DistributedDataParallel: the average over processes, what a user's loss makes of it, and hooks in its place."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import plain_loop
from samestep.experiments.conformance.frameworks.plain_loop import Loss, Wrapped
from samestep.experiments.conformance.reader import Bigram, Tokens
from samestep.experiments.conformance.scenarios import Scenario

MEAN = dict.fromkeys("ABCE", "microbatch_equal")
GLOBAL = dict.fromkeys("ABCDE", "global_token_mean")
SETTINGS = (
    Setting(
        "local_mean",
        {"zh": "返回本地均值 ÷ 累积步数", "en": "local mean ÷ accumulation steps"},
        {
            "zh": "DDP 对各进程的梯度取平均，于是每个微批一样重，标签少的微批里每个 token 更重。",
            "en": "DDP averages over processes, so every micro-batch weighs the same; a token among few weighs more.",
        },
        {**MEAN, "D": "microbatch_equal*1/K", "F": "moved", "clip": "true_norm"},
    ),
    Setting(
        "scaled_sum",
        {"zh": "返回损失之和 × P ÷ N", "en": "sum of losses × P ÷ N"},
        {
            "zh": "乘以 P 抵消 DDP 的平均，除以全局标签数 N：全局 token 均值。",
            "en": "P undoes DDP's average, N counts the labels of all processes: the global token mean.",
        },
        {**GLOBAL, "F": "moved", "clip": "true_norm"},
    ),
    Setting(
        "sum_hook",
        {"zh": "求和钩子，返回损失之和 ÷ N", "en": "a hook that sums, sum of losses ÷ N"},
        {
            "zh": "通信钩子只做 SUM，不再除以 P，所以损失也不乘 P。",
            "en": "The communication hook only sums, without dividing by P, so the loss is not multiplied by P either.",
        },
        GLOBAL,
    ),
    Setting(
        "sum_hook_local_mean",
        {"zh": "求和钩子，却仍返回本地均值", "en": "a hook that sums, and still the local mean"},
        {
            "zh": "对照：除以 P 的那一步没有了，所有系数必须大一倍。",
            "en": "A control: nothing divides by P any more, and every coefficient has to be twice as large.",
        },
        dict.fromkeys("ABCE", "microbatch_equal*P"),
        labels=("planted factor 2",),
        planted="P",
    ),
    Setting(
        "fp16_hook",
        {"zh": "fp16 压缩钩子，本地均值", "en": "the fp16 compression hook, local mean"},
        {
            "zh": "先除以 P 再以半精度求和：规则不变，只是精度变粗。",
            "en": "Divides by P, then sums in half precision: the same rule, more coarsely.",
        },
        MEAN,
        tolerance=1e-3,
    ),
    Setting(
        "join_initial",
        {"zh": "Join，按初始进程数平均（默认）", "en": "Join, divided by the initial world size (default)"},
        {
            "zh": "rank 0 的数据先用完，由影子通信代替；剩下的一张卡仍被除以 P。",
            "en": "Rank 0 has run out of data and only shadows the collectives; what is left is still divided by P.",
        },
        {"C": "microbatch_equal"},
    ),
    Setting(
        "join_remaining",
        {"zh": "Join，按仍在训练的进程数平均", "en": "Join, divided by the ranks still training"},
        {
            "zh": "divide_by_initial_world_size=False：只除以还有数据的进程数，这里是 1。",
            "en": "divide_by_initial_world_size=False: divided by the ranks that still have data, here 1.",
        },
        {"C": "global_token_mean"},
    ),
)
LOSSES: dict[str, Loss] = {"scaled_sum": "scaled_sum", "sum_hook": "sum_over_total"}
JOINED = {"join_initial": True, "join_remaining": False}
"""Whether `Join` divides by the initial world size."""


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    process_group()
    if setting in JOINED:
        return joined(scenario, rank, divide_by_initial=JOINED[setting])

    def wrap(model: Bigram) -> Wrapped:
        ddp = DistributedDataParallel(model)
        if setting in HOOKS:
            ddp.register_comm_hook(None, HOOKS[setting])

        def alone(last: bool) -> AbstractContextManager[object]:
            return nullcontext() if last else ddp.no_sync()

        return Wrapped(ddp, alone, lambda tensor: tensor)

    return plain_loop.measure(wrap, LOSSES.get(setting, "local_mean"), scenario, rank, clip)


def sum_hook(
    state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # the name that torch checks for, of a class without stubs
) -> torch.futures.Future[Tensor]:
    """All-reduce, and nothing else."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda reduced: reduced.value()[0])
    return future


HOOKS: dict[str, Any] = {
    "sum_hook": sum_hook,
    "sum_hook_local_mean": sum_hook,
    "fp16_hook": fp16_compress_hook,
}


def clip(model: nn.Module, max_norm: float) -> float:
    return float(nn.utils.clip_grad_norm_(model.parameters(), max_norm))


def joined(scenario: Scenario, rank: int, *, divide_by_initial: bool) -> Coefficients:
    """A rank without labels has no batch at all; the others make their update within `Join`."""
    window = Tokens(scenario.counts)
    ddp = DistributedDataParallel(Bigram(window.end))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with Join([ddp], divide_by_initial_world_size=divide_by_initial):
        for k, n in enumerate(scenario.counts[rank]):
            if n:
                loss = plain_loop.loss_of(
                    ddp(window.ids(rank, k)), window.labels(rank, k), "local_mean", 1, torch.ones(())
                )
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    trained = ddp.module.weight.detach()
    return Coefficients(*window.read(-trained))
