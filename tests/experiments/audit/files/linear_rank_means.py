"""Wrong on unequal ranks: each takes the mean over its own samples."""

from linear import build, data, loss_sum
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    (share,) = ctx.microbatches(data)
    optimizer.zero_grad()
    (loss_sum(ddp, share) / len(share["x"])).backward()
    optimizer.step()
