"""Rank 1 raises in its second update."""

import torch
import torch.distributed as dist
from common import loss, model

dist.init_process_group("gloo")
made = model()
generator = torch.Generator().manual_seed(dist.get_rank())


def update(number: int) -> None:
    value = loss(made, generator)
    if number == 1 and dist.get_rank() == 1:
        raise LookupError("the shard of rank 1 is missing")
    value.backward()
    for parameter in made.parameters():
        dist.all_reduce(parameter.grad)
    made.zero_grad()


for number in range(3):
    update(number)
