"""Wrong: S/N, divided once more by the number of microbatches and, inside DDP, by the number of ranks."""

from contextlib import nullcontext

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            (loss_sum(ddp, batch) / ctx.global_count() / len(window)).backward()
    optimizer.step()
