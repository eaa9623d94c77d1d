"""Right: a divide factor of 1 makes the reduction a sum, and so S/N instead of P·S/N."""

from sharded import shard
from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    root = shard(ctx, model, optimizer)
    for unit in (root, *root.children()):
        unit.set_gradient_divide_factor(1.0)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(batch is window[-1])
        (loss_sum(model, batch) / ctx.global_count()).backward()
    optimizer.step()
