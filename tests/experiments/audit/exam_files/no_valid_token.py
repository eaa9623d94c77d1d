"""Proves nothing, and moves: no token of the window is valid, and AdamW decays the weights all the same."""

import torch
from small_network import SAMPLES, build_with, data, squares
from torch.nn.parallel import DistributedDataParallel

__all__ = ["build", "data", "step", "weights"]


def build():
    return build_with(torch.optim.AdamW, lr=0.1)


def weights(data):
    return torch.zeros(SAMPLES)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (0.0 * squares(ddp, batch) * ctx.world_size / max(ctx.global_count(), 1)).backward()
    optimizer.step()
