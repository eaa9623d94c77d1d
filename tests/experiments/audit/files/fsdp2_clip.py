"""Right: clip_grad_norm_ finds the norm of the whole gradient, though each rank holds a part of it."""

from sharded import shard
from tokens import build, data, loss_sum, weights
from torch import nn


def step(ctx, model, optimizer, data):
    root = shard(ctx, model, optimizer)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(batch is window[-1])
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
