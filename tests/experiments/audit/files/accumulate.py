"""Right: every microbatch adds P·S/N, and DDP's mean over P ranks makes it S/N."""

from contextlib import nullcontext

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
