"""Wrong: S/N alone, although DDP takes a mean over P ranks on top."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.audit.walkthrough.global_count import build, data

__all__ = ["build", "data", "step"]


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        loss_sum = cross_entropy(ddp(batch["x"]), batch["y"], reduction="sum")
        (loss_sum / ctx.global_count()).backward()
    optimizer.step()
