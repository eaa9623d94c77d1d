"""A second process for large requests, so that reading and computing them delays nobody else's page."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

SECONDS = 30.0
"""So long one request may be computed."""
_WAITING = 32
"""So many requests may wait for the worker."""


class OffloadError(Exception):
    """A request that the worker did not answer: a code, and why."""

    code = "worker_died"
    en, zh = "the worker for large requests died on this one", "处理大请求的进程在处理这个请求时中止了"


class TooLongError(OffloadError):
    code = "too_long"
    en, zh = f"took more than {SECONDS:.0f} s to compute", f"计算超过 {SECONDS:.0f} 秒"


class QueueFullError(OffloadError):
    code = "busy"
    en, zh = "too many large requests are waiting; try again in a moment", "等待中的大请求太多，请稍后再试"


class Offload:
    """One worker process, started by the first large request and replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """`work(*arguments)` in the worker, one at a time; OffloadError where it gives no answer.

        A worker that was killed while it was idle, or by somebody else's request, costs this one nothing: it is tried
        once more in a new one.
        """
        if self._waiting >= _WAITING:
            raise QueueFullError
        self._waiting += 1
        try:
            async with self._turn:
                call = partial(work, *arguments, **named)
                try:
                    return await self._once(call)
                except BrokenProcessPool:
                    return await self._once(call)
        except BrokenProcessPool:
            raise OffloadError from None
        finally:
            self._waiting -= 1

    async def _once(self, call: Callable[[], _T]) -> _T:
        worker = self._worker = self._worker or await _Worker.start()
        try:
            async with asyncio.timeout(SECONDS):
                return await worker.run(call)
        except TimeoutError:
            self._worker = None
            worker.kill()
            raise TooLongError from None
        except BrokenProcessPool:
            self._worker = None
            raise

    def close(self) -> None:
        """End the worker; a later request would start another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Worker:
    """A pool of one process, whose number is known, so that it can be ended in the middle of a computation."""

    def __init__(self, pool: ProcessPoolExecutor, pid: int) -> None:
        self._pool = pool
        self._pid = pid

    @classmethod
    async def start(cls) -> "_Worker":
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_with_the_server)
        return cls(pool, await asyncio.get_running_loop().run_in_executor(pool, os.getpid))

    async def run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        """End it in the middle of its work."""
        os.kill(self._pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        self.close()


def _end_with_the_server() -> None:
    """A worker whose server was killed would wait for work for ever."""
    server = multiprocessing.parent_process()

    def watch() -> None:
        if server is not None:
            server.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
