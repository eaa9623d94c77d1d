"""Start P processes on this machine, watch them, and end the run as soon as one of them fails.

No launcher and no port is needed: the processes find each other through a file in a fresh folder. Every rank has a
log of its own and a pipe to this parent. Over the pipe come a heartbeat (twice a second, from a thread of its own) and
the name of each step the rank begins. The run ends when

    a rank ends before it is done      at once                        "was killed by SIGKILL", "ended with code 1"
    a rank gives no sign of life       after `silent_after` seconds     it is stopped, or the machine swaps
    no rank begins another step        after `stuck_after` seconds      one of them is stuck, the others wait for it

both well before the process group's own time-out (`experiments.world.GROUP_TIMEOUT`), so that the message can name
the rank, its step and its log. A rank whose parent is gone ends by itself (see `experiments.world`): no orphans.
This module does not import torch.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.app.evidence.bags import Json
from samestep.app.paths import IMPORTED_FROM

_LAUNCHED_BY_OTHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# With DETAIL the constructor of DistributedDataParallel crashes in torch 2.13 on Gloo.
_UNSAFE = ("TORCH_DISTRIBUTED_DEBUG",)


@dataclass(frozen=True)
class Job:
    """What the ranks do: run `module.run(world)` for each module in turn, with the same options.

    `asked`: how many ranks each experiment is to use, None for as many as it usually takes.
    """

    modules: Sequence[str]
    processes: int
    backend: str = "gloo"
    asked: int | None = None
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Seconds of silence of one rank, and of standstill of all, after which a run has failed."""

    silent_after: float = 30.0
    stuck_after: float = 50.0


@dataclass(frozen=True)
class Step:
    """Progress of a rank: what it does now, and how much of it is done (0 to 1) where that is known."""

    rank: int
    what: str
    done: float | None


class RunFailedError(RuntimeError):
    """A run that ended early: which rank, at which step, why, and where its log is."""

    def __init__(self, rank: int, step: str, reason: str, log: Path) -> None:
        lines = log.read_text(errors="replace").strip().splitlines()[-12:]
        tail = "".join(f"\n    | {line}" for line in lines)
        super().__init__(f"rank {rank} {reason} at step “{step}”; its log is {log}{tail}")
        self.rank = rank
        self.step = step
        self.reason = reason
        self.log = log


@dataclass
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    pipe: int
    log: Path
    last_sign: float = 0.0
    last_step: float = 0.0
    steps: int = 0
    step: str = "start"
    unread: bytes = b""
    complaint: str | None = None
    failed_at: float = float("inf")

    def failed(self) -> bool:
        return self.process.poll() not in (None, 0)

    def reason(self) -> str:
        code = self.process.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"failed ({self.complaint})" if self.complaint else f"ended with code {code}"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A fresh folder for one run: rendezvous, logs, results. It stays when the run fails, for the logs' sake."""
    folder = Path(tempfile.mkdtemp(prefix="samestep-"))
    try:
        yield folder
    except KeyboardInterrupt:  # nobody will want to read why
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def launch(
    job: Job, folder: Path, progress: Callable[[Step], None] = lambda step: None, limits: Limits | None = None
) -> None:
    """Run the job in `folder` (fresh) and return when every rank is done; raises RunFailedError."""
    order = asdict(job)
    (folder / "job.json").write_text(json.dumps(order))
    ranks: list[_Rank] = []
    try:
        for rank in range(job.processes):
            ranks.append(_start(rank, job.processes, folder))
        _watch(ranks, progress, limits or Limits())
    finally:
        for each in ranks:
            _end(each)


def _start(rank: int, size: int, folder: Path) -> _Rank:
    unwanted = {name for name in os.environ if name.startswith("TORCHELASTIC_")} | {*_LAUNCHED_BY_OTHERS, *_UNSAFE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(IMPORTED_FROM), os.environ.get("PYTHONPATH"))))
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    log = folder / f"rank{rank}.log"
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    command = [
        sys.executable,
        "-m",
        "samestep.experiments.world",
        str(folder),
        str(rank),
        str(size),
        str(writer),
        str(os.getpid()),
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    return _Rank(rank, process, reader, log)


def _watch(ranks: list[_Rank], progress: Callable[[Step], None], limits: Limits) -> None:
    """Return when every rank ended with code 0; raise for the first that fails, is silent or is stuck.

    The clock counts only time in which this loop ran: a suspended parent blames nobody when it goes on.
    """
    clock, before = 0.0, time.monotonic()
    while True:
        now = time.monotonic()
        clock, before = clock + min(now - before, 1.0), now
        for each in ranks:
            _listen(each, clock, progress)
        if any(each.failed() for each in ranks):
            raise _first_failure(ranks, progress)
        running = [each for each in ranks if each.process.returncode is None]
        if not running:
            return
        for each in running:
            if clock - each.last_sign > limits.silent_after:
                raise _error(each, f"gave no sign of life for {limits.silent_after:.0f} s")
        if all(clock - each.last_step > limits.stuck_after for each in running):
            raise _stuck(running, limits.stuck_after)
        time.sleep(0.05)


def _listen(rank: _Rank, clock: float, progress: Callable[[Step], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(rank.pipe, 65536):
            rank.unread += chunk
            rank.last_sign = clock
    *lines, rank.unread = rank.unread.split(b"\n")
    for message in map(json.loads, lines):
        if "failed" in message:
            rank.complaint, rank.failed_at = message["failed"], message["at"]
        if "step" in message:
            rank.step, rank.last_step = message["step"], clock
            rank.steps += 1
            progress(Step(rank.rank, rank.step, message["done"]))


def _first_failure(ranks: list[_Rank], progress: Callable[[Step], None]) -> RunFailedError:
    """The rank that failed first: the others fail a moment later because their peer is gone."""
    time.sleep(0.5)
    for each in ranks:
        _listen(each, 0.0, progress)
    failed = [each for each in ranks if each.failed()]
    culprit = min(failed, key=lambda each: (each.process.returncode > 0, each.failed_at))
    return _error(culprit, culprit.reason())


def _stuck(ranks: list[_Rank], seconds: float) -> RunFailedError:
    """Ask every rank for its stack, and name the one that does not wait for others inside torch."""
    for each in ranks:
        each.process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    waiting = {each.rank for each in ranks if "/torch/" in _innermost_frame(each.log)}
    culprit = min(ranks, key=lambda each: (each.rank in waiting, each.steps))
    return _error(culprit, f"is stuck: nothing has moved for {seconds:.0f} s")


def _innermost_frame(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    starts = [index for index, line in enumerate(lines) if "(most recent call first)" in line]
    return lines[starts[-1] + 1] if starts and starts[-1] + 1 < len(lines) else ""


def _error(rank: _Rank, reason: str) -> RunFailedError:
    return RunFailedError(rank.rank, rank.step, reason, rank.log)


def _end(rank: _Rank) -> None:
    """Make sure that the rank and everything in its session is gone, stopped or not."""
    if rank.process.poll() is None:
        os.killpg(rank.process.pid, signal.SIGKILL)
    rank.process.wait()
    os.close(rank.pipe)
