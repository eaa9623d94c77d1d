"""Wrong: no sampler, so every rank trains on the whole batch. The gradient is right, at P times the cost."""

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    (loss_sum(ddp, data) / ctx.global_count()).backward()
    optimizer.step()
