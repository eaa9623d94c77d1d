"""Wrong: the loss is left as a sum over tokens, and DDP's mean divides it by P. The reference is the mean over all."""

from contextlib import nullcontext

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            loss_sum(ddp, batch).backward()
    optimizer.step()


def reference(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    optimizer.step()
