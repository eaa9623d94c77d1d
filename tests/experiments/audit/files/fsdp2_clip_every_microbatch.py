"""Wrong: clipped inside the window, where the gradient is not yet complete."""

from sharded import shard
from tokens import build, data, loss_sum, weights
from torch import nn


def step(ctx, model, optimizer, data):
    shard(ctx, model, optimizer)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
