"""Mixed precision: autocast, a gradient scaler, and clipping between `unscale_` and `step`.

The audit runs in float64, which autocast leaves alone. So it answers whether scaling, unscaling, clipping and the
decision to skip are right; how much bfloat16 rounds is another question, and `--dtype float32` begins to ask it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(24, 6, generator=generator), "y": torch.randn(24, 1, generator=generator)}


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler(ctx.device.type, init_scale=1024.0)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        with torch.autocast(ctx.device.type, dtype=torch.bfloat16):
            prediction = ddp(batch["x"])
        loss_sum = functional.mse_loss(prediction.to(batch["y"].dtype), batch["y"], reduction="sum")
        scaler.scale(loss_sum * ctx.world_size / ctx.global_count()).backward()

    # Clipping first would compare 1024 times the norm with the limit, and unscaling would then shrink the result.
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    # Skipped when a gradient is not finite. After DDP's reduction that is so on all ranks or on none; gradients
    # that are not yet reduced, or sharded, need one flag reduced over all ranks before the decision.
    scaler.step(optimizer)
    scaler.update()
