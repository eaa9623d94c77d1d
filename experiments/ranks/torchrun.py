"""The world that torchrun made, on one or several hosts: same experiments, any number of processes."""

import faulthandler
import os
import socket
import struct
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from samestep.app.evidence.bags import Json
from samestep.experiments.ranks.child import end
from samestep.experiments.ranks.world import World, enter


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


def leave(world: World, code: int) -> NoReturn:
    """End a rank that is done."""
    world.leave()
    end(code)


def fail(error: BaseException) -> NoReturn:
    """End a rank after an error: its own traceback, and no clean-up that could hang."""
    traceback.print_exception(error)
    end(1)


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
