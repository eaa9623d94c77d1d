"""JAX in two processes that are one program: do the same functions of one global array give the same coefficients?

As on several hosts: every process has one CPU device, `jax.distributed` joins them, and the mesh goes over both. What
is measured are the functions of `jax`, as they are there.
"""

import os
from dataclasses import replace

import jax

from samestep.experiments.conformance.adapter import Measurement
from samestep.experiments.conformance.frameworks import jax as devices
from samestep.experiments.conformance.scenarios import Scenario

SETTINGS = tuple(replace(each, labels=()) for each in devices.SETTINGS if not each.id.startswith("pmap"))
"""Without pmap, which is given a process's own part and not a global array."""


def prepare() -> None:
    """Join the other process, before anything is computed."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{os.environ['MASTER_PORT']}", int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    )
    if (len(jax.devices()), len(jax.local_devices())) != (2, 1):
        raise RuntimeError(f"expected a device in each of two processes, found {jax.devices()}")


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    return devices.run(setting, scenario, rank, world_size)
