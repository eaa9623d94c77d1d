"""A second process for large requests, so that reading and computing them delays nobody else's page."""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

_T = TypeVar("_T")


class Offload:
    """One worker process, started by the first large request and replaced when it dies."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """`work(*arguments)` in the worker; BrokenProcessPool when it dies on this very work."""
        pool = self._pool = self._pool or ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_the_server
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = None
            raise

    def close(self) -> None:
        """End the worker; a later request would start another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _end_with_the_server() -> None:
    """A worker whose server was killed would wait for work for ever."""
    server = multiprocessing.parent_process()

    def watch() -> None:
        if server is not None:
            server.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
