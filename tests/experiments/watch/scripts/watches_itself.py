"""A script that nobody starts for us: the block is watched, and the clip that it had imported by name is seen."""

import sys

import torch
from common import loss, model
from torch.nn.utils import clip_grad_norm_

from samestep import watch

made = model()
optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(0)
with watch(updates=2, quiet=True, json=sys.argv[1]) as watching:
    for _ in range(4):
        for size in (8, 12):
            (loss(made, generator, size) * size / 20).backward()
        clip_grad_norm_(made.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
assert watching.report is not None
sys.exit(watching.report.code)
