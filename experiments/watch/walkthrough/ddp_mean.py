"""DDP with accumulation: the mean loss of every microbatch, divided by the number of microbatches."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import Model, windows
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for window in windows(dist.get_rank()):
    for k, (tokens, labels) in enumerate(window):
        with nullcontext() if k == len(window) - 1 else model.no_sync():
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
            (loss / len(window)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
