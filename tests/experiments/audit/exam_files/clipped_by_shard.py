"""Wrong: a hand-written clip by the norm of the rank's own shards, and no ctx.note."""

import torch
from small_network import build_with, data, squares
from torch.distributed.fsdp import fully_shard

__all__ = ["build", "data", "step"]


def build():
    return build_with(torch.optim.SGD, lr=0.1)


def step(ctx, model, optimizer, data):
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in ctx.microbatches(data):
        (squares(model, batch) * ctx.world_size / ctx.global_count()).backward()
    shards = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = torch.stack([shard.square().sum() for shard in shards]).sum().sqrt()
    for shard in shards:
        shard.mul_(torch.clamp(0.01 / norm, max=1.0))
    optimizer.step()
