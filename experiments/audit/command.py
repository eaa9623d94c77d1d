"""`samestep-lab audit FILE`: options, exit codes, and the place of a rank under torchrun."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from samestep.experiments.audit.call import audit
from samestep.experiments.audit.running import plans
from samestep.experiments.audit.settings import BACKENDS, TOLERANCES, Settings, SettingsError
from samestep.experiments.audit.telling.printing import Language, printed
from samestep.experiments.audit.telling.report import Report, as_json

EXAMPLES = Path(__file__).parent / "examples"
USUAL = "ddp"
HELP = "is your own parallel step the same update as on one process?"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Give the command line its subcommand `audit`."""
    usual = Settings()
    parser = commands.add_parser("audit", help=HELP, description=HELP)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="defines build(), data() and step()")
    parser.add_argument(
        "--example", nargs="?", const=USUAL, choices=examples(), metavar="NAME",
        help=f"print a working file: {', '.join(examples())}",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=usual.processes, metavar="P")
    parser.add_argument("--microbatches", type=int, default=usual.microbatches, metavar="K", help="on every rank")
    parser.add_argument("--plan", choices=plans.NAMES, default=usual.plan, help="how samples are dealt out")
    parser.add_argument("--backend", choices=BACKENDS, default=usual.backend)
    parser.add_argument("--dtype", choices=TOLERANCES, default=usual.dtype)
    parser.add_argument("--atol", type=float, help=f"default: {usual.tolerance:g} for float64")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report for machines")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report as a page")
    parser.add_argument(
        "--base-url", "--wiki", dest="wiki", metavar="URL", help="where links lead (default: SAMESTEP_BASE_URL)"
    )
    parser.add_argument("--timeout", type=float, default=usual.timeout, help="seconds in which something has to move")
    parser.add_argument(
        "--steps", type=int, default=usual.steps, metavar="N", help="updates in a row, where step() can be called again"
    )
    parser.add_argument("--lang", choices=("en", "zh"), default=_language(), help="default: by LANG")
    parser.set_defaults(command=run)


def examples() -> list[str]:
    """Names of the files that come with the package."""
    return sorted(place.stem for place in EXAMPLES.glob("*.py"))


def _language() -> Language:
    chosen = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "zh" if chosen.startswith("zh") else "en"


def run(options: argparse.Namespace) -> int:
    """Audit and print; the exit code says whether it is the same update."""
    if options.example:
        print((EXAMPLES / f"{options.example}.py").read_text("utf-8"), end="")
        return 0
    if options.file is None:
        print("samestep-lab: audit needs a FILE; --example prints one to begin with", file=sys.stderr)
        return 2
    given = {
        name: getattr(options, name)
        for name in ("processes", "microbatches", "plan", "backend", "dtype", "atol", "timeout", "steps")
    }
    try:
        settings = Settings(**given)
    except SettingsError as error:
        print(f"samestep-lab: {error}", file=sys.stderr)
        return 2
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        _joined(options, settings)
    with _ending_ranks_too():
        report = audit(options.file, **given)
    return _show(report, options)


@contextmanager
def _ending_ranks_too() -> Iterator[None]:
    """Who ends the command ends its ranks, and the folder goes: a signal unwinds like an exception."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(report: Report, options: argparse.Namespace) -> int:
    stream = sys.stderr if report.verdict == "error" else sys.stdout
    print(printed(report, options.lang, options.wiki or ""), file=stream)
    try:
        if options.json:
            options.json.write_text(as_json(report), "utf-8")
        if options.html:
            from samestep.experiments.audit.telling import page  # templates are read only where they are wanted

            page.write(report, options.html, options.lang, options.wiki)
    except OSError as error:
        print(f"samestep-lab: the report could not be written: {error}", file=sys.stderr)
        return 2
    return report.code


def _joined(options: argparse.Namespace, settings: Settings) -> NoReturn:
    """A rank of torchrun's world: rank 0 prints; a rank with a mistake of its own says so."""
    from samestep.experiments.audit import rank
    from samestep.experiments.audit.job import Job

    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    settings = replace(settings, processes=size)
    folder = Path(tempfile.gettempdir()) / f"samestep-audit-{os.getppid()}-{os.environ['MASTER_PORT']}"
    folder.mkdir(exist_ok=True)
    job = Job((options.file.resolve(),), (settings,), folder)
    rank.join(job, number, size, lambda report: _show(report, options))
