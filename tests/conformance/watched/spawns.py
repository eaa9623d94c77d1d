"""Makes its ranks itself, joins late, and leaves before the last step."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from data import Model, samples


def main(rank: int, size: int, place: str) -> None:
    made = Model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    data = samples()
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{place}")
    for number in range(2):
        optimizer.zero_grad()
        tokens, labels = data[2 * number + rank]
        made(tokens[None], labels[None]).backward()
        for parameter in made.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        if number == 1:
            dist.destroy_process_group()
        optimizer.step()


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    assert sys.argv[1:] == ["--lr", "0.1"], sys.argv
    mp.spawn(main, (2, os.path.join(folder, "rendezvous")), nprocs=2)
