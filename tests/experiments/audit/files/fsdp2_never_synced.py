"""Wrong: gradient synchronisation is off and stays off, so no gradient ever reaches the sharded parameters."""

from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    root = shard(ctx, model, optimizer)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(False)
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()


def reference(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    optimizer.step()
