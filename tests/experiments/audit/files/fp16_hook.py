"""Wrong by rounding: torch's own hook sends the gradients in float16."""

from contextlib import nullcontext

from tokens import build, data, loss_sum, weights
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, fp16_compress_hook)
    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
