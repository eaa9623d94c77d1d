"""`python -m experiments` (`samestep-lab`): list, run, publish, verify, train.

Exit codes: 0 every check holds; 1 a check does not hold, or evidence is stale or damaged; 2 it could not be run.
Under `torchrun`, `run` joins the world that is there; otherwise it starts its own processes on this machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from samestep.app.evidence.bags import Json, Library, Result, UnknownEvidenceError
from samestep.experiments import corpus
from samestep.experiments.audit import command as audit_command
from samestep.experiments.commands import publish, runs, verify
from samestep.experiments.commands.runs import print_result
from samestep.experiments.conformance import report as conformance_report
from samestep.experiments.conformance.families import FAMILIES
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.conformance.releases import CannotMeasureError
from samestep.experiments.conformance.scenarios import SCENARIOS
from samestep.experiments.ranks import torchrun, world
from samestep.experiments.ranks.parent import RunFailedError
from samestep.experiments.ranks.progress import Progress
from samestep.experiments.registry import Experiment, experiments
from samestep.experiments.watch import command as watch_command

HOLDS, FAILS, CANNOT = 0, 1, 2
EVERYTHING: dict[str, Json] = {"releases": "listed", "families": "listed", "stored": True}
"""What is published of conformance: all of it, with what was measured on the way here by the same sources."""
OF_WATCH = {f"--{name}" for name in (*watch_command.NAMES, "json", "html", "lang", "base-url", "example")}
REFUSALS = (
    runs.CannotRunError,
    RunFailedError,
    publish.RefusedError,
    corpus.CorpusError,
    CannotMeasureError,
    conformance_report.NoReportError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except REFUSALS as error:
        print(f"samestep-lab: {error}", file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:
        print("samestep-lab: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samestep-lab", description="Experiments and their evidence.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the experiments, and whether their evidence is current")
    listing.set_defaults(command=list_)

    running = commands.add_parser("run", help="run experiments; publishes nothing")
    _names(running, "every one but the training")
    running.add_argument("--processes", type=_positive, metavar="P", help="how many (default: as the experiment needs)")
    running.add_argument("--out", type=Path, metavar="DIR", help="keep NAME/result.json and the tensors here")
    running.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    running.add_argument("--weights", type=Path, metavar="DIR", help="files of train_tiny (default: published)")
    running.add_argument("--corpus", type=Path, metavar="DIR", default=corpus.FOLDER, help="the frozen text")
    conformance = running.add_argument_group("conformance", "which of its measurements; each may be given repeatedly")
    conformance.add_argument("--framework", action="append", choices=FRAMEWORKS, metavar="NAME", help="like torch_ddp")
    conformance.add_argument("--family", action="append", choices=FAMILIES, metavar="NAME", help="in its environment")
    conformance.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="like A")
    conformance.add_argument("--reader", choices=("update", "watch"), help="watch: read the same runs by watch, too")
    conformance.add_argument("--version", action="append", metavar="PACKAGE==X", help="beside what is installed")
    running.set_defaults(command=run)

    publishing = commands.add_parser("publish", help="run, then replace the published evidence")
    _names(publishing, "every one, the training too")
    publishing.set_defaults(command=publish_)

    verifying = commands.add_parser("verify", help="check published evidence")
    verifying.add_argument("names", nargs="*", metavar="NAME")
    verifying.add_argument("--rerun", action="store_true", help="also run again and compare every number")
    verifying.set_defaults(command=verify_)

    conformance_report.add_to(commands)
    audit_command.add_to(commands)
    watch_command.add_to(commands)
    commands.choices["watch"].set_defaults(command=watch)

    training = commands.add_parser("train", help="train the tiny language model; goes on where it was interrupted")
    training.add_argument("--steps", type=_positive, default=800)
    training.add_argument("--until", type=_positive, metavar="STEP", help="stop there and keep everything")
    training.add_argument("--processes", type=_positive, metavar="P", default=1, help="independent repetitions")
    training.add_argument("--out", type=Path, metavar="DIR", default=Path("out"), help="default: out")
    training.add_argument("--corpus", type=Path, metavar="DIR", default=corpus.FOLDER, help="the frozen text")
    training.add_argument("--freeze-corpus", action="store_true", help="copy the book's chapters as the text")
    training.set_defaults(command=train)
    return parser


def _names(parser: argparse.ArgumentParser, everything: str) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, as `list` names them")
    parser.add_argument("--all", action="store_true", help=everything)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text}")
    return int(text)


def list_(options: argparse.Namespace) -> int:
    """What there is, and whether what is published still comes from these sources."""
    library = Library(runs.evidence_folder())
    for name, experiment in experiments().items():
        print(f"{name:<20} {_state(library, experiment)}")
        print(f"    {experiment.question['en']}\n    {experiment.question['zh']}")
    return HOLDS


def _state(library: Library, experiment: Experiment) -> str:
    try:
        bag = library.bag(experiment.name)
    except UnknownEvidenceError:
        return "not published"
    if not bag.whole:
        return f"published {bag.published}, DAMAGED: {', '.join(file.path for file in bag.damaged)}"
    changed = verify.stale(bag, experiment)
    return f"published {bag.published}, " + (f"STALE: {'; '.join(changed)}" if changed else "current")


def run(options: argparse.Namespace) -> int:
    """Run and print a verdict line for each check."""
    wanted = runs.chosen(options.names, options.all, training=False)
    weights = runs.weights_for(wanted, options.weights)
    narrowed = {
        name: getattr(options, name)
        for name in ("framework", "family", "scenario", "version", "reader")
        if getattr(options, name)
    }
    if narrowed and "conformance" not in {each.name for each in wanted}:
        raise runs.CannotRunError(f"--{next(iter(narrowed))} is for conformance")
    given: dict[str, Json] = {**_weights(weights), "corpus": str(options.corpus.resolve()), **narrowed}
    if torchrun.joined():
        return _run_joined(wanted, options, given)
    results = []
    with _place(options.out) as place, Progress() as progress:
        for launch in runs.plan(wanted, options.processes):
            results += runs.perform(launch, place, given, progress, options.backend)
    return _verdict(results)


def _run_joined(wanted: Sequence[Experiment], options: argparse.Namespace, given: dict[str, Json]) -> int:
    """A rank of torchrun's: everybody runs, rank 0 prints, all end with the same code."""
    if options.processes not in (None, torchrun.joined()):
        raise runs.CannotRunError(f"torchrun started {torchrun.joined()} processes, not {options.processes}")
    if launchers := [each.name for each in wanted if each.launcher]:
        raise runs.CannotRunError(f"{', '.join(launchers)} starts its own processes: run it without torchrun")
    try:
        with _place(options.out) as place:
            here = torchrun.join(place, options.backend, given)
            results = world.perform(here, [each.module for each in wanted])
            code = here.gather(_verdict(results) if here.rank == 0 else HOLDS)[0]
    except BaseException as error:
        torchrun.fail(error)
    torchrun.leave(here, code)


