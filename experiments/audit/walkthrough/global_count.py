"""Right: every microbatch adds P·S/N, and the mean that DDP takes over P ranks makes it S/N."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def data() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(60, 5), "y": torch.randint(3, (60,))}


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        loss_sum = cross_entropy(ddp(batch["x"]), batch["y"], reduction="sum")
        (loss_sum * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
