"""FSDP2 (`fully_shard`): parameters in shards, gradients averaged by a reduce-scatter, norms over DTensors."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import plain_loop
from samestep.experiments.conformance.frameworks.plain_loop import Clip, Wrapped
from samestep.experiments.conformance.reader import Bigram
from samestep.experiments.conformance.scenarios import Scenario

MEAN = dict.fromkeys("ABCE", "microbatch_equal")
SETTINGS = (
    Setting(
        "local_mean",
        {"zh": "返回本地均值 ÷ 累积步数（默认）", "en": "local mean ÷ accumulation steps (default)"},
        {
            "zh": "reduce-scatter 取平均：与 DDP 同一条规则。裁剪范数由 DTensor 汇总，是完整梯度的范数。",
            "en": "The reduce-scatter averages: DDP's rule. The clipped norm is put together from DTensors and is that "
            "of the whole gradient.",
        },
        {**MEAN, "D": "microbatch_equal*1/K", "F": "moved", "clip": "true_norm"},
    ),
    Setting(
        "scaled_sum",
        {"zh": "返回损失之和 × P ÷ N", "en": "sum of losses × P ÷ N"},
        {
            "zh": "与 DDP 同一个配方：全局 token 均值。",
            "en": "The same recipe as for DDP: the global token mean.",
        },
        {**dict.fromkeys("ABCDE", "global_token_mean"), "F": "moved", "clip": "true_norm"},
    ),
    Setting(
        "divide_factor_1",
        {
            "zh": "set_gradient_divide_factor(1)，却仍返回本地均值",
            "en": "set_gradient_divide_factor(1), still local mean",
        },
        {
            "zh": "对照：reduce-scatter 只求和，所有系数必须大一倍。",
            "en": "A control: the reduce-scatter only sums, and every coefficient has to be twice as large.",
        },
        dict.fromkeys("ABCE", "microbatch_equal*P"),
        labels=("planted factor 2",),
        planted="P",
    ),
    Setting(
        "replicated",
        {"zh": "HSDP 网格 2 × 1，本地均值", "en": "an HSDP mesh of 2 × 1, local mean"},
        {
            "zh": "两张卡都是副本、分片组只有一张卡：平均由副本间的 all-reduce 完成，规则不变。",
            "en": "Both ranks are replicas and a shard group is one rank: an all-reduce between replicas averages, by "
            "the same rule.",
        },
        MEAN,
        labels=("shard group of one rank",),
    ),
    Setting(
        "shard_clip",
        {"zh": "各卡按自己分片的范数裁剪", "en": "each rank clips by the norm of its own shard"},
        {
            "zh": "对照：把 DTensor 拆成本地张量再裁剪，范数就只是分片的范数。",
            "en": "A control: with DTensors taken apart into local tensors, the norm is that of a shard only.",
        },
        {"clip": "wrong_norm"},
        labels=("planted local norm",),
    ),
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    process_group()

    def wrap(model: Bigram) -> Wrapped:
        sizes, names = ((world_size, 1), ("replicate", "shard")) if setting == "replicated" else ((world_size,), ("s",))
        sharded = fully_shard(model, mesh=init_device_mesh("cpu", sizes, mesh_dim_names=names))
        if setting == "divide_factor_1":
            sharded.set_gradient_divide_factor(1.0)

        @contextmanager
        def alone(last: bool) -> Iterator[None]:
            sharded.set_requires_gradient_sync(last)
            yield

        return Wrapped(model, alone, whole)

    clip: Clip = clip_shard if setting == "shard_clip" else clip_all
    loss: plain_loop.Loss = "scaled_sum" if setting == "scaled_sum" else "local_mean"
    return plain_loop.measure(wrap, loss, scenario, rank, clip)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip_all(model: nn.Module, max_norm: float) -> float:
    return float(whole(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))


def clip_shard(model: nn.Module, max_norm: float) -> float:
    """What happens to those who forget that a gradient is sharded."""
    shards = [parameter.grad.to_local() for parameter in model.parameters() if isinstance(parameter.grad, DTensor)]
    norm = torch.nn.utils.get_total_norm(shards)
    factor = min(1.0, max_norm / (float(norm) + 1e-6))
    for shard in shards:
        shard.mul_(factor)
    return float(norm)
