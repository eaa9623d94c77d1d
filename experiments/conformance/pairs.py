"""Run the two processes of a framework, and begin again behind a measurement that brought them down.

Importing a framework takes longer than all that is measured with it, so one pair does everything, for several
frameworks that import the same, and every wait is bounded. (A framework that keeps its devices in one process is a
pair of one.) When a rank crashes, hangs or ends early, the first task that not both ranks have finished is to blame: it
gets the reason, both processes end, and a new pair goes on with the rest.
"""

import json
import socket
import tempfile
from collections.abc import Mapping, Sequence
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

    @property
    def waiting(self) -> list[Task]:
        return [task for task in self.tasks if task not in self.finished]

    @property
    def through(self) -> bool:
        """Whether nothing is left to do, with a framework that could be imported."""
        return not self.waiting and bool(self.tasks or self.environment)


@dataclass
class _Heard:
    """What one rank has said of its tasks."""

    task: Task | None = None
    done: dict[Task, dict[str, Any] | None] = field(default_factory=dict)
    unavailable: dict[Task, str] = field(default_factory=dict)


def measure(framework: Framework, scenarios: Sequence[str], tell: Tell, **where: Any) -> Report:
    """`measure_together` of one framework."""
    (report,) = measure_together([framework], scenarios, tell, **where)
    return report


def measure_together(
    frameworks: Sequence[Framework],
    scenarios: Sequence[str],
    tell: Tell,
    *,
    default: bool = True,
    target: Path | None = None,
    hidden: Sequence[str] = (),
    family: Family | None = None,
    watch: Path | None = None,
) -> list[Report]:
    """Measure all settings in these scenarios (all, if none is named), with the packages in `target` first on the path.

    `frameworks`: one, or several that want the same environment and are measured in the same processes, in this order.
    `family`: whose environment to run in, instead of this one. `default`: whether it is the pinned release.
    `hidden`: installed packages that the framework must not see. `watch`: the folder where ranks leave what watch saw
    of each framework, under its name.
    """
    reports = {each.id: Report() for each in frameworks}
    left = list(frameworks)
    for _ in range(RESTARTS):
        with tempfile.TemporaryDirectory(prefix="samestep-pair-") as folder:
            jobs = [_job(each, reports[each.id], scenarios, default, watch) for each in left]
            (Path(folder) / "job.json").write_text(json.dumps({"hidden": list(hidden), "jobs": jobs}))
            problem = _run_pair(left, Path(folder), target, family, reports, tell)
        if problem is None:
            return list(reports.values())
        left = [each for each in left if not reports[each.id].through]
        if left and not _blame(reports[left[0].id], problem):
            del left[0]
        if not left:
            return list(reports.values())
    for each in left:
        _give_up(reports[each.id])
    return list(reports.values())


def _job(
    framework: Framework, report: Report, scenarios: Sequence[str], default: bool, watch: Path | None
) -> dict[str, Any]:
    return {
        "framework": framework.id,
        "adapter": framework.module,
        "packages": list(framework.packages),
        "scenarios": list(scenarios),
        "finished": [list(task) for task in report.finished],
        "default": default,
        "torch": ["torch"] if framework.torch else [],
        "watch": None if watch is None else str(watch / framework.id),
    }


def _blame(report: Report, problem: str) -> bool:
    """Write down what brought a pair down; whether the framework has more to try."""
    if not report.waiting:
        report.problem = problem  # it could not even be imported
        return False
    report.failed[report.waiting[0]] = problem
    return not report.through


def _give_up(report: Report) -> None:
    reason = f"not tried after {RESTARTS} pairs of processes had failed"
    report.failed |= dict.fromkeys(report.waiting, reason)
    report.problem = None if report.tasks else reason


def _run_pair(
    frameworks: Sequence[Framework],
    folder: Path,
    target: Path | None,
    family: Family | None,
    reports: Mapping[str, Report],
    tell: Tell,
) -> str | None:
    """Run one pair and add to the reports what both ranks finished; the reason when they did not get to the end."""
    first = frameworks[0]
    names = {each.id: each.name for each in frameworks}
    heard = {each.id: [_Heard() for _ in range(first.processes)] for each in frameworks}
    at = [first.id] * first.processes

    def hear(rank: Rank, message: Message) -> None:
        at[rank.number] = now = message.get("framework", at[rank.number])
        _take(message, heard[now][rank.number], reports[now])
        task = heard[at[0]][0].task
        tell(f"{names[at[0]]}: {task[0]}" if task else names[at[0]], None)

    program = Program(
        "samestep.experiments.conformance.child",
        first.processes,
        partial(_variables, folder, _free_port(), first),
        tuple(filter(None, (target, families.code(family) if family else None))),
        homes=True,
        python=families.interpreter(family) if family else None,
    )
    slowest = max(each.seconds for each in frameworks)
    limits = Limits(silent_after=None, stuck_after=slowest, start_within=max(each.start for each in frameworks))
    try:
        parent.run(program, folder, hear, limits)
    except StuckError as error:
        return f"nothing moved for {error.seconds:.0f} s"
    except RunFailedError as error:
        return _reason(error.culprit)
    finally:
        for each in frameworks:
            _collect(heard[each.id], reports[each.id])
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
