"""What two ranks get that do not call the same collective: chapter 40, on Gloo."""

from pathlib import Path

from tests.book_claims.chapter_programs import printed_by_processes

_PROGRAM = """
import os, sys, tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def work(rank, store):
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=3)
    )
    for place in range(2):
        value = torch.tensor([float("nan") if rank == place else 1.0])
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        say("maximum", place, rank, value.item())
    loss, count = torch.tensor([[6.0, 2.0], [4.0, 8.0]])[rank]
    for value in (loss, count) if rank == 0 else (count, loss):
        dist.all_reduce(value)
    say("order", rank, loss.item(), count.item())
    part = torch.full((3 - rank,), 1.0 + rank)
    try:
        dist.all_reduce(part)
        say("shape", rank, "returned", *part.tolist())
    except RuntimeError:
        say("shape", rank, "waited")
    os._exit(0)  # the group is broken: no farewell

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(f"{folder}/store",), nprocs=2)
"""


def test_other_orders_and_shapes_give_wrong_numbers_in_silence_and_a_maximum_loses_a_nan(tmp_path: Path) -> None:
    lines = printed_by_processes(_PROGRAM, tmp_path)
    assert [line for line in lines if line.startswith("maximum")] == [
        "maximum 0 0 nan",
        "maximum 0 1 nan",
        "maximum 1 0 1.0",
        "maximum 1 1 1.0",
    ]
    assert [line for line in lines if line.startswith("order")] == ["order 0 14.0 6.0", "order 1 6.0 14.0"]
    assert [line for line in lines if line.startswith("shape")] == ["shape 0 waited", "shape 1 returned 1.0 3.0"]
