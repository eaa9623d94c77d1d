"""`samestep-lab watch … -- COMMAND`: options, exit codes, and the place of a rank under torchrun."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from samestep.experiments.audit.command import _language
from samestep.experiments.audit.settings import SettingsError
from samestep.experiments.watch.call import Watched, watch_command
from samestep.experiments.watch.launch import is_script
from samestep.experiments.watch.settings import OBJECTIVES, Settings
from samestep.experiments.watch.telling.printing import printed
from samestep.experiments.watch.telling.report import Report, as_json

EXAMPLES = Path(__file__).parent / "examples"
USUAL = "ddp"
HELP = "what does every token of your own run weigh? Your script runs as it is."
NAMES = ("updates", "skip", "objective", "eager", "tensors", "timeout", "processes", "stop")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Give the command line its subcommand `watch`."""
    parser = commands.add_parser(
        "watch", help=HELP, description=HELP, usage="%(prog)s [options] -- COMMAND …",
        epilog="COMMAND is what you type anyway: torchrun --nproc-per-node 4 train.py --lr 1e-3",
    )  # fmt: skip
    options(parser)
    parser.add_argument("--processes", type=int, default=Settings.processes, metavar="P", help="for a file alone")
    parser.add_argument("--stop", action="store_true", help="end the run when enough updates were seen")
    parser.add_argument(
        "--example", nargs="?", const=USUAL, choices=examples(), metavar="NAME",
        help=f"print a script to begin with: {', '.join(examples())}",
    )  # fmt: skip
    parser.add_argument("run", nargs=argparse.REMAINDER, metavar="COMMAND", help="what starts the training")
    parser.set_defaults(command=run)


def options(parser: argparse.ArgumentParser) -> None:
    """What every way to watch has in common."""
    usual = Settings()
    parser.add_argument("--updates", type=int, default=usual.updates, metavar="N", help="of every optimizer")
    parser.add_argument("--skip", type=int, default=usual.skip, metavar="N", help="updates that pass unwatched first")
    parser.add_argument("--objective", choices=OBJECTIVES, default=usual.objective, help="what is to weigh the same")
    parser.add_argument("--eager", action="store_true", help="run what torch.compile would compile as it is written")
    parser.add_argument("--tensors", type=_tensors, default=None, metavar="all|N", help="sketch only the N largest")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report for machines")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report as a page")
    parser.add_argument("--timeout", type=float, default=usual.timeout, help="seconds in which something has to move")
    parser.add_argument("--base-url", metavar="URL", help="where the page's links lead (default: SAMESTEP_BASE_URL)")
    parser.add_argument("--lang", choices=("en", "zh"), default=_language(), help="default: by LANG")


def _tensors(text: str) -> int | None:
    return None if text == "all" else int(text)


def examples() -> list[str]:
    """Names of the scripts that come with the package."""
    return sorted(place.stem for place in EXAMPLES.glob("*.py"))


def run(options: argparse.Namespace) -> int:
    """Watch and print; the exit code says whether every token weighs the same."""
    if options.example:
        print((EXAMPLES / f"{options.example}.py").read_text("utf-8"), end="")
        return 0
    command: Sequence[str] = options.run[1:] if options.run[:1] == ["--"] else options.run
    if not command:
        print("samestep-lab: watch needs a COMMAND; --example prints a script to begin with", file=sys.stderr)
        return 2
    try:
        settings = chosen(options)
    except SettingsError as error:
        print(f"samestep-lab: {error}", file=sys.stderr)
        return 2
    if is_script(command) and all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        _joined(command, settings, options)
    shown: list[int] = []

    def now(report: Report) -> None:
        shown.append(show(report, options))

    watched: Watched = watch_command(command, settings, now)
    if watched.report is not None:  # not shown before, or no longer true
        return show(watched.report, options)
    return shown[-1]


def _joined(command: Sequence[str], settings: Settings, options: argparse.Namespace) -> NoReturn:
    """torchrun has started this command itself: be one of its ranks."""
    from samestep.experiments.watch import rank

    rank.run(command, settings, None, lambda report: show(report, options))


def chosen(options: argparse.Namespace) -> Settings:
    """The options as settings; raises SettingsError."""
    given: dict[str, Any] = {name: getattr(options, name) for name in NAMES if hasattr(options, name)}
    return Settings(**given)


def show(report: Report, options: argparse.Namespace) -> int:
    """Print the report, write it where asked to, and give the exit code."""
    stream = sys.stderr if report.verdict == "error" else sys.stdout
    print(printed(report, options.lang), file=stream, flush=True)
    try:
        if options.json:
            options.json.write_text(as_json(report), "utf-8")
        if options.html:
            from samestep.experiments.watch.telling.page import write  # templates are read only where they are wanted

            write(report, options.html, options.lang, options.base_url)
    except OSError as error:
        print(f"samestep-lab: the report could not be written: {error}", file=sys.stderr)
        return 2
    return report.code
