"""One rank of a pair: `python -m experiments.conformance.child FOLDER PARENT`, with torchrun's variables.

It runs the settings of the adapter that `FOLDER/job.json` names in their scenarios, and writes a line of JSON for each
step into `FOLDER/rankR.jsonl`:

    {"plan": …}                     settings, tasks (setting, scenario), packages: the framework could be imported
    {"begin": task}                 then one of
    {"done": task, "measurement"}   what this rank saw, null where it cannot see
    {"unavailable": task, "reason"} the adapter says why this setting cannot be measured here
    {"end": environment}

An error is not caught: the parent finds the last task that was begun, and the traceback in this process's log.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NoReturn

from samestep.experiments.conformance.adapter import (
    Clipping,
    Coefficients,
    Contrastive,
    Measurement,
    Setting,
    StateChange,
)
from samestep.experiments.conformance.scenarios import SCENARIOS

KINDS = {Coefficients: "coefficients", StateChange: "state", Clipping: "clipping", Contrastive: "contrastive"}


def main() -> NoReturn:
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    _die_with_parent(parent)
    job = json.loads((folder / "job.json").read_text("utf-8"))
    for name in job["hidden"]:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python spells "there is no such module"
    with (folder / f"rank{os.environ['RANK']}.jsonl").open("a") as stream:
        measure(job, stream)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # process groups and their threads can wait for ever on the way out


def measure(job: Mapping[str, Any], stream: IO[str]) -> None:
    import torch

    from samestep.experiments.results import environment

    torch.set_num_threads(1)
    adapter: Any = import_module(job["adapter"])
    getattr(adapter, "prepare", lambda: None)()
    packages = {name: version(name).partition("+")[0] for name in dict.fromkeys((*job["packages"], "torch"))}
    settings: Sequence[Setting] = adapter.SETTINGS
    chosen = {setting.id: expectations(setting, packages[job["packages"][0]], job["default"]) for setting in settings}
    tasks = [(name, scenario) for name, expected in chosen.items() for scenario in expected]
    tasks = [task for task in tasks if task[1] in (job["scenarios"] or SCENARIOS)]
    described = {setting.id: {**asdict(setting), "expected": chosen[setting.id]} for setting in settings}
    _say(stream, plan={"settings": described, "tasks": tasks, "packages": packages})
    unavailable = getattr(adapter, "unavailable", lambda setting: None)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for task in tasks:
        if list(task) in job["finished"]:
            continue
        _say(stream, begin=task)
        if reason := unavailable(task[0]):
            _say(stream, unavailable=task, reason=reason)
            continue
        torch.manual_seed(0)
        measurement = adapter.run(task[0], SCENARIOS[task[1]], rank, size)
        _say(stream, done=task, measurement=described_measurement(measurement))
    _say(stream, end=environment())


def expectations(setting: Setting, version: str, pinned: bool) -> Mapping[str, Any]:
    """Scenario → what is expected of this version; None where nobody has said what to expect of it."""
    if version in setting.releases:
        return setting.releases[version]
    return setting.expected if pinned else dict.fromkeys(setting.expected)


def described_measurement(measurement: Measurement | None) -> Mapping[str, Any] | None:
    return None if measurement is None else {"kind": KINDS[type(measurement)], **asdict(measurement)}


def _say(stream: IO[str], **message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _die_with_parent(parent: int) -> None:
    """Linux kills this process with its parent; elsewhere only a parent that ends in order takes it along."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main()
