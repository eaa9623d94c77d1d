"""The loop of pytorch/torchtune's full_finetune_distributed, rebuilt from its structure (read at 015b39c7).

Losses times their own counts; gradients are multiplied by P / N after the last backward, when N is known.
"""

import torch
import torch.distributed as dist
from data import Model, samples
from torch.distributed.fsdp import fully_shard

STEPS = 3
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = Model()
fully_shard(model.block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer.zero_grad()
mine = samples()[rank::size]
count = torch.tensor(0)
for i in range(2 * STEPS):
    tokens, labels = (torch.stack([each[k] for each in mine[2 * i : 2 * i + 2]]) for k in (0, 1))
    here = (labels[:, 1:] != -100).sum()
    count += here
    (model(tokens, labels) * here).backward()
    if (i + 1) % STEPS == 0:
        dist.all_reduce(count)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= size / count
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        count = torch.tensor(0)
dist.destroy_process_group()