def _weights(place: Path | None) -> dict[str, Json]:
    return {"weights": str(place)} if place else {}


def publish_(options: argparse.Namespace) -> int:
    """Publish what holds; whatever fails keeps its old evidence."""
    commit = publish.clean_commit()
    wanted = runs.chosen(options.names, options.all, training=True)
    target, code = runs.evidence_folder(), HOLDS
    for launch in runs.plan(wanted, None):
        weights = runs.weights_for(launch.experiments, None)
        inputs = [*sorted(weights.glob("*.safetensors")), weights / "tokenizer.json"] if weights else []
        started = datetime.now(UTC)
        with _place(None) as place, Progress() as progress:
            results = runs.perform(launch, place, {**_weights(weights), **EVERYTHING}, progress)
            code = max(code, _verdict(results))
            if publish.clean_commit() != commit:
                raise publish.RefusedError("the checkout moved to another commit while the experiments ran")
            for experiment, result in zip(launch.experiments, results, strict=True):
                if result["verdict"] == "holds":
                    made = place / experiment.name
                    where = publish.publish(
                        experiment, made, result, target, commit=commit, started=started, inputs=inputs
                    )
                    print(f"published {where}")
                else:
                    print(f"{experiment.name} fails and is not published", file=sys.stderr)
    return code


