"""Start the two processes of a framework, watch them, and begin again behind a measurement that brought them down.

Importing a framework takes longer than all that is measured with it, so one pair does everything, and every wait is
bounded. When a rank crashes, hangs or ends early, the first task that not both ranks have finished is to blame: it gets
the reason, both processes end, and a new pair goes on with the rest.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.app.paths import IMPORTED_FROM
from samestep.experiments.conformance.frameworks import Framework

PROCESSES = 2
RESTARTS = 8
_PEER_GONE = ("Connection closed by peer", "Connection reset by peer")

Task = tuple[str, str]
"""Setting and scenario."""
Tell = Callable[[str, float | None], None]


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
class _Rank:
    process: subprocess.Popen[bytes]
    messages: Path
    log: Path
    read: int = 0
    task: Task | None = None
    done: dict[Task, dict[str, Any] | None] = field(default_factory=dict)
    unavailable: dict[Task, str] = field(default_factory=dict)
    ended: bool = False


def measure(
    framework: Framework,
    scenarios: Sequence[str],
    tell: Tell,
    *,
    target: Path | None = None,
    hidden: Sequence[str] = (),
) -> Report:
    """Measure all settings in these scenarios (all, if none is named), with the packages in `target` first on the path.

    `hidden`: installed packages that the framework must not see.
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
                "default": target is None,
            }
            (Path(folder) / "job.json").write_text(json.dumps(job))
            problem = _run_pair(framework, Path(folder), target, report, tell)
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


def _run_pair(framework: Framework, folder: Path, target: Path | None, report: Report, tell: Tell) -> str | None:
    """Run one pair and add to the report what both ranks finished; the reason when they did not get to the end."""
    port = _free_port()
    ranks: list[_Rank] = []
    try:
        for rank in range(PROCESSES):
            ranks.append(_start(folder, rank, port, target))
        return _watch(ranks, framework, report, tell)
    finally:
        for each in ranks:
            if each.process.poll() is None:
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()


def _start(folder: Path, rank: int, port: int, target: Path | None) -> _Rank:
    home = folder / f"home{rank}"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_DISTRIBUTED_DEBUG"}
    paths = (str(target) if target else None, str(IMPORTED_FROM), os.environ.get("PYTHONPATH"))
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "conformance",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    log = folder / f"rank{rank}.log"
    command = [sys.executable, "-m", "samestep.experiments.conformance.child", str(folder), str(os.getpid())]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            start_new_session=True,
        )  # fmt: skip
    return _Rank(process, folder / f"rank{rank}.jsonl", log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _watch(ranks: list[_Rank], framework: Framework, report: Report, tell: Tell) -> str | None:
    allowed, last = framework.start, time.monotonic()
    while True:
        ended = [each.process.poll() for each in ranks]
        heard = [_listen(each, report) for each in ranks]
        if any(heard):
            tell(f"{framework.name}: {ranks[0].task[0]}" if ranks[0].task else framework.name, None)
            allowed, last = framework.seconds, time.monotonic()
        _collect(ranks, report)
        if all(each.ended for each in ranks):
            return None
        if any(code is not None and not each.ended for code, each in zip(ended, ranks, strict=True)):
            return _reason(ranks)
        if time.monotonic() - last > allowed:
            return f"nothing moved for {allowed:.0f} s"
        time.sleep(0.03)


def _listen(rank: _Rank, report: Report) -> bool:
    """Read what is new from a rank; whether there was anything."""
    if not rank.messages.exists():
        return False
    with rank.messages.open("rb") as stream:
        stream.seek(rank.read)
        lines = stream.read().splitlines(keepends=True)
    complete = [line for line in lines if line.endswith(b"\n")]
    for line in complete:
        rank.read += len(line)
        _take(json.loads(line), rank, report)
    return bool(complete)


def _take(message: Mapping[str, Any], rank: _Rank, report: Report) -> None:
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
        case {"end": environment}:
            report.environment, rank.ended = environment, True


def _collect(ranks: list[_Rank], report: Report) -> None:
    """What every rank has finished is finished."""
    for task in report.tasks:
        if task not in report.measured and all(task in each.done for each in ranks):
            report.measured[task] = [each.done[task] for each in ranks]
        if task not in report.unavailable and all(task in each.unavailable for each in ranks):
            report.unavailable[task] = ranks[0].unavailable[task]


def _reason(ranks: list[_Rank]) -> str:
    """Why the first rank fell: the other one may fall a moment later because its peer is gone."""
    time.sleep(0.3)
    fallen = [(rank, each) for rank, each in enumerate(ranks) if each.process.poll() is not None and not each.ended]
    rank, culprit = min(fallen, key=lambda each: any(sign in _last_line(each[1]) for sign in _PEER_GONE))
    code = culprit.process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    line = _last_line(culprit) if code > 0 else ""
    return f"rank {rank} {how}" + (f": {line}" if line else "")


def _last_line(rank: _Rank) -> str:
    lines = [line.strip() for line in rank.log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
