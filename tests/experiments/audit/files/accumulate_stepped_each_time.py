"""Wrong: the optimizer steps after every microbatch, inside the window."""

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
        optimizer.step()
        optimizer.zero_grad()
