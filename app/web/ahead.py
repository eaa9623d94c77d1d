"""Pages made before anybody asks, so that the first readers of a server that has just started wait for none."""

import asyncio
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Scope

from samestep.app.book.chapters import Book
from samestep.app.book.feeds import places
from samestep.app.calculators import registry

_PAUSE = 0.005
"""Seconds between two pages, for those who ask."""


async def make_ahead(app: ASGIApp, book: Book) -> None:
    """Ask for every page once, those first that most readers open first; what is there already costs next to nothing.

    A page that cannot be made says why to who asks for it.
    """
    for path in _paths(book):
        await _ask(app, path)
        await asyncio.sleep(_PAUSE)


def _paths(book: Book) -> Iterator[str]:
    for place in places(book, registry()):
        yield from place.paths.values()
    yield "/openapi.json"


async def _ask(app: ASGIApp, path: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"accept-encoding", b"br")],  # as it is kept: any other form would stand beside it
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
