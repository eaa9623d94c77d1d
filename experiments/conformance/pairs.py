"""Run the two processes of a framework, and begin again behind a measurement that brought them down.

Importing a framework takes longer than all that is measured with it, so one pair does everything, and every wait is
bounded. (A framework that keeps its devices in one process is a pair of one.) When a rank crashes, hangs or ends
early, the first task that not both ranks have finished is to blame: it gets the reason, both processes end, and a new
pair goes on with the rest.
"""

import json
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from samestep.experiments.conformance import families
from samestep.experiments.conformance.families import Family
from samestep.experiments.conformance.frameworks import Framework
from samestep.experiments.ranks import Tell, parent
from samestep.experiments.ranks.parent import Limits, Message, Program, Rank, RunFailedError, StuckError

RESTARTS = 8

Task = tuple[str, str]
"""Setting and scenario."""


@dataclass
class Report:
    """What a framework's pairs said. `settings`, `tasks`, `packages` are empty when it could not even be imported.

    `measured[task]`: what each rank saw (`kind` and the fields of a measurement), None where it cannot see.
    `failed[task]`: why it could not be measured; `unavailable[task]`: why the adapter did not try.
    """

    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    measured: dict[Task, list[dict[str, Any] | None]] = field(default_factory=dict)
    failed: dict[Task, str] = field(default_factory=dict)
    unavailable: dict[Task, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def finished(self) -> list[Task]:
        return [*self.measured, *self.failed, *self.unavailable]


@dataclass
class _Heard:
    """What one rank has said of its tasks."""

    task: Task | None = None
    done: dict[Task, dict[str, Any] | None] = field(default_factory=dict)
    unavailable: dict[Task, str] = field(default_factory=dict)


def measure(
    framework: Framework,
    scenarios: Sequence[str],
    tell: Tell,
    *,
    default: bool = True,
    target: Path | None = None,
    hidden: Sequence[str] = (),
    family: Family | None = None,
    watch: Path | None = None,
) -> Report:
    """Measure all settings in these scenarios (all, if none is named), with the packages in `target` first on the path.

    `family`: whose environment to run in, instead of this one. `default`: whether it is the pinned release.
    `hidden`: installed packages that the framework must not see. `watch`: where ranks leave what watch saw of them.
    """
    report = Report()
    for _ in range(RESTARTS):
        with tempfile.TemporaryDirectory(prefix="samestep-pair-") as folder:
            job = {
                "adapter": framework.module,
                "packages": list(framework.packages),
                "scenarios": list(scenarios),
                "finished": [list(task) for task in report.finished],
                "hidden": list(hidden),
                "default": default,
                "torch": ["torch"] if framework.torch else [],
                "watch": None if watch is None else str(watch),
            }
            (Path(folder) / "job.json").write_text(json.dumps(job))
            problem = _run_pair(framework, Path(folder), target, family, report, tell)
        if problem is None:
            return report
        waiting = [task for task in report.tasks if task not in report.finished]
        if not waiting:
            report.problem = None if report.tasks else problem
            return report
        report.failed[waiting[0]] = problem
    for task in report.tasks:
        if task not in report.finished:
            report.failed[task] = f"not tried after {RESTARTS} pairs of processes had failed"
    return report


def _run_pair(
    framework: Framework, folder: Path, target: Path | None, family: Family | None, report: Report, tell: Tell
) -> str | None:
    """Run one pair and add to the report what both ranks finished; the reason when they did not get to the end."""
    heard = [_Heard() for _ in range(framework.processes)]

    def hear(rank: Rank, message: Message) -> None:
        _take(message, heard[rank.number], report)
        first = heard[0].task
        tell(f"{framework.name}: {first[0]}" if first else framework.name, None)

    program = Program(
        "samestep.experiments.conformance.child",
        framework.processes,
        partial(_variables, folder, _free_port(), framework),
        tuple(filter(None, (target, families.code(family) if family else None))),
        homes=True,
        python=families.interpreter(family) if family else None,
    )
    limits = Limits(silent_after=None, stuck_after=framework.seconds, start_within=framework.start)
    try:
        parent.run(program, folder, hear, limits)
    except StuckError as error:
        return f"nothing moved for {error.seconds:.0f} s"
    except RunFailedError as error:
        return _reason(error.culprit)
    finally:
        _collect(heard, report)
    return None


def _variables(folder: Path, port: int, framework: Framework, rank: int) -> dict[str, str]:
    """What torchrun would set, and what keeps a framework on this machine and off its devices."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(framework.processes),
        "LOCAL_WORLD_SIZE": str(framework.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "conformance",
        "GLOO_SOCKET_IFNAME": parent.LOOPBACK,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(parent.home(folder, rank)),
        "TOKENIZERS_PARALLELISM": "false",
        **dict(framework.variables),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _take(message: Message, rank: _Heard, report: Report) -> None:
    match message:
        case {"plan": {"settings": settings, "tasks": tasks, "packages": packages}}:
            report.settings, report.packages = settings, packages
            report.tasks = [(setting, scenario) for setting, scenario in tasks]
        case {"begin": [setting, scenario]}:
            rank.task = (setting, scenario)
        case {"done": [setting, scenario], "measurement": measurement}:
            rank.done[setting, scenario] = measurement
        case {"unavailable": [setting, scenario], "reason": reason}:
            rank.unavailable[setting, scenario] = reason
        case {"environment": environment}:
            report.environment = environment


def _collect(ranks: Sequence[_Heard], report: Report) -> None:
    """What every rank has finished is finished."""
    for task in report.tasks:
        if task not in report.measured and all(task in each.done for each in ranks):
            report.measured[task] = [each.done[task] for each in ranks]
        if task not in report.unavailable and all(task in each.unavailable for each in ranks):
            report.unavailable[task] = ranks[0].unavailable[task]


def _reason(culprit: Rank) -> str:
    line = culprit.last_line[:300] if culprit.process.returncode > 0 else ""
    return f"rank {culprit.number} {culprit.ending}" + (f": {line}" if line else "")
