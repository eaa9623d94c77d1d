"""Wrong: a penalty on the weights is added in every microbatch."""

import torch
from small_network import SAMPLES, build_with, data, squares
from torch.nn.parallel import DistributedDataParallel

__all__ = ["build", "data", "step"]


def build():
    return build_with(torch.optim.SGD, lr=0.1)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        penalty = 0.01 * sum(parameter.square().sum() for parameter in model.parameters())
        (squares(ddp, batch) * ctx.world_size / SAMPLES + penalty).backward()
    optimizer.step()
