"""Right: P·S/N, then the clip."""

from linear import build, clip, data, loss_sum
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    ctx.note("norm", model.weight.grad.norm())
    clip(model, 1.0)
    optimizer.step()
