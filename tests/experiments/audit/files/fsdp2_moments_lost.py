"""Wrong: sharding replaces the parameters, and the optimizer begins afresh, without the restored moments."""

from fsdp2_moments_kept import build, data, reference, weights
from sharded import shard
from tokens import loss_sum


def step(ctx, model, optimizer, data):
    shard(ctx, model, optimizer)
    optimizer.state.clear()
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
