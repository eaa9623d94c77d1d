"""Request bodies: one budget for all, a time for each, and nothing computed for a client that has gone."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from samestep.app.web import bodies
from samestep.app.web.bodies import Bodies, BodyError, BusyError, GoneError, TooLargeError, TooSlowError

PART = {"type": "http.request", "body": b"x" * 100, "more_body": True}
LAST = {"type": "http.request", "body": b"x" * 100, "more_body": False}
GONE = {"type": "http.disconnect"}


def scope(length: int | None = None) -> dict[str, Any]:
    return {"headers": [] if length is None else [(b"content-length", str(length).encode())]}


def client(messages: Iterable[dict[str, Any]], pause: float = 0) -> Any:
    """A receiver of these messages, then of nothing for ever."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause if left else 3600)
        return left.pop(0)

    return receive


def read(messages: Iterable[dict[str, Any]], budget: int = 1000, pause: float = 0, length: int | None = None) -> bytes:
    async def run() -> bytes:
        async with Bodies(budget).body(scope(length), client(messages, pause)) as body:
            return body

    return asyncio.run(run())


def test_a_body_is_all_its_parts() -> None:
    assert read([PART, PART, LAST]) == b"x" * 300


def test_a_client_that_hangs_up_has_sent_no_body() -> None:
    with pytest.raises(GoneError):
        read([PART, GONE])


def test_a_body_above_the_largest_one_is_refused_by_its_announcement_and_by_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TooLargeError):
        read([LAST], length=bodies.MAX_BODY + 1)
    monkeypatch.setattr(bodies, "MAX_BODY", 150)
    with pytest.raises(TooLargeError):
        read([PART, PART, LAST])


def test_a_client_that_falls_silent_or_is_too_slow_in_all_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SILENT_SECONDS", 0.05)
    with pytest.raises(TooSlowError):
        read([PART])
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.1)
    with pytest.raises(TooSlowError):
        read([PART] * 9, pause=0.03)


def test_all_bodies_share_one_budget_and_give_it_back() -> None:
    async def run() -> None:
        shared = Bodies(250)
        async with shared.body(scope(), client([PART, LAST])):
            with pytest.raises(BusyError):
                async with shared.body(scope(), client([LAST])):
                    pass
        for messages in ([PART, GONE], [PART, PART, PART]):  # what a refused body took is given back too
            with pytest.raises(BodyError):
                async with shared.body(scope(), client(messages)):
                    pass
        async with shared.body(scope(), client([PART, LAST])) as body:
            assert len(body) == 200

    asyncio.run(run())
