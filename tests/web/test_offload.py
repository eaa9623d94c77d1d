"""The worker for large requests: bounded in time, replaced when it dies, harmless to the next request."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from samestep.app.web import offload
from samestep.app.web.offload import Offload, OffloadError, QueueFullError, TooLongError


def with_worker(run: Callable[[Offload], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        worker = Offload()
        try:
            await run(worker)
        finally:
            worker.close()

    asyncio.run(all_of_it())


def test_a_worker_killed_while_idle_costs_the_next_request_nothing() -> None:
    async def run(worker: Offload) -> None:
        first = await worker.run(os.getpid)
        os.kill(first, signal.SIGKILL)
        assert await worker.run(pow, 2, 10) == 1024
        assert await worker.run(os.getpid) != first

    with_worker(run)


def test_a_request_that_kills_the_worker_twice_is_refused_and_the_next_one_answered() -> None:
    async def run(worker: Offload) -> None:
        with pytest.raises(OffloadError):
            await worker.run(os._exit, 1)
        assert await worker.run(pow, 2, 10) == 1024

    with_worker(run)


def test_a_request_that_takes_too_long_is_ended_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(worker: Offload) -> None:
        busy = await worker.run(os.getpid)
        monkeypatch.setattr(offload, "SECONDS", 0.2)
        with pytest.raises(TooLongError):
            await worker.run(time.sleep, 3600)
        monkeypatch.setattr(offload, "SECONDS", 30.0)
        assert await worker.run(pow, 2, 10) == 1024
        with pytest.raises(ProcessLookupError):
            os.kill(busy, 0)

    with_worker(run)


def test_requests_wait_for_their_turn_and_too_many_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_WAITING", 3)

    async def run(worker: Offload) -> None:
        answers = await asyncio.gather(*(worker.run(pow, 2, i) for i in range(4)), return_exceptions=True)
        assert answers[:3] == [1, 2, 4]
        assert isinstance(answers[3], QueueFullError)

    with_worker(run)
