"""Request bodies, read within one budget for all of them and within a time.

What one server holds of bodies at any moment is bounded, however many connections bring them: above the budget a
request is told to come back. A client that goes away, or sends too slowly, gets no answer computed.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager

from starlette.types import Receive, Scope

from samestep.app.contract.limits import MAX_BODY
from samestep.app.web.ready import header

BUDGET = 2 * MAX_BODY
"""Bytes of all bodies together that are held at once."""
SILENT_SECONDS = 20.0
"""So long a client may send nothing in the middle of a body."""
BODY_SECONDS = 180.0
"""So long a whole body may take."""
RETRY_SECONDS = 5


def retry_after(status: int) -> dict[str, str]:
    """When to come again, for an answer that says so."""
    return {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}


class BodyError(Exception):
    """A body that is not taken: the status to answer with, and why."""

    status = 400
    code = "body"
    en, zh = "cannot be read", "无法读取"


class TooLargeError(BodyError):
    status, code = 413, "too_large"
    en, zh = f"is larger than {MAX_BODY >> 20} MiB", f"超过 {MAX_BODY >> 20} MiB"


class BusyError(BodyError):
    status, code = 503, "busy"
    en, zh = "has to wait: others are being read; try again in a moment", "暂时无法读取：正在处理其他请求，请稍后再试"


class TooSlowError(BodyError):
    status, code = 408, "too_slow"
    en, zh = "did not arrive in time", "没有按时送达"


class GoneError(BodyError):
    """The client has hung up: nobody waits for an answer."""


class Bodies:
    """Reads bodies, and knows how much of the budget they use until their requests are answered."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._free = budget

    @asynccontextmanager
    async def body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, held until the block ends; raises BodyError."""
        announced = header(scope, b"content-length")
        if announced.isdigit() and int(announced) > MAX_BODY:
            raise TooLargeError
        taken = _Taken(self)
        try:
            yield await _within_time(taken.all_of(receive))
        finally:
            self._free += taken.size

    def take(self, size: int) -> None:
        """Use so many bytes of the budget; BusyError where they are not there."""
        if size > self._free:
            raise BusyError
        self._free -= size


class _Taken:
    """What one request has taken of the budget."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.size = 0

    async def all_of(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        async with aclosing(_chunks(receive)) as arriving:
            async for chunk in arriving:
                if self.size + len(chunk) > MAX_BODY:
                    raise TooLargeError
                self._bodies.take(len(chunk))
                self.size += len(chunk)
                chunks.append(chunk)
        return b"".join(chunks)


async def _within_time(reading: Awaitable[bytes]) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await reading
    except TimeoutError:
        raise TooSlowError from None


async def _chunks(receive: Receive) -> AsyncGenerator[bytes, None]:
    while True:
        async with asyncio.timeout(SILENT_SECONDS):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
