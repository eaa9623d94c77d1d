"""Tensor parallel with sequence-parallel norms, by torch's own DTensor: two data ranks of two tensor-parallel ranks."""

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from samestep.app.calculators.mesh_ledger.mesh import Mesh, factors
from samestep.experiments.mesh.measuring import Found, Way, added

AXES = Mesh(dp=2, fsdp=1, cp=1, tp=2, pp=1, ep=1, sequence_parallel=True, loss="local_mean")
TOKENS, WIDTH, HIDDEN = 6, 4, 8
_SAID = {name: float(factor) for name, (_, factor, _) in factors(AXES).items()}
WAYS: dict[str, Way] = {
    "dense_right": Way({"zh": "矩阵：沿 dp 相加，除以 R", "en": "matrix: added over dp, divided by R"}, 1),
    "dense_summed": Way({"zh": "矩阵：只求和", "en": "matrix: summed only"}, _SAID["dense_summed"]),
    "norm_right": Way({"zh": "归一化：也沿 tp 相加", "en": "norm: added over tp too"}, 1),
    "norm_averaged_over_tp": Way(
        {"zh": "归一化：沿 tp 取平均", "en": "norm: averaged over tp"}, _SAID["norm_averaged_over_tp"]
    ),
    "norm_not_reduced_over_tp": Way({"zh": "归一化：没有沿 tp 归约", "en": "norm: not reduced over tp"}, None),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        nn.init.normal_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(torch.tanh(self.up(self.norm(x)))))


def sequences() -> Tensor:
    return torch.randn(AXES.dp, 1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(6))


def measure() -> dict[str, Found]:
    """Every way on this rank; the world has four ranks."""
    mesh = init_device_mesh("cpu", (AXES.dp, AXES.tp), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    whole, own = Block(), Block()
    torch.autograd.backward(whole(sequences().flatten(0, 1)).square().mean())
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    inputs = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
    parallelize_module(own, mesh["tp"], {"": inputs, **plan})
    torch.autograd.backward(own(sequences()[mesh.get_local_rank("dp")]).square().mean())

    cut, norm = cast(DTensor, own.up.weight.grad), cast(DTensor, own.norm.weight.grad)
    matrix = added(cut.to_local(), dp)
    part = added(norm.to_local(), dp) / AXES.divisor
    right = cast(Tensor, whole.up.weight.grad).chunk(AXES.tp)[dist.get_rank(tp)]
    scale = cast(Tensor, whole.norm.weight.grad)
    return {
        "dense_right": Found(matrix / AXES.divisor, right),
        "dense_summed": Found(matrix, right),
        "norm_right": Found(added(part, tp), scale),
        "norm_averaged_over_tp": Found(added(part, tp) / AXES.tp, scale),
        "norm_not_reduced_over_tp": Found(part, scale),
    }
