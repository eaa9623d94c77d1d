"""Watch a command from Python: start it, collect the report."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.experiments.watch import launch
from samestep.experiments.watch.joined.assembling import assemble
from samestep.experiments.watch.settings import Settings
from samestep.experiments.watch.telling.report import Report


@dataclass(frozen=True)
class Watched:
    """`report`: None where the one that was shown while the run went on is the last word."""

    report: Report | None


def watch_command(command: Sequence[str], settings: Settings, show: Callable[[Report], None]) -> Watched:
    """Run the command. `show` gets the report as soon as enough was seen, while the run goes on."""
    folder = Path(tempfile.mkdtemp(prefix="samestep-watch-"))
    shown = False

    def when_complete() -> None:
        nonlocal shown
        shown = True
        show(assemble(folder, settings.objective, command))

    try:
        ended = launch.run(command, settings, folder, when_complete)
        if shown and ended.failure is None:
            return Watched(None)
        return Watched(assemble(folder, settings.objective, command, ended.failure))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watch_run(*command: str, **options: Any) -> Report:
    """Watch a command, or a Python file as torchrun would start it; the options are those of `Settings`.

    Whatever is wrong with the run is in the report (`verdict == "error"`, `failure`); raises SettingsError alone.
    """
    last: list[Report] = []
    watched = watch_command(list(map(str, command)), Settings(**options), last.append)
    return watched.report or last[-1]
