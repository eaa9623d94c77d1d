"""What an experiment knows of its run: its place among the ranks, its group, its options, and what all may ask of all.

An experiment is a module with `run(world) -> Result | None`: every rank calls it, rank 0 answers with the result.
Whoever builds a DistributedDataParallel object must do so in a function that returns plain tensors: while such an
object is alive, `destroy_process_group()` can wait for ever (its destructor needs the interpreter's lock).
"""

import gc
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from samestep.app.evidence.bags import Json, Result
from samestep.experiments.ranks import Tell
from samestep.experiments.results import write

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

GROUP_TIMEOUT = timedelta(seconds=60)
BARRIER_TIMEOUT = timedelta(seconds=55)

Value = TypeVar("Value")


@dataclass
class World:
    """What an experiment knows of its run. Results and files go to `folder/NAME/`."""

    rank: int
    size: int
    device: "torch.device"
    folder: Path
    options: Mapping[str, Json]
    tell: Tell
    control: "dist.ProcessGroup"
    asked: int | None
    _groups: dict[int, "dist.ProcessGroup"] = field(default_factory=dict)

    def processes(self, usual: int) -> int:
        """How many ranks an experiment is to use: as many as were asked for, else as many as it usually takes."""
        return self.asked or min(usual, self.size)

    def step(self, what: str, done: float | None = None) -> None:
        """Say what comes next, and how much is done (0 to 1) where that is known."""
        self.tell(what, done)

    def first(self, count: int) -> "dist.ProcessGroup | None":
        """The group of the first `count` ranks, None on a rank outside it. Every rank of the world must call this."""
        import torch.distributed as dist

        if count not in self._groups:
            self._groups[count] = cast("dist.ProcessGroup", dist.new_group(range(count), timeout=GROUP_TIMEOUT))
        return self._groups[count] if self.rank < count else None

    def meet(self) -> None:
        """Wait for all ranks; when one does not come, the error names it."""
        import torch.distributed as dist

        dist.monitored_barrier(group=self.control, timeout=BARRIER_TIMEOUT, wait_all_ranks=True)

    def gather(self, value: Value) -> list[Value]:
        """Everybody's value, in rank order, on every rank; tensors in it arrive on the CPU."""
        import torch
        import torch.distributed as dist

        packed = io.BytesIO()
        torch.save(value, packed)
        parcels: list[bytes] = [b""] * self.size
        dist.all_gather_object(parcels, packed.getvalue(), group=self.control)
        return [torch.load(io.BytesIO(parcel), map_location="cpu", weights_only=False) for parcel in parcels]

    def leave(self) -> None:
        """Part from the others; the last thing that a rank does."""
        import torch.distributed as dist

        self._groups.clear()
        gc.collect()
        dist.destroy_process_group()


def enter(
    rank: int,
    size: int,
    address: str,
    folder: Path,
    tell: Tell,
    *,
    backend: str,
    options: Mapping[str, Json],
    asked: int | None,
) -> World:
    """Join the process group at `address` (`file://…` or `env://`) with everything fixed that could change a number."""
    tell("import torch", None)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    tell("meet the other ranks", None)
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=GROUP_TIMEOUT)
    everybody = cast("dist.ProcessGroup", dist.group.WORLD)
    control = everybody if backend == "gloo" else dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    control = cast("dist.ProcessGroup", control)
    return World(rank, size, device, folder, options, tell, control, asked, {size: everybody})


def perform(world: World, modules: Sequence[str]) -> list[Result]:
    """Run the experiments in turn; rank 0 writes each result and gets them all, the others get none."""
    results = []
    for name in modules:
        world.meet()
        result: Result | None = import_module(name).run(world)
        gc.collect()
        if result is not None:
            write(result, world.folder)
            results.append(result)
    world.meet()
    return results


def collectives(group: "dist.ProcessGroup") -> int:
    """How many collectives this rank has issued in the group so far: proof that something was communicated."""
    return int(cast(Any, group)._get_sequence_number_for_group())
