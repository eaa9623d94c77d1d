"""Right: an embedding with sparse gradients."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build():
    torch.manual_seed(13)
    model = nn.Sequential(nn.EmbeddingBag(30, 4, sparse=True), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def data():
    generator = torch.Generator().manual_seed(14)
    return {"words": torch.randint(0, 30, (24, 3), generator=generator)}


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (ddp(batch["words"]).square().sum() * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
