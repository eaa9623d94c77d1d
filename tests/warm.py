"""Ranks of tests as forks of a process that has imported torch: importing it is most of what a short run costs.

This module stands in for `subprocess` where ranks are started. What it starts is a fork of one process, which all
workers of a test run share. A fork is what `python -m MODULE …` or `python FILE.py …` would be: it has the command's
arguments, environment, folder, output and session, and runs the module or the file from where it lies.
`test_processes.py` starts ranks without it, and `test_command.py` of watch starts scripts without it.
"""

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

DEVNULL = subprocess.DEVNULL
LONGEST = 1 << 17
"""Bytes of a request: arguments and environment."""
DOOR = "SAMESTEP_TESTS_DOOR"
"""The environment variable that says where the process that forks is asked."""


class Fork:
    """What tests and a rank's parent ask of `subprocess.Popen`, of a fork whose exit code comes over a socket."""

    def __init__(self, ending: socket.socket) -> None:
        self.pid = int(ending.recv(32))
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        with contextlib.suppress(BlockingIOError):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises TimeoutError when that does not come in time."""
        if self.returncode is None:
            self._ending.settimeout(timeout)
            self.returncode = int(self._ending.recv(32) or -signal.SIGKILL)
            self._ending.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    pass_fds: tuple[int, ...] = (),
    **rest: Any,
) -> "Fork | subprocess.Popen[bytes]":
    """A fork, whose errors go where its output goes; of another interpreter a process as ever."""
    if command[0] != sys.executable:
        return subprocess.Popen(command, env=env, cwd=cwd, stdout=stdout, pass_fds=pass_fds, **rest)
    request = json.dumps([command[1:], dict(env), str(cwd or Path.cwd())]).encode()
    assert len(request) < LONGEST
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(os.environ[DOOR])
    socket.send_fds(door, [request], [stdout.fileno() if stdout else 1, *pass_fds])
    return Fork(door)


Popen = start


def starter() -> Any:
    """What starts a rank: this module where a process forks, and `subprocess` elsewhere."""
    return sys.modules[__name__] if DOOR in os.environ else subprocess


@contextlib.contextmanager
def warmed() -> Iterator[None]:
    """With the process that forks: it imports torch when it is first asked, and ends with this one. On Linux alone."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        os.environ[DOOR] = f"{folder}/door"
        door.bind(os.environ[DOOR])
        door.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, str(door.fileno())],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            pass_fds=(door.fileno(),),
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.communicate()


class Request(NamedTuple):
    """What a fork is to be. `pipe`: to its parent, if it is a rank of `experiments.ranks`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    output: int
    pipe: int | None = None


def serve(door: socket.socket) -> Request | None:
    """Fork on request, and tell how each fork ended, until standard input does; in a fork: what it is to be."""
    here = selectors.DefaultSelector()
    here.register(0, selectors.EVENT_READ)
    here.register(door, selectors.EVENT_READ)
    while True:
        for key, _ in here.select():
            if key.fd == 0:
                return None
            if key.fileobj is door:
                import_what_costs_most()
                asking, _ = door.accept()
                request, files, *_ = socket.recv_fds(asking, LONGEST, 2)
                if not (pid := os.fork()):
                    here.close()
                    asking.close()
                    return Request(*json.loads(request), *files)
                for file in files:
                    os.close(file)
                asking.send(str(pid).encode())
                here.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asking))
            else:
                pid, asking = key.data
                asking.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                asking.close()
                here.unregister(key.fileobj)
                os.close(key.fd)


@cache
def import_what_costs_most() -> None:
    """Nothing of it is garbage, and no fork need look."""
    gc.disable()
    for name in ("torch", "torch._dynamo", "torch.distributed.fsdp"):
        import_module(name)
    gc.freeze()
    gc.enable()


def become(asked: Request) -> None:
    """Be what the command would be."""
    os.setsid()
    for file, number in ((os.open(os.devnull, os.O_RDONLY), 0), (asked.output, 1), (asked.output, 2)):
        os.dup2(file, number)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.folder)
    sys.path[:0] = asked.environment.get("PYTHONPATH", "").split(os.pathsep)
    if "SAMESTEP_WATCH" in os.environ:  # as the `sitecustomize` of watch would, once torch is imported
        import_module("samestep.experiments.watch.session").from_environment()
    first, *rest = asked.command
    if first == "-m":
        sys.path.insert(0, asked.folder)
        sys.argv = rest
        if asked.pipe is not None:  # a rank's command ends with its pipe and its parent, which are others here
            sys.argv[-2:] = [str(asked.pipe), str(os.getppid())]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv = [first, *rest]
        main = sys.modules["__main__"] = ModuleType("__main__")  # which stays to the end, as that of a script does
        main.__file__ = first
        exec(compile(Path(first).read_text("utf-8"), first, "exec"), vars(main))


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    with socket.socket(fileno=int(sys.argv[1])) as door:
        asked = serve(door)
    if asked:
        become(asked)
