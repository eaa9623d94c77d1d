"""Wrong: every rank compares the norm of its own shards with the limit."""

import torch
from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    shard(ctx, model, optimizer)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    shards = [parameter.grad.to_local() for parameter in model.parameters()]
    square = sum((part**2).sum() for part in shards)
    norm = square.sqrt()
    ctx.note("norm", norm)
    for part in shards:
        part *= torch.clamp(0.1 / norm, max=1.0)
    optimizer.step()
