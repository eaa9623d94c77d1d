"""A second reading of the same runs: watch looks on while an adapter trains, and must find the same coefficients.

    python -m experiments run conformance --framework torch_ddp --reader watch

It reads gradients and losses as they pass, where the usual reading solves for coefficients from what the parameters
became: two ways that share no formula. Watch is imported by name: published numbers are those of the usual reading, and
do not depend on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

WATCH = "samestep.experiments.watch"
UPDATES = 4
Task = tuple[str, str]


@contextmanager
def watching(folder: str | None, task: Task) -> Iterator[None]:
    """In a rank: watch what the adapter does for this task; without a folder nothing is watched."""
    if folder is None:
        yield
        return
    watch = import_module(f"{WATCH}.session")
    where = place(Path(folder), task)
    where.mkdir(parents=True, exist_ok=True)
    session = watch.start(watch.Order(str(where), updates=UPDATES))
    try:
        yield
    finally:
        watch.stop(session)


def place(folder: Path, task: Task) -> Path:
    """Where the ranks leave what watch saw of a task."""
    return folder / "-".join(task)
