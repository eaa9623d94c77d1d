"""An adapter whose settings do what must not bring down the lab."""

import os
import time
from pathlib import Path

from samestep.experiments.conformance.adapter import Coefficients, Setting
from samestep.experiments.conformance.scenarios import Scenario

WORDS = {"zh": "测试", "en": "test"}
NAMES = ("good", "missing", "aborts", "hangs")
SETTINGS = tuple(Setting(name, WORDS, WORDS, {"A": "aborts" if name == "aborts" else "dropped"}) for name in NAMES)


def unavailable(setting: str) -> str | None:
    return "no such compiler" if setting == "missing" else None


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Coefficients:
    if setting == "aborts":
        meet(rank)  # as in a framework, the ranks come to an update together
        if rank == 1:
            os.abort()
    if setting in ("aborts", "hangs"):
        time.sleep(600)
    return Coefficients([[[0.0] * 2], [[0.0] * 8]], 0.0)


def meet(rank: int) -> None:
    """Wait for the other rank, without torch, whose import would cost more than all the rest."""
    Path(f"../met{rank}").touch()
    while not Path(f"../met{1 - rank}").exists():
        time.sleep(0.01)
