"""Ranks of tests as forks of a process that has imported torch: importing it is most of what a short run costs.

`Stable` stands in for the module `subprocess` in `experiments.ranks.parent`. Its process forks on request. A fork is
what `python -m MODULE …` would be: it has the command's arguments, environment, folder, log and session, and runs the
module from its file. `test_processes.py` starts ranks without it too.
"""

import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

LONGEST = 1 << 17
"""Bytes of a request: arguments and environment."""


class Rank:
    """What a rank's parent asks of `subprocess.Popen`, of a fork whose exit code comes over a socket."""

    def __init__(self, ending: socket.socket) -> None:
        self.pid = int(ending.recv(32))
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        return self._ended(socket.MSG_DONTWAIT)

    def wait(self) -> int | None:
        return self._ended(0)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _ended(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = int(self._ending.recv(32, flags) or -signal.SIGKILL)
            except BlockingIOError:
                return None
            self._ending.close()
        return self.returncode


class Stable:
    """The process that forks, begun with the first rank."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        self.Popen = self._start
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def _start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        stdout: IO[bytes],
        pass_fds: tuple[int],
        **rest: Any,
    ) -> "Rank | subprocess.Popen[bytes]":
        """A rank; one of another interpreter is started as ever."""
        if command[0] != sys.executable:
            return subprocess.Popen(command, env=env, cwd=cwd, stdout=stdout, pass_fds=pass_fds, **rest)
        ours, theirs = socket.socketpair()
        request = json.dumps([command[2:], dict(env), str(cwd or Path.cwd())]).encode()
        assert len(request) < LONGEST
        with theirs:
            socket.send_fds(self._door(), [request], [stdout.fileno(), *pass_fds, theirs.fileno()])
        return Rank(ours)

    def _door(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        return self._requests

    def close(self) -> None:
        """End the process, and with it whatever rank is left."""
        if self._requests and self._process:
            self._requests.close()
            self._process.wait(10)


def serve(requests: socket.socket) -> None:
    """Fork on request, and tell how each fork ended, until nobody is left to ask."""
    here = selectors.DefaultSelector()
    here.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in here.select():
            if key.data:
                here.unregister(key.fileobj)
                pid, ending = key.data
                ending.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                ending.close()
                os.close(key.fd)
                continue
            request, files, *_ = socket.recv_fds(requests, LONGEST, 3)
            if not request:
                return
            log, pipe, end = files
            pid = os.fork()
            if not pid:
                here.close()
                requests.close()
                os.close(end)
                become(*json.loads(request), log, pipe)
            os.close(log)
            os.close(pipe)
            ending = socket.socket(fileno=end)
            ending.send(str(pid).encode())
            here.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ending))


def become(command: Sequence[str], environment: Mapping[str, str], folder: str, log: int, pipe: int) -> NoReturn:
    """Be `python -m` of the command: MODULE FOLDER RANK SIZE PIPE PARENT, with the last two as they are here."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [folder, *environment["PYTHONPATH"].split(os.pathsep)]
    module, *arguments = command
    sys.argv = [module, *arguments[:3], str(pipe), str(os.getppid())]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException:  # whatever it is, its traceback goes to the log, as the interpreter would print it
        traceback.print_exc()
    os._exit(1)  # a rank ends by itself, with `child.end`; what comes here has failed


if __name__ == "__main__":
    for name in ("torch", "torch._dynamo", "torch.distributed.fsdp"):
        import_module(name)
    sys.path.pop(0)  # the folder of this file
    serve(socket.socket(fileno=int(sys.argv[1])))
