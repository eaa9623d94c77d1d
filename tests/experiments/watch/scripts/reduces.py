"""Sums of gradients over two ranks, each a mean: twice what it should be."""

import torch
import torch.distributed as dist
from common import loss, model

if __name__ == "__main__":
    dist.init_process_group("gloo")
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(2):
        loss(made, generator).backward()
        for parameter in made.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
