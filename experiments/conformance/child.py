"""One rank of a pair, with torchrun's variables.

For each adapter that `job.json` names it runs the settings in their scenarios, and says of each step:

    {"framework": …, "plan": …}     settings, tasks (setting, scenario), packages: the framework could be imported, and
                                    what follows is of it
    {"begin": task}                 then one of
    {"done": task, "measurement": …}   what this rank saw, null where it cannot see
    {"unavailable": task, "reason": …} the adapter says why this setting cannot be measured here
    {"environment": …}

An error is not caught: the parent finds the last task that was begun, and the traceback in this process's log.
"""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from typing import Any

from samestep.experiments.conformance.adapter import Measurement, Setting
from samestep.experiments.conformance.scenarios import SCENARIOS
from samestep.experiments.conformance.watched import watching
from samestep.experiments.ranks.child import Post, run


def main(post: Post) -> None:
    pair = json.loads((post.folder / "job.json").read_text("utf-8"))
    for name in pair["hidden"]:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python spells "there is no such module"
    for job in pair["jobs"]:
        measure(job, post)


def measure(job: Mapping[str, Any], post: Post) -> None:
    if job["torch"]:
        import torch

        torch.set_num_threads(1)
    adapter: Any = import_module(job["adapter"])
    getattr(adapter, "prepare", lambda: None)()
    packages = {name: version(name).partition("+")[0] for name in dict.fromkeys((*job["packages"], *job["torch"]))}
    settings: Sequence[Setting] = adapter.SETTINGS
    chosen = {setting.id: expectations(setting, packages[job["packages"][0]], job["default"]) for setting in settings}
    tasks = [(name, scenario) for name, expected in chosen.items() for scenario in expected]
    tasks = [task for task in tasks if task[1] in (job["scenarios"] or SCENARIOS)]
    described = {setting.id: {**asdict(setting), "expected": chosen[setting.id]} for setting in settings}
    # The first word, after the import that may take as long as `start`.
    post.say(framework=job["framework"], plan={"settings": described, "tasks": tasks, "packages": packages})
    unavailable = getattr(adapter, "unavailable", lambda setting: None)
    for task in tasks:
        if list(task) in job["finished"]:
            continue
        post.say(begin=task)
        if reason := unavailable(task[0]):
            post.say(unavailable=task, reason=reason)
            continue
        if job["torch"]:
            torch.manual_seed(0)
        with watching(job["watch"], task):
            measurement = adapter.run(task[0], SCENARIOS[task[1]], post.rank, post.size)
        post.say(done=task, measurement=described_measurement(measurement))
    post.say(environment=surroundings(job["torch"]))


def expectations(setting: Setting, version: str, pinned: bool) -> Mapping[str, Any]:
    """Scenario → what is expected of this version; None where nobody has said what to expect of it."""
    if version in setting.releases:
        return setting.releases[version]
    return setting.expected if pinned else dict.fromkeys(setting.expected)


def surroundings(torch: Sequence[str]) -> Mapping[str, Any]:
    """What the last bits of a number may depend on; where there is no torch, which Python it was."""
    if not torch:
        return {"python": platform.python_version()}
    from samestep.experiments.measured import environment

    return environment()


def described_measurement(measurement: Measurement | None) -> Mapping[str, Any] | None:
    return None if measurement is None else {"kind": measurement.kind, **asdict(measurement)}


if __name__ == "__main__":
    run(main)
