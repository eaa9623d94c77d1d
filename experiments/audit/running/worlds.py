"""The process groups of an audit: a world of one for the reference, the world of all ranks for the reader's step.

A group must not be destroyed while a DistributedDataParallel object is alive that is freed afterwards: its destructor
would wait for the interpreter's lock for ever. So what survives a collection is kept until the process ends.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import destroy_process_group, init_process_group  # before the taps replace them
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")

_survivors: list[DistributedDataParallel] = []


def prepare(dtype: str, backend: str, rank: int) -> torch.device:
    """Fix everything that could change a number; returns the device of this rank."""
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, dtype))
    torch.use_deterministic_algorithms(True, warn_only=True)
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    return device


@contextmanager
def of_one(backend: str) -> Iterator[None]:
    """A process group with one member: wrappers and collectives work, and change nothing."""
    init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        leave()


class World:
    """All ranks, and a group of our own beside the reader's."""

    def __init__(self, backend: str, address: str, rank: int, size: int, timeout: timedelta) -> None:
        init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=timeout)
        self.rank, self.size = rank, size
        self._control = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout))

    def gather(self, value: Value) -> list[Value]:
        """Everybody's value, in rank order, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._control)
        return values


def leave() -> None:
    """Destroy the groups that there are."""
    gc.collect()
    alive = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    _survivors.extend(alive)
    destroy_process_group()


def rendezvous(folder: Path) -> str:
    """The address by which processes that share this fresh folder find each other."""
    return (folder / "rendezvous").as_uri()
