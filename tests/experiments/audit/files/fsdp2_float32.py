"""Wrong by rounding: MixedPrecisionPolicy reduces the gradients in float32."""

import torch
from sharded import shard
from tokens import build, data, loss_sum, weights
from torch.distributed.fsdp import MixedPrecisionPolicy


def step(ctx, model, optimizer, data):
    shard(ctx, model, optimizer, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()


def reference(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    optimizer.step()
