"""One process that trains until somebody ends it."""

import time

import torch
from common import loss, model

made = model()
optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(0)
while True:
    optimizer.zero_grad()
    loss(made, generator).backward()
    optimizer.step()
    time.sleep(0.05)
