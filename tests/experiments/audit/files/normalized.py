"""Right: LayerNorm looks at one sample at a time, so it does not matter who else is in the microbatch."""

import torch
from regression import data, loss_sum
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(layer=nn.LayerNorm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), layer(6), nn.Tanh(), nn.Linear(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
