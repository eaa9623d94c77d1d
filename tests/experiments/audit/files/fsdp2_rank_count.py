"""Wrong: each rank divides by its own valid tokens, and FSDP2 takes the mean of means over unequal counts."""

from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    root = shard(ctx, model, optimizer)
    window = ctx.microbatches(data)
    valid = sum(weights(batch).sum() for batch in window)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(batch is window[-1])
        (loss_sum(model, batch) / valid).backward()
    optimizer.step()
