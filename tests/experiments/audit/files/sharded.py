"""FSDP2: shard a model, and give its optimizer the sharded parameters."""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard(ctx, model, optimizer, **options):
    """Every child with parameters is one unit, what remains is the root's; returns the root."""
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    for child in model.children():
        fully_shard(child, mesh=mesh, **options)
    root = fully_shard(model, mesh=mesh, **options)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    return root
