"""Wrong: sharded towers, and the other ranks' documents come without a gradient."""

from gather import gather_detached
from pairs import build, data, infonce_sum, offset, share
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def step(ctx, model, optimizer, data):
    fully_shard(model, mesh=init_device_mesh(ctx.device.type, (ctx.world_size,)))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.zero_grad()
    q, d = model(**share(ctx, data))
    first, total = offset(ctx, d)
    documents = gather_detached(d, first, total)
    documents[first : first + len(d)] = d  # the own ones keep theirs
    (infonce_sum(q, documents, first) * ctx.world_size / total).backward()
    optimizer.step()
