"""Wrong: P·S/N was meant for FSDP2's mean, but a divide factor of 1 has made it a sum."""

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
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
