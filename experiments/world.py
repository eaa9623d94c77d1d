"""A rank's side of a run: its place among the others, its signs of life, and a safe end.

`python -m experiments.world` is what `experiments.processes` starts. Under `torchrun`, on one or several hosts, the
command line calls `join()` instead and enters the world that is there: same experiments, any number of processes.

An experiment is a module with `run(world) -> Result | None`: every rank calls it, rank 0 answers with the result.
Whoever builds a DistributedDataParallel object must do so in a function that returns plain tensors: while such an
object is alive, `destroy_process_group()` can wait for ever (its destructor needs the interpreter's lock).
"""

import ctypes
import faulthandler
import gc
import io
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from samestep.app.evidence.bags import Json, Result

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

GROUP_TIMEOUT = timedelta(seconds=60)
BARRIER_TIMEOUT = timedelta(seconds=55)
HEARTBEAT = 0.5

Value = TypeVar("Value")
Tell = Callable[[str, float | None], None]


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
        result = import_module(name).run(world)
        gc.collect()
        if result is not None:
            place = world.folder / result["name"] / "result.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(result, ensure_ascii=False, allow_nan=False, indent=1) + "\n", "utf-8")
            results.append(cast(Result, result))
    world.meet()
    return results


def collectives(group: "dist.ProcessGroup") -> int:
    """How many collectives this rank has issued in the group so far: proof that something was communicated."""
    return int(cast(Any, group)._get_sequence_number_for_group())


def leave(world: World, code: int) -> NoReturn:
    """End this process without waiting for anything that may never come."""
    import torch.distributed as dist

    world._groups.clear()
    gc.collect()
    dist.destroy_process_group()
    _exit(code)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def joined() -> int:
    """How many processes torchrun (or anything that sets the same variables) started; 0 when nobody did."""
    given = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if given else 0


def join(folder: Path, backend: str, options: Mapping[str, Json]) -> World:
    """Enter the world that torchrun made; rank 0 prints the steps."""
    faulthandler.enable()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := _interface_towards(os.environ["MASTER_ADDR"])):
        os.environ["GLOO_SOCKET_IFNAME"] = interface

    def tell(what: str, done: float | None) -> None:
        if rank == 0 and done is None:
            print(f"· {what}", flush=True)

    return enter(rank, size, "env://", folder, tell, backend=backend, options=options, asked=size)


def fail(error: BaseException) -> NoReturn:
    """End a rank after an error: its own traceback, and no clean-up that could hang."""
    traceback.print_exception(error)
    _exit(1)


def _interface_towards(address: str) -> str | None:
    """The network interface by which this host reaches `address`; None where that cannot be told.

    Gloo otherwise takes the one that the host's own name resolves to, often the loopback, and two hosts never meet.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if answer[20:24] == own:
                return name
    return None


def main() -> NoReturn:
    """Be rank RANK of SIZE: `python -m experiments.world FOLDER RANK SIZE PIPE PARENT`."""
    folder, (rank, size, pipe, parent) = Path(sys.argv[1]), map(int, sys.argv[2:])
    _die_with(parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    threading.Thread(target=_beat, args=(pipe,), daemon=True).start()

    def tell(what: str, done: float | None) -> None:
        _send(pipe, {"step": what, "done": done})

    job = json.loads((folder / "job.json").read_text("utf-8"))
    try:
        address = (folder / "rendezvous").as_uri()
        world = enter(
            rank, size, address, folder, tell, backend=job["backend"], options=job["options"], asked=job["asked"]
        )
        perform(world, job["modules"])
    except BaseException as error:
        _send(pipe, {"failed": f"{type(error).__name__}: {str(error)[:300]}", "at": time.monotonic()})
        fail(error)
    leave(world, 0)


def _send(pipe: int, message: Mapping[str, Json]) -> None:
    os.write(pipe, json.dumps(message).encode() + b"\n")


def _beat(pipe: int) -> None:
    while True:
        try:
            _send(pipe, {})
        except OSError:  # nobody reads any more: the parent is gone
            os._exit(1)
        time.sleep(HEARTBEAT)


def _die_with(parent: int) -> None:
    """Linux kills this process with its parent, even while it is stopped; elsewhere the heartbeat notices."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
