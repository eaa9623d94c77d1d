"""Wrong by rounding only: FSDP2 computes in float32, and each term of the gradient is rounded, not the gradient."""

import torch
from small_network import build_with, data, squares
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

__all__ = ["build", "data", "reference", "step"]


def build():
    return build_with(torch.optim.SGD, lr=0.1)


def reference(ctx, model, optimizer, data):
    (squares(model, data) / ctx.global_count()).backward()
    optimizer.step()


def step(ctx, model, optimizer, data):
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in ctx.microbatches(data):
        (squares(model, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
