"""Watch this process: put the taps in, write what they see into a folder, take them out again.

`start` may be called by the launcher's hook before the script runs, by a `with` in the script, or by a callback; while
one session is on, another one joins it.
"""

import atexit
import contextlib
import json
import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from samestep.experiments.taps import alive, calls, features, sites
from samestep.experiments.taps.patches import Patches
from samestep.experiments.taps.steps import Steps
from samestep.experiments.watch.records import (
    ALIVE,
    ASK,
    STACKS,
    SUFFIX,
    VARIABLE,
    Done,
    Failure,
    Fault,
    Header,
    Notice,
    Update,
)
from samestep.experiments.watch.windows import Windows

PULSE = 0.5
"""Seconds between two looks at whether anything has moved."""
FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "transformers", "trl")


@dataclass(frozen=True)
class Order:
    """What to watch and where to write it. `tensors`: sketch only so many of the largest; None: all."""

    folder: str
    updates: int = 2
    skip: int = 0
    eager: bool = False
    tensors: int | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))


class Session:
    """The taps of this process, and the file that they write."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.patches = Patches()
        self.windows = Windows(order.updates, order.skip, self.write, self.finish)
        self.windows.backwards.parameters.only = order.tensors
        self.done = False
        self._file: Path | None = None
        self._waiting: list[Any] = []
        self._lock = threading.Lock()
        self._moved = -1

    def install(self) -> None:
        backwards = self.windows.backwards
        already = alive.found()
        backwards.install(self.patches)
        Steps(backwards).install(self.patches, already)
        features.install(self.patches, backwards.parameters, self.windows, already)
        calls.install(self.patches)
        if self.order.eager:
            torch.compiler.set_stance("force_eager")
            self.patches.later(lambda: torch.compiler.set_stance("default"))
        threading.Thread(target=self._pulse, name="samestep-watch", daemon=True).start()

    @property
    def rank(self) -> int:
        """This process's."""
        return int(self._file.name.partition("-")[0]) if self._file is not None else place_of_process()[0]

    def write(self, message: Update | Notice | Fault | Failure | Done) -> None:
        """Append to this rank's file; the file begins with the first update, when the rank is known, or at the end."""
        with self._lock, contextlib.suppress(OSError):  # a full disk must not end the reader's training
            self._waiting.append(message)
            if self._file is None and isinstance(message, Notice | Fault):
                return
            if self._file is None:
                rank, size = place_of_process()
                self._file = Path(self.order.folder) / f"{rank}-{os.getpid()}{SUFFIX}"
                self._waiting.insert(0, Header(rank, size, os.getpid(), time.time(), _script(), environment()))
            with self._file.open("ab") as stream:
                stream.write(b"".join(pickle.dumps(each) for each in self._waiting))
            self._waiting.clear()

    def finish(self) -> None:
        """Watch no more: as many updates were seen as were asked for."""
        if not self.done:
            self.done = True
            self.windows.backwards.listening = False
            self.patches.undo()
            self.write(Done(ended=False))

    def close(self) -> None:
        """The process, or the block that is watched, comes to its end. Without any backward there is nothing to say."""
        self.patches.undo()
        if self.windows.backwards.count:
            self.finish()
        if self._launches():
            return
        if self._file is not None or self._waiting or self.windows.backwards.count:
            self.write(Done(ended=True))

    def failed(self, error: BaseException) -> None:
        """An exception ends the process."""
        lines = traceback.format_exception(type(error), error, sites.without_ours(error.__traceback__))
        message = traceback.format_exception_only(error)[-1].strip()
        if not self._launches():
            self.write(Failure(message, "".join(lines), time.time(), getattr(error, "error_index", None)))

    def _launches(self) -> bool:
        """Whether this process only starts ranks: what ends it is what ended one of them, which tells it better."""
        started = self.windows.backwards.count or "RANK" in os.environ
        return not started and "torch.distributed.launcher.api" in sys.modules

    def _pulse(self) -> None:
        """Twice a second: say whether anything has moved, and answer when asked where this process is."""
        folder, pid, answered = Path(self.order.folder), os.getpid(), False
        alive = folder / f"{pid}{ALIVE}"
        while folder.is_dir():
            moved = self.windows.backwards.count + self.windows.backwards.engine.depth
            with contextlib.suppress(OSError):
                if moved != self._moved and self.windows.backwards.count:
                    self._moved = moved
                    alive.touch()
                if not answered and (folder / ASK).exists():
                    answered = True
                    rank, _ = place_of_process()
                    (folder / f"{rank}-{pid}{STACKS}").write_text(json.dumps(_where()), "utf-8")
            time.sleep(PULSE)


def _where() -> list[tuple[str, int, str]]:
    """The main thread's frames, innermost first, without ours."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame)[::-1]
    return [(each.filename, each.lineno or 0, each.name) for each in stack if not sites.is_ours(each.filename)]


_current: Session | None = None


def current() -> Session | None:
    """The session that is on in this process, if there is one."""
    return _current


def start(order: Order) -> Session:
    """Begin to watch this process."""
    global _current
    session = _current = Session(order)
    session.install()
    return session


def stop(session: Session) -> None:
    """End it."""
    global _current
    session.close()
    if _current is session:
        _current = None


def from_environment() -> None:
    """What the launcher's hook calls once torch has been imported."""
    order = Order(**json.loads(os.environ[VARIABLE]))
    session = start(order)
    whole_life(session)


def whole_life(session: Session) -> None:
    """Watch to the end of the process: its exception is written down, and shown without frames of ours."""
    pid, show = os.getpid(), sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):  # the reader's traceback comes first, whatever happens to ours
            session.failed(error)
        show(kind, error, sites.without_ours(trace))

    sys.excepthook = hook
    atexit.register(lambda: session.close() if os.getpid() == pid else None)


def place_of_process() -> tuple[int, int]:
    """Rank and world size: the process group's where there is one, else the launcher's."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _script() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else ""


def environment() -> dict[str, str]:
    """Versions of what is in use here."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "torch": str(torch.__version__)}
    for name in FRAMEWORKS:
        if name in sys.modules:
            with contextlib.suppress(PackageNotFoundError):
                found[name] = version(name.replace("_", "-"))
    if dist.is_available() and dist.is_initialized():
        found["backend"] = dist.get_backend()
    return found
