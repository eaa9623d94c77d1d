"""Rank 1 never comes to the reduction that rank 0 waits in."""

import time

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    for batch in ctx.microbatches(data):
        if ctx.rank == 1:
            time.sleep(3600)
        loss_sum(ddp, batch).backward()
    optimizer.step()
