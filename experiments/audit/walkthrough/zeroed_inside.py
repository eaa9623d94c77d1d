"""Wrong: zero_grad() inside the loop, so that the last microbatch of every rank is all that is left."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.audit.walkthrough.global_count import build, data

__all__ = ["build", "data", "step"]


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    for batch in ctx.microbatches(data):
        optimizer.zero_grad()
        loss_sum = cross_entropy(ddp(batch["x"]), batch["y"], reduction="sum")
        (loss_sum * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
