"""Wrong: accumulation, in which every query meets only the documents of its own microbatch."""

from pairs import build, data, infonce_sum
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        q, d = ddp(**batch)
        (infonce_sum(q, d, 0) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
