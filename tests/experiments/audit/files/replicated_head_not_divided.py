"""Wrong: the gradients of embedding and head are added up over the ranks but not divided, unlike the layer's."""

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
    optimizer.step()
