"""What the ranks of `test_processes.py` run: `world.options["do"]` says which of the functions below."""

import os
import signal
import time
from typing import cast

import torch
import torch.distributed as dist

from samestep.app.evidence.bags import Result
from samestep.experiments.ranks.world import World


def run(world: World) -> Result | None:
    return {
        "add": add,
        "loop": loop,
        "stick": stick,
        "raise": fail,
        "leave": leave,
    }[cast(str, world.options["do"])](world)


def add(world: World) -> Result | None:
    """Reduce over all ranks, over the first two, and gather."""
    total = torch.tensor(float(world.rank + 1))
    dist.all_reduce(total)
    pair = world.first(2)
    part = torch.tensor(float(world.rank + 1))
    if pair is not None:
        dist.all_reduce(part, group=pair)
    found = world.gather((float(total), float(part), str(torch.get_default_dtype())))
    return cast(Result, {"name": "lab_ranks", "found": found}) if world.rank == 0 else None


def loop(world: World) -> None:
    """Communicate for ever; the step names the process, so that a test can kill or stop it, and its threads."""
    world.step(f"pid {os.getpid()} threads {torch.get_num_threads()}")
    while True:
        dist.all_reduce(torch.ones(1))
        world.step("loop")
        time.sleep(0.05)


def stick(world: World) -> None:
    """Rank 1 never comes to the collective that rank 0 waits in."""
    world.step("the step that hangs")
    if world.rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


def fail(world: World) -> None:
    world.step("the step that raises")
    if world.rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.all_reduce(torch.ones(1))


def leave(world: World) -> None:
    """Rank 1 aborts as C++ code does, without a Python exception."""
    world.step("the step that aborts")
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGABRT)
    dist.all_reduce(torch.ones(1))
