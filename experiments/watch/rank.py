"""Be a rank that somebody else has started: run the reader's script in this process, watched from its first line."""

import contextlib
import os
import runpy
import shutil
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
GRACE = 10.0
VERDICT = "verdict"
"""The file by which rank 0 tells the others with which code to end."""


def run(command: Sequence[str], settings: Settings, folder: Path | None, show: Callable[[Report], int]) -> NoReturn:
    """Run the script as `__main__`; rank 0 shows the report, and all ranks end with its code, or an error's.

    One code for all: launchers of several hosts wait for each other where one of them has failed and another has not.
    """
    place = opened(folder or common_folder())
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
    if session.rank != 0:
        end(code or _told(place))
    if code == 0:
        wait_for_all(place, WAIT, to_the_end=True)
        code = show(assemble(place, settings.objective, command))
        _tell(place, code)
        _clear(place)
        if folder is None:
            remove(place)
    else:
        _tell(place, code)
    end(code)


def _tell(place: Path, code: int) -> None:
    """Give the others the code with which to end."""
    written = place / f"{VERDICT}.new"
    written.write_text(str(code), "utf-8")
    written.replace(place / VERDICT)


def _clear(place: Path) -> None:
    """Wait until the others have read the code, each of which takes its record away then, and leave nothing behind."""
    _wait(lambda: len(records.ranks(place)) <= 1, GRACE)
    for file in place.iterdir():
        if file.name.endswith((VERDICT, records.SUFFIX, records.ALIVE)):
            file.unlink(missing_ok=True)


def _told(place: Path) -> int:
    """The code of rank 0's report; 0 where rank 0 leaves no record in this folder, as a host that does not share it."""
    place_of_0 = f"0-*{records.SUFFIX}"
    if _wait(lambda: any(place.glob(place_of_0)), GRACE) and _wait((place / VERDICT).exists, 2 * WAIT):
        code = int((place / VERDICT).read_text("utf-8"))
        for file in place.glob(f"{place_of_process()[0]}-*{records.SUFFIX}"):
            file.unlink(missing_ok=True)
        return code
    return 0


def _wait(until: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _readers(error: BaseException) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    trace = sites.without_ours(error.__traceback__)
    while trace is not None and "runpy" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return trace


def opened(folder: Path) -> Path:
    """The folder, made if need be, without what this rank, or a rank that there is no more, has left in it before."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, size = place_of_process()
    for file in folder.glob(f"*{records.SUFFIX}"):
        of = int(file.name.partition("-")[0])
        if of == rank or of >= size:
            file.unlink(missing_ok=True)
    if rank == 0:
        (folder / VERDICT).unlink(missing_ok=True)
    return folder


def common_folder(block: int = 0) -> Path:
    """A folder that the ranks of this launch, and nobody else, agree on without talking: on one machine.

    block   which one of a script that watches several, in the order in which each rank comes to them
    """
    if "MASTER_PORT" not in os.environ:
        return _folder(os.getpid(), block)
    common = _folder(os.getppid(), block)
    if "TORCHELASTIC_RUN_ID" in os.environ or place_of_process()[0] != 0:
        return common
    mine = _folder(os.getpid(), block)  # where ranks look that this process has started, as Lightning's first rank does
    common.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        mine.symlink_to(common, target_is_directory=True)
    return mine


def _folder(launcher: int, block: int) -> Path:
    """The folder of the ranks that this process has started: its number may be used again, with another birth."""
    keys = [os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RUN_ID", ""), str(launcher)]
    with contextlib.suppress(OSError):  # where there is no /proc, the number has to do
        keys.append(Path(f"/proc/{launcher}/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    keys.append(str(block))
    return Path(tempfile.gettempdir()) / "-".join(["samestep-watch", str(os.getuid()), *filter(None, keys)])


def remove(folder: Path) -> None:
    """Take a common folder away once it has been read; a rank that writes on does not notice, nor find it any more."""
    place = folder.resolve()
    with contextlib.suppress(OSError):  # where nobody may rename it
        place = place.rename(place.with_name(f"{place.name}-read"))
    shutil.rmtree(place, ignore_errors=True)
    if folder.is_symlink():
        folder.unlink(missing_ok=True)


def wait_for_all(folder: Path, seconds: float, *, to_the_end: bool = False) -> None:
    """Until every rank has written its last record, or come to its own end; or long enough."""

    def there() -> bool:
        logs = records.ranks(folder)
        size = max((log.header.world_size for log in logs.values()), default=1)
        return not logs or (len(logs) >= size and all(log.ended if to_the_end else log.done for log in logs.values()))

    _wait(there, seconds)


def end(code: int) -> NoReturn:
    """End this process without waiting for threads that may never come back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
