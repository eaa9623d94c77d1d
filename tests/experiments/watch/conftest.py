"""All training loops are run once, by two ranks that stay; what they wrote is judged test by test."""

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from samestep.experiments.watch.joined.assembling import assemble
from samestep.experiments.watch.telling.report import Report
from tests import warm

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / ".src"


def environment(**more: str) -> dict[str, str]:
    """Of a process that is to find this checkout."""
    path = os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def ranks(program: str, folder: Path, *arguments: str, processes: int = 2) -> None:
    """Run a program of this folder as torchrun would, and wait for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = []
    try:
        for rank in range(processes):
            variables = environment(**common, RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
            with (folder / f"rank{rank}.log").open("wb") as log:
                command = [sys.executable, str(HERE / program), str(folder), *arguments]
                running.append(warm.starter().Popen(command, env=variables, stdout=log, stderr=log))
        for rank, each in enumerate(running):
            assert each.wait(240) == 0, (folder / f"rank{rank}.log").read_text("utf-8")[-3000:]
    finally:
        for each in running:
            each.kill()
            each.wait()


@dataclass(frozen=True)
class Loops:
    """`report(name)`: of the watched run of a loop. `digests[rank][name]`: of what it ended with, plain and watched."""

    folder: Path
    digests: list[dict[str, dict[str, Any]]]
    report: Callable[..., Report]


@pytest.fixture(scope="session")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Loops:
    folder = tmp_path_factory.mktemp("loops")
    ranks("scenarios.py", folder)
    digests = [json.loads((folder / f"rank{rank}.json").read_text("utf-8")) for rank in range(2)]

    @cache
    def report(name: str, objective: str = "tokens") -> Report:
        return assemble(folder / name, objective)

    return Loops(folder, digests, report)
