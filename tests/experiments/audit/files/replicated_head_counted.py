"""Wrong: the copies of embedding and head are added up over the ranks as if they were shards."""

import torch
import torch.distributed as dist
from tokens import build, data, loss_sum, weights
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def step(ctx, model, optimizer, data):
    fully_shard(model.layer, mesh=init_device_mesh(ctx.device.type, (ctx.world_size,)))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    copied = [*model.embedding.parameters(), *model.head.parameters()]
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) * ctx.world_size / ctx.global_count()).backward()
    for parameter in copied:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ctx.world_size

    shards = [parameter.grad.to_local() for parameter in model.layer.parameters()]
    copies = [parameter.grad for parameter in copied]
    square = sum((part**2).sum() for part in shards + copies)
    dist.all_reduce(square)
    norm = square.sqrt()
    ctx.note("norm", norm)
    for part in shards + copies:
        part *= torch.clamp(0.1 / norm, max=1.0)
    optimizer.step()
