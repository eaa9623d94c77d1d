"""`torchrun … -m samestep.experiments.watch [options] SCRIPT [ARGUMENTS]`: where somebody else starts the ranks."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from samestep.experiments.audit.settings import SettingsError
from samestep.experiments.watch import command, rank


def main() -> NoReturn:
    """Run the script on this rank; rank 0 prints."""
    parser = argparse.ArgumentParser(prog="python -m samestep.experiments.watch", description=command.HELP)
    command.options(parser)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where ranks write; several hosts share one")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    options = parser.parse_args()
    try:
        settings = command.chosen(options)
    except SettingsError as error:
        print(f"samestep-lab: {error}", file=sys.stderr)
        sys.exit(2)
    arguments = [options.script, *options.arguments]
    rank.run(arguments, settings, options.folder, lambda report: command.show(report, options))


if __name__ == "__main__":
    main()
