"""Right: sharding replaces the parameters, and the moments move over to the new ones."""

from restored import build
from sharded import shard
from tokens import data, loss_sum, weights
from torch.distributed.tensor import distribute_tensor


def step(ctx, model, optimizer, data):
    old = dict(model.named_parameters())
    shard(ctx, model, optimizer)
    for name, new in model.named_parameters():
        moments = optimizer.state.pop(old[name])
        for key in ("exp_avg", "exp_avg_sq"):
            moments[key] = distribute_tensor(moments[key], new.device_mesh, new.placements)
        optimizer.state[new] = moments

    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()


def reference(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    optimizer.step()
