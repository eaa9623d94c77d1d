"""Right: every query meets the documents of all ranks, and each document's gradient comes home from all of them."""

from gather import GatherRows
from pairs import build, data, infonce_sum, offset, share
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    q, d = ddp(**share(ctx, data))
    first, total = offset(ctx, d)
    documents = GatherRows.apply(d, first, total)
    (infonce_sum(q, documents, first) * ctx.world_size / total).backward()
    optimizer.step()
