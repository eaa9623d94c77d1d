"""The step of pytorch/torchtitan's train.py, rebuilt from its structure (read at 000204a4).

FSDP2 with a gradient reduced after every microbatch, losses divided by their number, an optimizer that contains others.
"""

from typing import Any

import torch
import torch.distributed as dist
from data import Model, samples
from torch.distributed.fsdp import fully_shard

STEPS = 3


class Optimizers(torch.optim.Optimizer):
    """Steps the optimizers of all parts of a model."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-3, foreach=True) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], {"lr": 1e-3})

    def step(self, *args: Any, **kwargs: Any) -> None:
        for each in self.optimizers:
            each.step(*args, **kwargs)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        for each in self.optimizers:
            each.zero_grad(*args, **kwargs)


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = Model()
fully_shard(model.block, reshard_after_forward=True)
fully_shard(model)
optimizers = Optimizers([model])
mine = iter(samples()[rank::size])
for _ in range(2):
    optimizers.zero_grad()
    for _ in range(STEPS):
        pair = [next(mine), next(mine)]
        loss = model(torch.stack([each[0] for each in pair]), torch.stack([each[1] for each in pair])) / STEPS
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizers.step()
dist.destroy_process_group()
