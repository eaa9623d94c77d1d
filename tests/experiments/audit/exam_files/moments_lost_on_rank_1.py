"""Wrong: rank 1 has not loaded the optimizer's state."""

import torch
from small_network import build_with, data, squares
from torch.nn.parallel import DistributedDataParallel

__all__ = ["build", "data", "step"]


def build():
    model, optimizer = build_with(torch.optim.Adam, lr=0.01)
    squares(model, data()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    if ctx.rank == 1:
        optimizer.state.clear()
    for batch in ctx.microbatches(data):
        (squares(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
