"""The programs of the chapters, as their readers copy them."""

import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests import warm

CONTENT = Path(__file__).parents[2] / "content"
CHAPTERS = (
    "10-gradient-scaling",
    "20-parallel-correctness",
    "30-infonce-derivatives",
    "40-collectives",
    "50-first-difference",
    "60-gradient-flip",
    "70-two-process-verification",
    "75-evaluation-over-ranks",
    "95-more-than-one-term",
    "110-update-and-stability",
    "120-mixed-precision-order",
    "130-sharding",
    "135-pipeline-and-mesh",
    "140-fsdp-lifecycle",
    "150-batch-noise",
    "155-reinforcement-learning",
    "160-finetuning-budget",
    "165-local-updates",
    "170-tiny-language-model",
    "900-sources-and-scope",
)
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATIENCE = 400
"""Seconds after which programs that start processes are ended."""


def chapter(lang: str, name: str) -> str:
    return (CONTENT / lang / f"{name}.md").read_text("utf-8")


def programs(name: str, lang: str = "en") -> list[str]:
    return _FENCE.findall(chapter(lang, name))


def output(code: str) -> str:
    """What a program of one process prints. One thread: several wait for each other on a busy machine."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "chapter", "exec"), {"__name__": "chapter"})
    return printed.getvalue()


@dataclass(frozen=True)
class Ran:
    """What a program printed, and the traceback that ended it, if one did."""

    out: str
    error: str


def run_together(folder: Path, named: Mapping[str, str]) -> dict[str, Ran]:
    """Run programs that start processes, in one process that has torch; nothing of them outlives this call."""
    for name, code in named.items():
        (folder / f"{name}.py").write_text(code, "utf-8")
    command = [sys.executable, str(Path(__file__).with_name("fork_programs.py")), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = warm.starter().Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        assert process.wait(_PATIENCE) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {name: Ran(text(folder / f"{name}.out"), text(folder / f"{name}.err")) for name in named}


def text(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""
