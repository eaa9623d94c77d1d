"""FSDP2 as it comes: the same mean of means, over sharded parameters."""

import torch
import torch.distributed as dist
from common import Model, windows
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

dist.init_process_group("gloo")
model = Model()
fully_shard(model.block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for window in windows(dist.get_rank()):
    for k, (tokens, labels) in enumerate(window):
        model.set_requires_gradient_sync(k == len(window) - 1)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        (loss / len(window)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
