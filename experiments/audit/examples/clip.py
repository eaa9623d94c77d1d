"""Clipping by the global norm, once for each update: after the gradients are complete, before the optimizer."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

MAX_NORM = 0.1  # small enough to clip: a limit that is never reached would prove nothing


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(24, 6, generator=generator), "y": torch.randn(24, 1, generator=generator)}


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            loss_sum = functional.mse_loss(ddp(batch["x"]), batch["y"], reduction="sum")
            (loss_sum * ctx.world_size / ctx.global_count()).backward()

    # DDP leaves the same gradient on every rank, so each rank finds the same norm without communication: summing
    # the squares over ranks would count every parameter P times. Sharded gradients are the other way round, which
    # is why clip_grad_norm_ knows FSDP2's. A norm computed by hand is compared when you ctx.note("norm", norm).
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
