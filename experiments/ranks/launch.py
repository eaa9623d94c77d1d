"""Run experiments in P processes of this machine: no launcher and no port, they find each other through a file.

Every rank gives a sign of life twice a second and names each step that it begins. The limits end a run well before the
process group's own time-out (`world.GROUP_TIMEOUT`), so that the message can name the rank, its step and its log.
This module does not import torch.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.app.evidence.bags import Json
from samestep.experiments.ranks import parent
from samestep.experiments.ranks.parent import Limits, Message, Rank


@dataclass(frozen=True)
class Job:
    """What the ranks do: run `module.run(world)` for each module in turn, with the same options.

    `asked`: how many ranks each experiment is to use, None for as many as it usually takes.
    """

    modules: Sequence[str]
    processes: int
    backend: str = "gloo"
    asked: int | None = None
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Progress of a rank: what it does now, and how much of it is done (0 to 1) where that is known."""

    rank: int
    what: str
    done: float | None


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A fresh folder for one run: rendezvous, logs, results. It stays when the run fails, for the logs' sake."""
    folder = Path(tempfile.mkdtemp(prefix="samestep-"))
    try:
        yield folder
    except KeyboardInterrupt:  # nobody will want to read why
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def launch(
    job: Job, folder: Path, progress: Callable[[Step], None] = lambda step: None, limits: Limits | None = None
) -> None:
    """Run the job in `folder` (fresh) and return when every rank is done; raises RunFailedError."""
    (folder / "job.json").write_text(json.dumps(asdict(job)))

    def hear(rank: Rank, message: Message) -> None:
        progress(Step(rank.number, message["step"], message["done"]))

    parent.run(parent.Program("samestep.experiments.ranks", job.processes), folder, hear, limits)
