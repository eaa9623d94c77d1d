"""Right: a communication hook that adds without dividing, and so S/N instead of P·S/N."""

from contextlib import nullcontext

import torch.distributed as dist
from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def add(group, bucket):
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda sent: sent.value()[0])


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, add)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            (loss_sum(ddp, batch) / ctx.global_count()).backward()
    optimizer.step()
