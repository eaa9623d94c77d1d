"""An adapter whose settings do what must not bring down the lab."""

import os
import time

import torch.distributed as dist

from samestep.experiments.conformance.adapter import Coefficients, Setting, process_group
from samestep.experiments.conformance.scenarios import Scenario

WORDS = {"zh": "测试", "en": "test"}
NAMES = ("good", "missing", "aborts", "hangs")
SETTINGS = tuple(Setting(name, WORDS, WORDS, {"A": "aborts" if name == "aborts" else "dropped"}) for name in NAMES)


def unavailable(setting: str) -> str | None:
    return "no such compiler" if setting == "missing" else None


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Coefficients:
    if setting == "aborts":
        process_group()
        dist.barrier()  # as in a framework, the ranks come to an update together
        if rank == 1:
            os.abort()
    if setting in ("aborts", "hangs"):
        time.sleep(600)
    return Coefficients([[[0.0] * 2], [[0.0] * 8]], 0.0)
