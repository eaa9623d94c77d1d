"""Start the ranks of an audit, watch them, and end them all as soon as one fails or nothing moves any more.

Every rank has a log (the reader's prints go there), a pipe on which it says what it begins, and a session of its own.
Messages that the reader gets name the rank, what it was doing, and the reader's own lines. This module does not
import torch.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.app.paths import IMPORTED_FROM
from samestep.experiments.audit.failure import Failure
from samestep.experiments.audit.job import Job

_LAUNCHED_BY_OTHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# With DETAIL the constructor of DistributedDataParallel crashes in torch 2.13 on Gloo.
_UNSAFE = ("TORCH_DISTRIBUTED_DEBUG",)
START, STARTING = "start", 300.0
"""What a rank does before it says anything, and the seconds it may take: importing torch is slow on a busy machine."""

_NOT_THEIRS = (f'  File "{Path(__file__).parent}', '  File "<frozen runpy>"', "Extension modules:")
"""Lines in the log of a crashed rank that say nothing about the reader's code."""

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')


class LaunchError(RuntimeError):
    """A launch that ended early: which file was being audited, and what to say about it."""

    def __init__(self, index: int, failure: Failure) -> None:
        super().__init__(str(failure))
        self.index = index
        self.failure = failure


@dataclass
class _Process:
    rank: int
    popen: "subprocess.Popen[bytes]"
    pipe: int
    log: Path
    index: int = 0
    doing: str = START
    done: bool = False
    unread: bytes = b""
    complaint: str = ""
    traceback: str = ""
    failed_at: float = float("inf")

    @property
    def over(self) -> bool:
        """It has nothing left to do but wait for others."""
        return "is over" in self.doing

    @property
    def failed(self) -> bool:
        """It has ended, and not because it was done: the reader's code may end a process with any code."""
        return self.popen.poll() is not None and not (self.popen.returncode == 0 and self.done)


def launch(job: Job) -> None:
    """Run the job and return when every rank is done; raises LaunchError."""
    (job.folder / "rendezvous").unlink(missing_ok=True)
    processes: list[_Process] = []
    try:
        for rank in range(job.settings.ranks):
            processes.append(_start(job, rank))
        _watch(job, processes)
    finally:
        for each in processes:
            _end(each)


def _start(job: Job, rank: int) -> _Process:
    unwanted = {name for name in os.environ if name.startswith("TORCHELASTIC_")} | {*_LAUNCHED_BY_OTHERS, *_UNSAFE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(IMPORTED_FROM), os.environ.get("PYTHONPATH"))))
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    log = job.folder / f"rank{rank}.log"
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    program = [sys.executable, "-m", "samestep.experiments.audit.rank"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*program, str(job.folder), str(rank), str(writer), str(os.getpid())],
            env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    return _Process(rank, process, reader, log)


def _watch(job: Job, processes: Sequence[_Process]) -> None:
    """Return when all ended well. The clock counts only time in which this loop ran: a suspended parent blames none."""
    clock, before, moved = 0.0, time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        clock, before = clock + min(now - before, 1.0), now
        for each in processes:
            if _listen(each):
                moved = clock
        ended = [each for each in processes if each.popen.poll() is not None]
        for each in ended:
            _listen(each)  # what it said between the last look and its end
        if any(each.failed for each in ended):
            raise _first_failure(processes)
        if len(ended) == len(processes):
            return
        begun = any(each.doing != START for each in processes)
        if clock - moved > (job.settings.timeout if begun else max(job.settings.timeout, STARTING)):
            raise _stuck(job, [each for each in processes if each.popen.returncode is None])
        time.sleep(0.02)


def _listen(process: _Process) -> bool:
    """Read what the rank says; whether it said anything."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(process.pipe, 65536):
            process.unread += chunk
    *lines, process.unread = process.unread.split(b"\n")
    for message in map(json.loads, lines):
        if "failed" in message:
            process.complaint, process.traceback = message["failed"], message["traceback"]
            process.failed_at = message["at"]
        elif "done" in message:
            process.done = True
        else:
            process.index, process.doing = message["file"], message["doing"]
    return bool(lines)


def _first_failure(processes: Sequence[_Process]) -> LaunchError:
    """The rank that failed first: the others fail a moment later, because their peer is gone."""
    time.sleep(0.3)
    for each in processes:
        _listen(each)
    gone = [each for each in processes if each.failed]
    culprit = min(gone, key=lambda each: (each.popen.returncode > 0, each.failed_at))
    code = culprit.popen.returncode
    if culprit.complaint:
        message, log = culprit.complaint, ""
    else:
        message = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        log = _tail(culprit.log)
    return LaunchError(culprit.index, Failure(message, culprit.rank, culprit.doing, culprit.traceback, log))


def _tail(log: Path) -> str:
    """The last lines of what the rank wrote, without the frames of this package below the reader's."""
    lines = log.read_text(errors="replace").strip().splitlines()
    kept = [line for line in lines if not line.startswith(_NOT_THEIRS) and line.strip()]
    return "\n".join(f"    | {line}" for line in kept[-12:])


def _stuck(job: Job, running: Sequence[_Process]) -> LaunchError:
    """Ask every rank where it is, and name one that the others may be waiting for."""
    for each in running:
        each.popen.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    stacks = {each.rank: _frames(each.log) for each in running}
    busy = [each for each in running if not each.over]
    in_torch = {each.rank: "/torch/" in stacks[each.rank][0][0] if stacks[each.rank] else False for each in running}
    culprit = min(busy or running, key=lambda each: in_torch[each.rank])
    where = "\n".join(
        f"    rank {each.rank}: {each.doing}; {_own_line(job.files[each.index], stacks[each.rank])}" for each in running
    )
    message = f"nothing has moved for {job.settings.timeout:g} s: the ranks wait for each other, or one is stuck"
    return LaunchError(culprit.index, Failure(message, culprit.rank, culprit.doing, log=where))


def _frames(log: Path) -> list[tuple[str, int, str]]:
    """The last stack of the main thread that faulthandler wrote: innermost first."""
    text = log.read_text(errors="replace")
    _, _, stack = text.rpartition("(most recent call first):\n")
    found = [_FRAME.match(line) for line in stack.splitlines()]
    return [(each["file"], int(each["line"]), each["function"]) for each in found if each]


def _own_line(file: Path, stack: Sequence[tuple[str, int, str]]) -> str:
    own = next((frame for frame in stack if Path(frame[0]) == file), None)
    if own is None:
        return "outside the reader's file"
    inside = "" if own is stack[0] else f", inside {stack[0][2]}()"
    return f"at {file.name}:{own[1]} in {own[2]}(){inside}"


def _end(process: _Process) -> None:
    """Make sure that the rank and everything in its session is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.popen.pid, signal.SIGKILL)
    process.popen.wait()
    os.close(process.pipe)
