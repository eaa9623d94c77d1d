"""Be a rank that somebody else has started: run the reader's script in this process, watched from its first line."""

import contextlib
import os
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from samestep.experiments.taps import sites
from samestep.experiments.watch import records
from samestep.experiments.watch.joined.assembling import assemble
from samestep.experiments.watch.session import Order, place_of_process, start, stop
from samestep.experiments.watch.settings import Settings
from samestep.experiments.watch.telling.report import Report

WAIT = 60.0
"""Seconds that rank 0 waits for the records of the others, once its own script has ended."""


def run(command: Sequence[str], settings: Settings, folder: Path | None, show: Callable[[Report], int]) -> NoReturn:
    """Run the script as `__main__`; rank 0 shows the report, and every rank ends with the code of its own."""
    place = folder or common_folder()
    place.mkdir(parents=True, exist_ok=True)
    session = start(Order(str(place), settings.updates, settings.skip, settings.eager, settings.tensors))
    sys.argv = [*command]
    sys.path.insert(0, str(Path(command[0]).resolve().parent))
    code = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        session.failed(error)
        trace = _readers(error)
        print("".join(traceback.format_exception(type(error), error, trace)), end="", file=sys.stderr)
        code = 2
    stop(session)
    if int(os.environ.get("RANK", "0")) == 0 and code == 0:
        wait_for_all(place, WAIT)
        code = show(assemble(place, settings.objective, command))
    end(code)


def _readers(error: BaseException) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    trace = sites.without_ours(error.__traceback__)
    while trace is not None and "runpy" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return trace


def common_folder() -> Path:
    """A folder that the ranks of this launch, and nobody else, agree on without talking: on one machine."""
    if "MASTER_PORT" not in os.environ:
        return _folder(os.getpid())
    common = _folder(os.getppid())
    if "TORCHELASTIC_RUN_ID" in os.environ or place_of_process()[0] != 0:
        return common
    mine = _folder(os.getpid())  # where ranks look that this process has started, as Lightning's first rank does
    common.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        mine.symlink_to(common, target_is_directory=True)
    return mine


def _folder(launcher: int) -> Path:
    """The folder of the ranks that this process has started."""
    keys = (os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RUN_ID", ""), str(launcher))
    return Path(tempfile.gettempdir()) / "-".join(["samestep-watch", str(os.getuid()), *filter(None, keys)])


def wait_for_all(folder: Path, seconds: float) -> None:
    """Until every rank has written its last record, or long enough."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        logs = records.ranks(folder)
        size = max((log.header.world_size for log in logs.values()), default=1)
        if not logs or (len(logs) >= size and all(log.done for log in logs.values())):
            return
        time.sleep(0.1)


def end(code: int) -> NoReturn:
    """End this process without waiting for threads that may never come back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
