"""A second reading of the same runs: watch looks on while an adapter trains, and must find the same coefficients.

    python -m experiments run conformance --framework torch_ddp --reader watch

It reads gradients and losses as they pass, where the usual reading solves for coefficients from what the parameters
became: two ways that share no formula. Watch is imported by name: published numbers are those of the usual reading, and
do not depend on it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from samestep.experiments.conformance.scenarios import SCENARIOS

WATCH = "samestep.experiments.watch"

AGREES = 1e-4
"""Greatest difference of a coefficient between the two readings."""
UPDATES = 4
Task = tuple[str, str]


@contextmanager
def watching(folder: str | None, task: Task) -> Iterator[None]:
    """In a rank: watch what the adapter does for this task; without a folder nothing is watched."""
    if folder is None:
        yield
        return
    watch = import_module(f"{WATCH}.session")
    place = _place(Path(folder), task)
    place.mkdir(parents=True, exist_ok=True)
    session = watch.start(watch.Order(str(place), updates=UPDATES))
    try:
        yield
    finally:
        watch.stop(session)


def difference(folder: Path, task: Task, tokens: Sequence[Sequence[Sequence[float]]]) -> float | None:
    """Largest difference of a token's coefficient from what watch read; None where watch gives no weights, and why not.

    tokens   [rank][microbatch][token] by the usual reading

    A window that the framework never stepped with has coefficients 0.
    """
    report = import_module(f"{WATCH}.joined.assembling").assemble(_place(folder, task), "tokens")
    scenario = SCENARIOS[task[1]]
    usual = [cell for rank in tokens for cell in rank if cell]
    if report.verdict == "error":
        return None
    if len(report.updates) <= bool(scenario.before):
        return max((abs(value) for cell in usual for value in cell), default=0.0)
    update = report.updates[bool(scenario.before)]
    seen: list[Any] = [cell for rank in update.cells for cell in rank if cell.n and not cell.discarded]
    if [cell.n for cell in seen] != [len(cell) for cell in usual] or any(cell.weight is None for cell in seen):
        return None
    lowest = [abs(cell.weight_min - min(one)) for cell, one in zip(seen, usual, strict=True)]
    highest = [abs(cell.weight_max - max(one)) for cell, one in zip(seen, usual, strict=True)]
    return float(max((*lowest, *highest), default=0.0))


def _place(folder: Path, task: Task) -> Path:
    return folder / "-".join(task)
