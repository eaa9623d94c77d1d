"""Run the reader's command with watch in its environment, and see to it that it comes to an end.

The command is started as it is, in a session of its own, so that everything that it starts can be ended with it. Where
it is only a Python file, so many ranks of it are started as torchrun would. What processes print goes where it always
goes. This module does not import torch.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from samestep.experiments.audit.failure import Failure
from samestep.experiments.watch.joined.assembling import complete
from samestep.experiments.watch.records import ALIVE, ASK, STACKS, SUFFIX, VARIABLE
from samestep.experiments.watch.settings import Settings

INJECTED = Path(__file__).parent / "inject"
STARTING = 300.0
"""Seconds that a command may take to its first backward: importing, loading and compiling are slow."""
LOOK = 0.1
GRACE = 10.0
"""Seconds that processes get to end by themselves after they were asked to."""


@dataclass(frozen=True)
class Ended:
    """How the command came to its end; `failure` None: with code 0, or because it had been seen enough of."""

    failure: Failure | None


def run(command: Sequence[str], settings: Settings, folder: Path, when_complete: Callable[[], None]) -> Ended:
    """Run the command; `when_complete` is called once, as soon as all ranks have been seen often enough."""
    with _ending_with_us() as processes:
        try:
            for each in _commands(command, settings):
                processes.append(_start(each.arguments, {**_environment(settings, folder), **each.variables}))
        except OSError as error:
            return Ended(Failure(f"{command[0]}: {error.strerror or error}"))
        return _watch(command, processes, settings, folder, when_complete)


@dataclass(frozen=True)
class _Command:
    arguments: Sequence[str]
    variables: Mapping[str, str]


def is_script(command: Sequence[str]) -> bool:
    """Only a Python file: it is to be started as torchrun would."""
    return command[0].endswith(".py")


def _commands(command: Sequence[str], settings: Settings) -> Iterator[_Command]:
    if not is_script(command):
        yield _Command(command, {})
        return
    port = str(_free_port())
    for rank in range(settings.processes):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": settings.processes, "MASTER_PORT": port}
        variables = {name: str(value) for name, value in places.items()}
        variables |= {"LOCAL_WORLD_SIZE": str(settings.processes), "MASTER_ADDR": "127.0.0.1"}
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get(
            "GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo"
        )
        yield _Command([sys.executable, *command], variables)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(settings: Settings, folder: Path) -> dict[str, str]:
    order = {name: value for name, value in asdict(settings).items() if name in ("updates", "skip", "eager", "tensors")}
    places = os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": places, VARIABLE: json.dumps({"folder": str(folder), **order})}


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A program on no path may stand beside the Python that runs this: torchrun of an environment not entered."""
    beside = Path(sys.executable).parent / arguments[0]
    found = shutil.which(arguments[0]) or (str(beside) if beside.is_file() else arguments[0])
    return subprocess.Popen([found, *arguments[1:]], env=dict(environment), start_new_session=True)


def _watch(
    command: Sequence[str],
    processes: Sequence["subprocess.Popen[bytes]"],
    settings: Settings,
    folder: Path,
    when_complete: Callable[[], None],
) -> Ended:
    """The clock counts only time in which this loop ran: a suspended machine blames nobody."""
    clock, before, moved, last, told = 0.0, time.monotonic(), 0.0, 0.0, False
    while True:
        now = time.monotonic()
        clock, before = clock + min(now - before, 1.0), now
        codes = [each.poll() for each in processes]
        if all(code is not None for code in codes):
            return Ended(_by_code(codes))
        if any(code for code in codes):
            return Ended(_first_failure(processes))
        newest = _newest(folder)
        if newest != last:
            moved, last = clock, newest
            if not told and complete(folder):
                told = True
                when_complete()
                if settings.stop:
                    end(processes)
                    return Ended(None)
        if not told and clock - moved > (settings.timeout if last else max(settings.timeout, STARTING)):
            failure = _stuck(folder, clock - moved, bool(last))
            end(processes)
            return Ended(failure)
        time.sleep(LOOK)


def _newest(folder: Path) -> float:
    """When something was last heard of a rank; 0 before the first backward."""
    times = [0.0]
    with contextlib.suppress(OSError):
        times += [entry.stat().st_mtime for entry in os.scandir(folder) if entry.name.endswith((ALIVE, SUFFIX))]
    return max(times)


def _by_code(codes: Sequence[int | None]) -> Failure | None:
    for rank, code in enumerate(codes):
        if code:
            where = rank if len(codes) > 1 else None
            return Failure(
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}", where
            )
    return None


def _first_failure(processes: Sequence["subprocess.Popen[bytes]"]) -> Failure | None:
    """A rank has failed, the others may wait for it for ever. One that was killed is to blame before its peers."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(each.poll() is None for each in processes):
        time.sleep(LOOK)
    codes = [each.poll() for each in processes]
    end(processes)
    killed = next((rank for rank, code in enumerate(codes) if code is not None and code < 0), None)
    if killed is not None and len(codes) > 1:
        return Failure(f"was killed by {signal.Signals(-(codes[killed] or 0)).name}", killed)
    return _by_code(codes)


def _stuck(folder: Path, seconds: float, begun: bool) -> Failure:
    """Ask every rank where it is, and name one that the others may be waiting for."""
    (folder / ASK).touch()
    time.sleep(1.5)
    stacks: dict[int, list[tuple[str, int, str]]] = {}
    for file in folder.glob(f"*{STACKS}"):
        with contextlib.suppress(ValueError, OSError):  # half written
            stacks[int(file.name.partition("-")[0])] = [tuple(frame) for frame in json.loads(file.read_text("utf-8"))]
    where = "\n".join(f"    rank {rank}: {_own_line(stack)}" for rank, stack in sorted(stacks.items()))
    waiting = {rank: any(f"{os.sep}torch{os.sep}" in frame[0] for frame in stack[:1]) for rank, stack in stacks.items()}
    culprit = next((rank for rank, waits in sorted(waiting.items()) if not waits), None)
    what = "nothing has moved" if begun else "no backward was seen"
    message = f"{what} for {seconds:.0f} s: the ranks wait for each other, or one is stuck"
    return Failure(message, culprit if any(waiting.values()) else None, log=where)


def _own_line(stack: Sequence[tuple[str, int, str]]) -> str:
    libraries = (f"{os.sep}site-packages{os.sep}", f"{os.sep}lib{os.sep}python", "<")
    own = next((frame for frame in stack if not any(part in frame[0] for part in libraries)), None)
    if own is None:
        return "outside the reader's files"
    inside = "" if own is stack[0] else f", inside {stack[0][2]}()"
    return f"at {Path(own[0]).name}:{own[1]} in {own[2]}(){inside}"


def end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask every process group to end, and make sure that it has."""
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and any(each.poll() is None for each in processes):
        time.sleep(LOOK)
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()


@contextmanager
def _ending_with_us() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Who ends the command line ends the run: a signal unwinds like an exception."""
    processes: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may handle signals
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield processes
    finally:
        end(processes)
        for number, handler in before.items():
            signal.signal(number, handler)