def verify_(options: argparse.Namespace) -> int:
    """One line a bag, and what is wrong with it."""
    library, known = Library(runs.evidence_folder()), experiments()
    names = verify.names_or_all(options.names, known, library.names())
    if unknown := [name for name in names if name not in known and name not in library.names()]:
        raise runs.CannotRunError(f"there is no experiment {', '.join(unknown)}; there are {', '.join(known)}")
    good = [name for name in names if _check(library, name, known.get(name))]
    if options.rerun:
        rerun = [known[name] for name in good]
        again = _repeat(library, rerun) if rerun else {}
        good = [name for name in good if again[name]]
    return HOLDS if good == names else FAILS


def _check(library: Library, name: str, experiment: Experiment | None) -> bool:
    try:
        bag = library.bag(name)
    except UnknownEvidenceError:
        print(f"FAIL {name}: not published")
        return False
    wrong = list(verify.problems(bag, experiment))
    if wrong:
        print("\n".join(f"FAIL {name}: {problem}" for problem in wrong))
        return False
    size = sum(file.size for file in bag.files)
    print(f"ok   {name}: {len(bag.files)} files, {size:,} bytes, published {bag.published}")
    return True


def _repeat(library: Library, wanted: Sequence[Experiment]) -> dict[str, bool]:
    """Run again as many processes as were recorded, and compare."""
    verdicts = {}
    weights = runs.weights_for(wanted, None)
    groups: dict[int | None, list[Experiment]] = {}
    for experiment in wanted:
        recorded = library.bag(experiment.name).result["processes"]
        groups.setdefault(None if recorded == experiment.processes else recorded, []).append(experiment)
    with _place(None) as place, Progress() as progress:
        for asked, members in groups.items():
            for launch in runs.plan(members, asked):
                runs.perform(launch, place, {**_weights(weights), "releases": "cached", "families": "cached"}, progress)
        for experiment in wanted:
            comparison = verify.compare(library.bag(experiment.name), place / experiment.name)
            verdicts[experiment.name] = comparison.holds
            print(f"{'ok  ' if comparison.holds else 'FAIL'} {experiment.name} again: {comparison}")
    return verdicts


def watch(options: argparse.Namespace) -> int:
    """Watch, unless an option of watch stands behind the command's first word, whose argument it then is."""
    first, *rest = options.run or ["--"]
    for word in rest if first != "--" else ():
        if (name := word.partition("=")[0]) in OF_WATCH:
            raise runs.CannotRunError(
                f"{name} stands behind {first} and would be given to it: write it in front, "
                f"or -- in front of {first} if {first} is to have it"
            )
    return watch_command.run(options)


def train(options: argparse.Namespace) -> int:
    """Train, or go on training; every 50 steps what is needed to go on is put aside."""
    if options.freeze_corpus:
        for document in corpus.freeze(runs.evidence_folder().parent, options.corpus):
            print(f"{document.sha256}  {document.name}  {document.size:,} bytes")
        return HOLDS
    corpus.read(options.corpus)
    out = options.out.resolve()
    given: dict[str, Json] = {
        "steps": options.steps,
        "until": options.until,
        "corpus": str(options.corpus.resolve()),
        "state": str(out / "train_tiny.state"),
    }
    launch = runs.Launch((experiments()["train_tiny"],), options.processes)
    with Progress() as progress:
        results = runs.perform(launch, out, given, progress)
    if not results:
        print(f"stopped at step {options.until} of {options.steps}; the same command without --until goes on")
        return HOLDS
    return _verdict(results)


def _verdict(results: Iterable[Result]) -> int:
    results = list(results)
    for result in results:
        print_result(result)
    return HOLDS if all(result["verdict"] == "holds" for result in results) else FAILS


@contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    """The folder that was asked for, or one that vanishes."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
