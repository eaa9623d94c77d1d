"""A rank's side of a run that `parent` started: it joins, reports over a pipe, and ends without waiting for anybody.

A program is a module whose `main` calls `run(work)`; its command line is FOLDER RANK SIZE PIPE PARENT. When the parent
ends in any way, so does the rank. This module does not import torch.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

HEARTBEAT = 0.5


@dataclass(frozen=True)
class Post:
    """A rank's place in its run, and the pipe to its parent."""

    folder: Path
    rank: int
    size: int
    pipe: int
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def say(self, **message: object) -> None:
        """Send a message, of what JSON can hold; raises OSError when nobody reads any more."""
        rest = json.dumps(message).encode() + b"\n"
        with self._one_at_a_time:
            while rest:
                rest = rest[os.write(self.pipe, rest) :]

    def fail(self, message: str, **more: object) -> None:
        """Say why this rank is about to end. The time tells who failed first."""
        self.say(failed=message, at=time.monotonic(), **more)


def run(work: Callable[[Post], None], *, heartbeat: bool = False) -> NoReturn:
    """Join, do the work, and end. `heartbeat`: give signs of life meanwhile."""
    post = join(heartbeat=heartbeat)
    try:
        work(post)
    except BaseException as error:  # whatever it is, the parent has to know, and nothing may hang on the way out
        traceback.print_exception(error)
        post.fail(f"{type(error).__name__}: {str(error)[:300]}")
        end(1)
    post.say(over=True)
    end(0)


def join(*, heartbeat: bool = False) -> Post:
    """Take the place that the command line names; on SIGUSR1 this process writes its stack into its log."""
    folder, (rank, size, pipe, parent) = Path(sys.argv[1]), map(int, sys.argv[2:])
    _die_with(parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    post = Post(folder, rank, size, pipe)
    if heartbeat:
        threading.Thread(target=_beat, args=(post,), daemon=True).start()
    return post


def end(code: int) -> NoReturn:
    """End this process without waiting for anything that may never come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _beat(post: Post) -> None:
    while True:
        try:
            post.say()
        except OSError:  # nobody reads any more: the parent is gone
            os._exit(1)
        time.sleep(HEARTBEAT)


def _die_with(parent: int) -> None:
    """Linux kills this process with its parent, even while it is stopped; elsewhere the next message finds nobody."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
