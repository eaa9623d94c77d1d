"""torch's tensor parallelism with sequence-parallel norms: who sums the gradient of a weight that every rank has?

A block of LayerNorm and two linear layers, the sequence cut in two. Outside the block a rank sees its half of the
sequence; the norm's weight is replicated, and each rank's gradient of it knows only half of the positions.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from samestep.experiments.conformance.adapter import Clipping, Measurement, Proportion, Setting, Sharded, process_group
from samestep.experiments.conformance.frameworks.bigram_training import clipping
from samestep.experiments.conformance.reader import proportion
from samestep.experiments.conformance.scenarios import Kind, Scenario

WIDTH, POSITIONS, MAX_NORM = 8, 6, 0.05
SETTINGS = (
    Setting(
        "sequence_parallel",
        {"zh": "norm 用 SequenceParallel", "en": "norms by SequenceParallel"},
        {
            "zh": "norm 的权重是 DTensor，梯度记作 Partial(sum)：谁用到它，谁就先把各卡的部分加起来。",
            "en": "The norm's weight is a DTensor and its gradient a Partial(sum): whoever uses it adds the parts "
            "first.",
        },
        {"sequence": "full_batch", "sequence_clip": "true_norm"},
    ),
    Setting(
        "plain_norm",
        {"zh": "norm 留作普通模块", "en": "the norm left a plain module"},
        {
            "zh": "不在并行方案里的 norm 收到的是半条序列：各卡的梯度各是一部分，没有人把它们加起来。",
            "en": "A norm that the plan does not name is given half of the sequence: every rank has a part of its "
            "gradient, and nobody adds them.",
        },
        {"sequence": {"norm": None, "linear": 1.0}},
    ),
    Setting(
        "plain_norm_summed",
        {"zh": "norm 留作普通模块，再 all-reduce 求和", "en": "the norm a plain module, its gradient all-reduced"},
        {
            "zh": "手工补上那一步：SUM，而不是平均。",
            "en": "The missing step by hand: a sum, and not an average.",
        },
        {"sequence": "full_batch"},
    ),
    Setting(
        "local_mean",
        {"zh": "每张卡对自己的半条序列取均值", "en": "every rank takes the mean over its half of the sequence"},
        {
            "zh": "输出留在 Shard(1)，损失取本地均值：两半各除以一半的长度，加起来是两倍。",
            "en": "The output stays Shard(1) and the loss is a local mean: each half is divided by half the length, "
            "and their sum is twice the whole.",
        },
        {"sequence": {"norm": 2.0, "linear": 2.0}},
    ),
)


class Block(nn.Module):
    """The same weights each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)
        self.down = nn.Linear(2 * WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(self.norm(x))))
        return out


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """One backward on the sharded block, beside one on the whole block in this process."""
    process_group()
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(1)
    whole = torch.randn(1, POSITIONS, WIDTH, dtype=torch.float64)
    mine = whole.chunk(world_size, 1)[rank].contiguous()
    block, reference = parallel(setting, mesh), Block()
    loss(block(mine)).backward()  # type: ignore[no-untyped-call]
    loss(reference(whole)).backward()  # type: ignore[no-untyped-call]
    if setting == "plain_norm_summed":
        for parameter in block.norm.parameters():
            dist.all_reduce(_gradient(parameter))
    if scenario.kind is Kind.CLIPPING:
        return clipped(block, reference)
    measured = Sharded({name: _group(block, reference, parts) for name, parts in GROUPS.items()})
    # Rank 1 has another part of the norm's gradient than rank 0: that they differ is what this setting shows.
    return None if setting == "plain_norm" and rank else measured


GROUPS = {"norm": ("norm.weight", "norm.bias"), "linear": ("up.weight", "up.bias", "down.weight", "down.bias")}


def loss(out: Tensor) -> Tensor:
    """The mean over the positions that this rank has before it."""
    return out.square().sum(-1).mean()


def parallel(setting: str, mesh: DeviceMesh) -> Block:
    """The block by the plan of the setting: its output whole on every rank, or the rank's half."""
    block = Block()
    out = Shard(1) if setting == "local_mean" else Replicate()
    plan: dict[str, Any] = {
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=out),
    }
    if not setting.startswith("plain"):
        plan["norm"] = SequenceParallel()
    parallelize_module(block, mesh, plan)
    return block


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter of the block has no gradient")
    return parameter.grad


def _group(block: Block, reference: Block, names: tuple[str, ...]) -> Proportion:
    measured = torch.cat([_whole(_gradient(block.get_parameter(name))).flatten() for name in names])
    wanted = torch.cat([_gradient(reference.get_parameter(name)).flatten() for name in names])
    return Proportion(*proportion(measured, wanted))


def clipped(block: Block, reference: Block) -> Clipping:
    """Clip, step, and compare with the gradient of the block that is whole."""
    reported = nn.utils.clip_grad_norm_(block.parameters(), MAX_NORM)
    before = _flat(block)
    torch.optim.SGD(block.parameters(), lr=1.0).step()
    gradient = torch.cat([_gradient(parameter).flatten() for parameter in reference.parameters()])
    return clipping(gradient, before - _flat(block), MAX_NORM, float(_whole(reported)))


def _flat(block: Block) -> Tensor:
    return torch.cat([_whole(parameter.detach()).flatten() for parameter in block.parameters()]).clone()
