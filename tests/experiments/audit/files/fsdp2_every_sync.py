"""Right, only slower: reduced after every microbatch."""

from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    shard(ctx, model, optimizer)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
