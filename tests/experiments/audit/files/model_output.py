"""Right: a model that computes its own loss, in the manner of transformers, and is told how many tokens there are."""

from collections import OrderedDict

import torch
from tokens import LanguageModel, data, weights
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class WithLoss(LanguageModel):
    def forward(self, tokens, labels, num_items_in_batch=None):
        logits = super().forward(tokens)
        if num_items_in_batch is None:
            loss = functional.cross_entropy(logits, labels.flatten())
        else:
            loss = functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch
        return OrderedDict(loss=loss, logits=logits)


def build():
    torch.manual_seed(0)
    model = WithLoss()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(ctx, model, optimizer, data):
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        output = ddp(**batch, num_items_in_batch=ctx.global_count())
        (output["loss"] * ctx.world_size).backward()
    optimizer.step()
