"""Two microbatches whose means are added up: twice what it should be."""

import torch
from common import loss, model

if __name__ == "__main__":
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for _ in range(2):
            loss(made, generator).backward()
        optimizer.step()
        optimizer.zero_grad()
