"""Runs of several experiments: which of them share their processes, what they read, where their files end up, and what
is printed of them: a line for every check."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from samestep.app.evidence.bags import Json, Library, Result, Row
from samestep.app.paths import folder
from samestep.experiments.ranks.launch import Job, Step, launch as launch_ranks, workplace
from samestep.experiments.registry import Experiment, experiments

Options = Mapping[str, Json]


class CannotRunError(RuntimeError):
    """A run that cannot even begin, and what to do about it."""


@dataclass(frozen=True)
class Launch:
    """Experiments that run one after another in the same processes. `asked`: how many, None for the usual number."""

    experiments: tuple[Experiment, ...]
    asked: int | None

    @property
    def processes(self) -> int:
        return self.asked or max(each.processes for each in self.experiments)


def chosen(names: Iterable[str], everything: bool, *, training: bool) -> list[Experiment]:
    """The experiments of these names, or all of them (with trainings only if `training`); needed ones first."""
    known = experiments()
    names = list(names)
    if bool(names) == everything:
        raise CannotRunError("name the experiments, or say --all")
    if unknown := [name for name in names if name not in known]:
        raise CannotRunError(f"there is no experiment {', '.join(unknown)}; there are {', '.join(known)}")
    if everything:
        names = [name for name, each in known.items() if training or not each.training]
    wanted = [known[name] for name in dict.fromkeys(names)]
    return sorted(wanted, key=lambda each: (each.alone, bool(each.needs)))


def plan(wanted: Iterable[Experiment], asked: int | None) -> list[Launch]:
    """As few launches as possible: importing torch costs more than most experiments."""
    wanted = list(wanted)
    together = tuple(each for each in wanted if not each.alone)
    alone = [Launch((each,), asked) for each in wanted if each.alone]
    return [Launch(together, asked), *alone] if together else alone


def evidence_folder() -> Path:
    return folder("content") / "evidence"


def weights_for(wanted: Iterable[Experiment], given: Path | None) -> Path | None:
    """Where the files of `train_tiny` are, if anything needs them; raises CannotRunError if they are not there."""
    if not any("train_tiny" in each.needs for each in wanted):
        return None
    if given is not None:
        if not (given / "weights.safetensors").is_file():
            raise CannotRunError(f"{given} holds no weights.safetensors: name the folder that `train --out` filled")
        return given.resolve()
    library = Library(evidence_folder())
    if "train_tiny" not in library.names():
        raise CannotRunError(
            "transformer_update reads the weights of train_tiny, which is not published: "
            "`train --out DIR` makes them, `run … --weights DIR/train_tiny` reads them"
        )
    bag = library.bag("train_tiny")
    if not bag.whole:
        raise CannotRunError(
            f"the published weights are damaged: {bag.damaged[0].path} {bag.damaged[0].complaint['en']}"
        )
    return bag.folder / "data"


def perform(
    launch: Launch, place: Path, options: Options, progress: Callable[[Step], None], backend: str = "gloo"
) -> list[Result]:
    """Run a launch and leave `NAME/result.json` and its files in `place`; raises RunFailedError."""
    if find_spec("torch") is None:
        raise CannotRunError("running needs torch: in a checkout, pip install -e '.[experiments]'")
    if launch.experiments[0].launcher:
        return [perform_alone(launch, place, options, progress, backend)]
    modules = [each.module for each in launch.experiments]
    with workplace() as here:
        launch_ranks(Job(modules, launch.processes, backend, launch.asked, options), here, progress)
        finished = [each.name for each in launch.experiments if (here / each.name / "result.json").is_file()]
        if len(finished) < len(modules) and not options.get("until"):
            raise CannotRunError(f"the processes ended without a result; their logs are in {here}")
        return [hand_over(here / name, place / name) for name in finished]


def perform_alone(
    launch: Launch, place: Path, options: Options, progress: Callable[[Step], None], backend: str
) -> Result:
    """Run an experiment that starts its processes itself, as many as it always takes."""
    (experiment,) = launch.experiments
    if backend != "gloo" or launch.processes != experiment.processes:
        raise CannotRunError(f"{experiment.name} always runs {experiment.processes} processes, with gloo")

    def tell(what: str, done: float | None) -> None:
        progress(Step(0, what, done))

    with workplace() as here:
        import_module(experiment.launcher or experiment.module).run(here, options, tell)
        return hand_over(here / experiment.name, place / experiment.name)


def hand_over(made: Path, place: Path) -> Result:
    """Put the files of a finished experiment in place of what was there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir(exist_ok=True)
    for old in place.iterdir():
        if old.is_file():
            old.unlink()
    for file in made.iterdir():
        shutil.move(file, place / file.name)
    return read_result(place)


def read_result(place: Path) -> Result:
    return cast(Result, json.loads((place / "result.json").read_text("utf-8")))


def print_result(result: Result) -> None:
    """A verdict line per check, then the verdict of the whole."""
    print(f"\n{result['name']}: {result['question']['en']}")
    for row in result["rows"]:
        print(f"  {_mark(row['met'])} {row['id']:<58} {row['expectation']:<9} {_differences(row)}")
    for control in result["controls"]:
        print(f"  {_mark(control['met'])} {control['title']['en']}")
    for absent in result.get("not_measured", []):
        what = " ".join(filter(None, (absent["framework"], absent["version"], absent["setting"])))
        print(f"  --   not measured: {what}: {absent['reason']}")
    checks = [each["met"] for each in (*result["rows"], *result["controls"])]
    print(f"{result['name']} {result['verdict']}: {sum(checks)} of {len(checks)} checks hold")


def _mark(met: bool) -> str:
    return "ok  " if met else "FAIL"


def _differences(row: Row) -> str:
    return "  ".join(
        f"{quantity} {'undefined' if value is None else f'{value:.1e}'}"
        for quantity, value in row["max_abs_difference"].items()
    )
