"""Rank 1 is killed, as the kernel does when memory runs out."""

import os
import signal

from tokens import build, data, loss_sum, weights
from torch.nn.parallel import DistributedDataParallel


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for batch in ctx.microbatches(data):
        loss_sum(ddp, batch).backward()
    optimizer.step()
