"""The loop of karpathy/nanoGPT's train.py, rebuilt from its structure (read at 005475c4).

`require_backward_grad_sync` is set by hand, the same loss scaler is used whether it is enabled or not.
"""

import torch
import torch.distributed as dist
from data import Model, samples
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
data, place = samples()[rank::size], 0


def next_batch() -> tuple[torch.Tensor, torch.Tensor]:
    global place
    chosen = [data[(place + i) % len(data)] for i in range(2)]
    place += 2
    return torch.stack([tokens for tokens, _ in chosen]), torch.stack([labels for _, labels in chosen])


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
x, y = next_batch()
for _ in range(2):
    for micro_step in range(STEPS):
        model.require_backward_grad_sync = micro_step == STEPS - 1
        loss = model(x, y) / STEPS
        x, y = next_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
