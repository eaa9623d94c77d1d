"""Build DDP, use it and leave the process group, many times over, without a hang: on demand, not part of the tests.

    python tests/experiments/teardown.py [TIMES]

Two processes make TIMES (100) process groups one after another. Noted: five runs of 100, no hang, 27 to 57 s each on
two busy cores (torch 2.13.0). Destroying the group while the DDP object lives hangs about one time in five.
"""

import gc
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from samestep.experiments.ranks.launch import Job, Step, launch, workplace  # noqa: E402
from samestep.experiments.ranks.world import World  # noqa: E402


def run(world: World) -> None:
    """What each rank does: one world after another, each met at a file of its own."""
    import torch.distributed as dist

    times = int(str(world.options["times"]))
    for k in range(times):
        dist.destroy_process_group()
        address = (world.folder / f"again{k}").as_uri()
        dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)
        once()
        gc.collect()
        world.step("teardown", (k + 1) / times)
    assert dist.group.WORLD is not None
    world.control = dist.group.WORLD


def once() -> float:
    """A DDP object that is gone when this returns."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    replica = DistributedDataParallel(torch.nn.Linear(64, 64))
    torch.autograd.backward(replica(torch.ones(4, 64)).sum())
    return float(sum(p.grad.abs().sum() for p in replica.parameters() if p.grad is not None))


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    os.environ["PYTHONPATH"] = str(HERE)
    began, done = time.monotonic(), {0: 0.0, 1: 0.0}

    def watch(step: Step) -> None:
        done[step.rank] = max(done[step.rank], step.done or 0.0)

    with workplace() as folder:
        launch(Job(["teardown"], 2, options={"times": times}), folder, watch)
    assert done == {0: 1.0, 1: 1.0}
    print(f"{times} of {times} teardowns in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
