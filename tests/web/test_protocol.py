"""Request heads have a time in which they must be complete."""

import asyncio

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from samestep.app.web import protocol
from samestep.app.web.protocol import BoundedHeadProtocol


async def answer_to(sent: bytes, then: bytes = b"", after: float = 0.0) -> bytes:
    """What a server answers, on a connection of its own, before it closes it."""
    config = uvicorn.Config(
        PlainTextResponse("here"), port=0, http=BoundedHeadProtocol, log_level="critical", lifespan="off"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
    try:
        writer.write(sent)
        await asyncio.sleep(after)
        if then:
            writer.write(then)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
        server.should_exit = True
        await running


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: "])
def test_a_head_that_is_never_complete_is_let_go(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    assert asyncio.run(answer_to(sent)) == b""


def test_a_complete_head_is_answered_however_long_the_connection_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 2.0)
    head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
    assert asyncio.run(answer_to(head, b"\r\n", 0.1)).endswith(b"here")
