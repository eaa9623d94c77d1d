"""Wrong: every rank divides by its own samples, and the ranks have unequal numbers of them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.audit.walkthrough.global_count import build, data

__all__ = ["build", "data", "step"]


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    count = sum(len(batch["y"]) for batch in window)
    optimizer.zero_grad()
    for batch in window:
        loss_sum = cross_entropy(ddp(batch["x"]), batch["y"], reduction="sum")
        (loss_sum / count).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
