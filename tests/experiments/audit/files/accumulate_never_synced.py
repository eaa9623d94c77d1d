"""Wrong: no_sync covers the last microbatch too, so the ranks never meet."""

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    with ddp.no_sync():
        for batch in window:
            (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
