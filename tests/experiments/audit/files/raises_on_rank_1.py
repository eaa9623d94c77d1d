"""Rank 1 raises in the middle of the window, while rank 0 goes on."""

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    for batch in ctx.microbatches(data):
        if ctx.rank == 1:
            raise LookupError("the shard of rank 1 is missing")
        loss_sum(ddp, batch).backward()
    optimizer.step()
