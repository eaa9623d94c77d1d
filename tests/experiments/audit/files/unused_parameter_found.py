"""Right: a branch that no rank uses in this step, and DDP is told to look for such parameters."""

import torch
from tokens import LanguageModel, data, loss_sum, weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class WithSpareBranch(LanguageModel):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)


def build():
    torch.manual_seed(0)
    model = WithSpareBranch()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(ddp, batch) * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
