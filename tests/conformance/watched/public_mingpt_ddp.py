"""The step of pytorch/examples' distributed/minGPT-ddp, rebuilt from its structure (read at 1b36393d).

With `amp` the gradient is clipped before the scaler takes its scale out again.
"""

import sys

import torch
import torch.distributed as dist
from data import Model, samples
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

use_amp = "amp" in sys.argv
dist.init_process_group("gloo")
data = samples()
loader = DataLoader(data, batch_size=2, shuffle=False, sampler=DistributedSampler(data))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
model = DistributedDataParallel(model)
loader.sampler.set_epoch(1)
for tokens, labels in loader:
    loss = model(tokens, labels)
    optimizer.zero_grad(set_to_none=True)
    if use_amp:
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
dist.destroy_process_group()
