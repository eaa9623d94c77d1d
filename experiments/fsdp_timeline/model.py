"""A model of one-dimensional layers with a head that belongs to the root, cut by `fully_shard`."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from samestep.experiments.fsdp_timeline.cases import Body


class Layer(nn.Module):
    """Scales its input by the sum of its parameters; its activation is one number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1 / size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.sum()


class Model(nn.Module):
    """Layers, and a head that belongs to the root."""

    def __init__(self, layers: Iterable[int], head: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size) for size in layers)
        self.head = nn.Parameter(torch.full((head,), 1 / head)) if head else None

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else x * self.head.sum()


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, foreach=False),
}


def sharded(body: Body, mesh: DeviceMesh) -> Any:
    """The model, cut as the body says: every layer a group, the rest the root's."""
    model: Any = Model(body["parameters"], body["root_parameters"]).to(DTYPES[body["sharded_dtype"]])
    policy = MixedPrecisionPolicy(DTYPES[body["param_dtype"]], DTYPES[body["reduce_dtype"]])
    layers = list(model.layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=body["reshard_after_forward"], mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if body["prefetch"] == "off":
        for module in [*layers, model]:
            module.set_modules_to_backward_prefetch([module])
    if body["prefetch"] == "both":
        for layer, following in pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
    return model
