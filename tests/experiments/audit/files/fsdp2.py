"""Right: FSDP2's reduce-scatter takes the mean over P ranks, so every microbatch adds P·S/N."""

from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    root = shard(ctx, model, optimizer)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(batch is window[-1])
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
