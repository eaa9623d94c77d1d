"""What every kind of page shares: the site, the frame round the content, and how a finished page is kept and sent."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from samestep.app.book.chapters import Book
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.web.compression import compressed
from samestep.app.web.pages import languages
from samestep.app.web.ready import Ready, coding_for
from samestep.app.web.site import Site

HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
"""A host that may stand in an absolute address."""
_AT_ONCE = 2
"""Pages that are made at once: one that takes a second holds up no other; many would hold up the event loop."""
_LARGE_PAGE = 32_000
"""Bytes from which a page that is made for one reader is compressed for him: 1 ms for 120 kB."""

Page = Callable[["Layout", Request], Response]
"""Makes a page."""
Pages = Mapping[str, Page]
"""What each module of pages holds: what makes them, by their addresses."""


class Layout:
    """Makes pages of templates. Each kind of page has one, and what it needs of the site through it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._beside = _Beside()

    def open(self, request: Request) -> tuple[Lang, Book]:
        """The language of the address, and the book as it stands now."""
        self.site.fresh()
        return request.path_params["lang"], self.site.book

    def routes(self, pages: Pages) -> list[Route]:
        """Pages at their addresses."""
        return [Route(path, self.beside(make)) for path, make in pages.items()]

    def beside(self, make: Page) -> Callable[[Request], Awaitable[Response]]:
        """The handler of a page that `make` makes in a thread: nobody else's request waits meanwhile."""

        async def handler(request: Request) -> Response:
            return await self.made(request, partial(make, self, request))

        return handler

    async def made(self, request: Request, work: Callable[[], Response]) -> Response:
        """What `work` makes of this address, in a thread; a form's page is its sender's alone."""
        if request.method != "POST" and not request.url.query:
            kept = await run_in_threadpool(self.site.pages.found, request.scope["path"])
            if kept is not None:
                return AsIs(kept)
        request.state.among = self.site.pages
        sender = id(request) if request.method == "POST" else request.headers.get("accept-encoding")
        return await self._beside.answer(f"{request.method} {request.url} {sender}", work)

    def context(self, request: Request, lang: Lang) -> dict[str, object]:
        """What every page needs: its language, its address, and the same page in the other language."""
        path = quote(request.scope["path"])
        query = f"?{request.url.query}" if request.url.query else ""
        other = languages.other(lang)
        named = path.startswith(tuple(f"/{one}" for one in LANGUAGES))
        alternate = f"/{other}{path[3:]}{query}" if named else f"/{other}/"
        return {"lang": lang, "path": path, "alternate_url": self.site.url(alternate), **self._preview(request, path)}

    def _preview(self, request: Request, path: str) -> dict[str, object]:
        """Where a link to this page is shown with a picture: its own address and the card's.

        Absolute only where that is the same for everybody, since finished pages are kept: with a base of its own, or
        in a state, whose page is made for the one who asks.
        """
        query = f"?{request.url.query}" if request.url.query else ""
        base = self.site.settings.base_url
        host = request.headers.get("host", "")
        if not base and query and HOST.fullmatch(host):
            base = f"{request.scope['scheme']}://{host}"
        place = base + self.site.url(path.rstrip("/"))
        return {"own_url": f"{base}{self.site.url(path)}{query}", "card_url": f"{place}/card.png{query}"}

    def page(self, request: Request, template: str, status: int = 200, **context: object) -> Response:
        """A page in the state of its address."""
        shared = self.context(request, request.path_params["lang"])
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
        shared = self.context(request, request.path_params["lang"])
        return self.kept(request, self.site.finished(self.site.render(template, shared | context)))

    def kept(self, request: Request, page: Ready) -> Response:
        """An answer that is the same for everybody."""
        return AsIs(self.site.keep(request.scope["path"], page, request.state.among))


class _Beside:
    """Pages made beside the event loop, two at a time; while one is made, nobody begins the same again."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Response]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def answer(self, key: str, work: Callable[[], Response]) -> Response:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._make(work))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _make(self, work: Callable[[], Response]) -> Response:
        async with self._turn:
            return await run_in_threadpool(work)


class AsIs(Response):
    """A finished answer, sent by itself."""

    def __init__(self, ready: Ready) -> None:
        super().__init__()
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ready(scope, receive, send)
