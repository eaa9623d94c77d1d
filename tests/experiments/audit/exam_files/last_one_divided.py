"""Wrong: only the last microbatch's loss is divided by K on top. Nothing counts more than once."""

import torch
from small_network import build_with, data, squares
from torch.nn.parallel import DistributedDataParallel

__all__ = ["build", "data", "step"]


def build():
    return build_with(torch.optim.SGD, lr=0.1)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    batches = ctx.microbatches(data)
    for k, batch in enumerate(batches):
        loss = squares(ddp, batch) * ctx.world_size / ctx.global_count()
        (loss / len(batches) if k == len(batches) - 1 else loss).backward()
    optimizer.step()
