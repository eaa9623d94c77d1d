"""What every kind of page shares: the site, the frame round the content, and how a finished page is kept and sent."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from samestep.app.book.chapters import Book
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.web.compression import compressed
from samestep.app.web.pages import languages
from samestep.app.web.ready import Ready, coding_for
from samestep.app.web.site import Site

_T = TypeVar("_T")

_LONG_STATE = 1_000
"""Above so many characters of state a panel is computed off the event loop."""
_LARGE_PAGE = 32_000
"""Bytes from which a page that is made for one reader is compressed for him: 1 ms for 120 kB."""


class Layout:
    """Makes pages of templates. Each kind of page has one, and what it needs of the site through it."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def open(self, request: Request) -> tuple[Lang, Book]:
        """The language of the address, and the book as it stands now."""
        self.site.fresh()
        return languages.of_address(request), self.site.book

    def context(self, request: Request, lang: Lang) -> dict[str, object]:
        """What every page needs: its language, its address, and the same page in the other language."""
        path = quote(request.scope["path"])
        query = f"?{request.url.query}" if request.url.query else ""
        other = languages.other(lang)
        named = path.startswith(tuple(f"/{one}" for one in LANGUAGES))
        alternate = f"/{other}{path[3:]}{query}" if named else f"/{other}/"
        return {"lang": lang, "path": path, "alternate_url": self.site.url(alternate)}

    def page(self, request: Request, template: str, status: int = 200, **context: object) -> Response:
        """A page in the state of its address."""
        shared = self.context(request, languages.of_address(request))
        body = self.site.render(template, shared | context).encode()
        headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
        coding = coding_for(request.scope) if len(body) > _LARGE_PAGE else None
        if coding is not None:
            body, headers["content-encoding"] = compressed(body, coding, quick=True), coding
        return Response(body, status, headers, "text/html")

    def finished(self, request: Request, template: str, **context: object) -> Response:
        """A page without state: kept, so that it is not rendered again."""
        if request.url.query:
            return self.page(request, template, 200, **context)
        shared = self.context(request, languages.of_address(request))
        return AsIs(self.site.keep(request.scope["path"], self.site.render(template, shared | context)))


class Once:
    """Work that is long and the same for everybody: while it is under way, nobody begins it again."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Response]] = {}

    async def answer(self, key: str, work: Callable[[], Response]) -> Response:
        """What `work` gives, done beside the event loop."""
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(run_in_threadpool(work))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)


class AsIs(Response):
    """A finished answer, sent by itself."""

    def __init__(self, ready: Ready) -> None:
        super().__init__()
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ready(scope, receive, send)


async def off_loop(size: int, work: Callable[[], _T]) -> _T:
    """The result of `work`, done beside the event loop where a state of this size may take long."""
    return await run_in_threadpool(work) if size > _LONG_STATE else work()
