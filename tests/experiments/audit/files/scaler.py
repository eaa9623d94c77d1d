"""Right: unscaled, then clipped, then stepped. The reference is the update without any scaling."""

import torch
from tokens import build, data, loss_sum, weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        scaler.scale(loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()


def reference(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
