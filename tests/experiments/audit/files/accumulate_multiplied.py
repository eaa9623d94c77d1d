"""Wrong: written for a library that divides every backward by the number of microbatches. Nothing divides here."""

from contextlib import nullcontext

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count() * len(window)).backward()
    optimizer.step()
