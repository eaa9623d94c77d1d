"""DDP with accumulation: the summed loss times P / N, with N the labels of all ranks and microbatches."""

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
    total = torch.stack([(labels != -100).sum() for _, labels in window]).sum()
    dist.all_reduce(total)
    for k, (tokens, labels) in enumerate(window):
        with nullcontext() if k == len(window) - 1 else model.no_sync():
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum")
            (loss * dist.get_world_size() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
