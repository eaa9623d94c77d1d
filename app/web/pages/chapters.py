"""Whole pages: shelf, chapters, the list of calculators, search, the API's description."""

from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote

import brotli
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from samestep.app.book.chapters import CalculatorRef, Chapter, EvidenceRef
from samestep.app.calculators import registry
from samestep.app.contract.errors import FieldError, given_twice
from samestep.app.contract.languages import Lang
from samestep.app.evidence.bags import UnknownEvidenceError
from samestep.app.evidence.exhibits import exhibit_of, origin
from samestep.app.instruments.panels import Panel, default_texts
from samestep.app.web.ready import takes_brotli
from samestep.app.web.site import Site

_T = TypeVar("_T")

_LONG_STATE = 1_000
"""Above so many characters of state a panel is computed off the event loop."""
_LARGE_PAGE = 32_000
"""Bytes from which a page that is made for one reader is compressed for him: 1 ms for 120 kB."""


class _LangConvertor(Convertor[str]):
    regex = "zh|en"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("lang", _LangConvertor())


def other(lang: Lang) -> Lang:
    return "en" if lang == "zh" else "zh"


def preferred(accept_language: str) -> Lang:
    """The language of the book that a browser's Accept-Language likes best; English when it likes neither."""
    best: tuple[float, Lang] = (0.0, "en")
    for part in accept_language.lower().split(","):
        tag, _, parameter = part.strip().partition(";")
        lang = tag.split("-")[0]
        try:
            weight = float(parameter.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        if lang in ("zh", "en") and weight > best[0]:
            best = weight, cast(Lang, lang)
    return best[1]


def page_routes(site: Site) -> list[Route]:
    """The routes of all pages; the most specific ones first."""
    pages = Pages(site)
    return [
        Route("/", pages.root),
        Route("/{lang:lang}", pages.shelf_without_slash),
        Route("/{lang:lang}/", pages.shelf),
        Route("/{lang:lang}/calculators", pages.calculators),
        Route("/{lang:lang}/experiments", pages.experiments),
        Route("/{lang:lang}/experiments/{name}", pages.experiment),
        Route("/{lang:lang}/search", pages.search),
        Route("/{lang:lang}/api", pages.api),
        Route("/{lang:lang}/{slug}", pages.chapter),
        Route("/{lang:lang}/{path:path}/", pages.slash_too_many),
    ]


class Pages:
    """The handlers; each answers in the language of its address."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def root(self, request: Request) -> Response:
        lang = preferred(request.headers.get("accept-language", ""))
        return RedirectResponse(self._site.url(f"/{lang}/"), 307, {"vary": "accept-language"})

    async def shelf_without_slash(self, request: Request) -> Response:
        return RedirectResponse(self._site.url(f"{request.url.path.removesuffix('/')}/"), 308)

    async def slash_too_many(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(self._site.url(quote(request.scope["path"].rstrip("/"))) + query, 308)

    async def shelf(self, request: Request) -> Response:
        lang, book = self._open(request)
        description = (
            "梯度缩放与并行正确性的交互式 Wiki" if lang == "zh" else "An interactive wiki on parallel correctness"
        )
        title = "同一步" if lang == "zh" else "SameStep"
        context = {"parts": book.parts(lang), "families": book.families(lang)}
        return self._finished(request, "shelf.html", title=title, description=description, **context)

    async def calculators(self, request: Request) -> Response:
        lang, _ = self._open(request)
        words = self._site.panels.words
        entries = [
            {"name": name, "title": words(lang, name, "heading"), "summary": words(lang, name, "summary")}
            for name in registry()
        ]
        title = "计算器" if lang == "zh" else "Calculators"
        return self._finished(request, "calculators.html", title=title, description="", panels=entries)

    async def api(self, request: Request) -> Response:
        lang, _ = self._open(request)
        operations = [
            {"name": name, "title": self._site.panels.words(lang, name, "heading"), "fields": default_texts(calculator)}
            for name, calculator in registry().items()
        ]
        return self._finished(request, "api.html", title="API", description="", operations=operations)

    async def search(self, request: Request) -> Response:
        lang, _ = self._open(request)
        q = request.query_params.get("q", "").strip()
        hits = [
            {
                "lang": hit.lang,
                "chapter_title": hit.chapter_title,
                "heading": hit.heading or hit.chapter_title,
                "url": self._site.url(f"/{hit.lang}/{hit.slug}" + (f"#{hit.anchor}" if hit.anchor else "")),
                "snippet": hit.snippet,
            }
            for hit in (self._site.search.search(q, lang) if q else [])
        ]
        title = "搜索" if lang == "zh" else "Search"
        return self._page(request, "search.html", title=title, description="", q=q, hits=hits)

    async def chapter(self, request: Request) -> Response:
        lang, book = self._open(request)
        slug = request.path_params["slug"]
        chapter = book.chapter(lang, slug)
        if chapter is None:
            if slug in book.redirects:
                return RedirectResponse(self._site.url(f"/{lang}/{book.redirects[slug]}"), 308)
            raise HTTPException(404)
        query = request.url.query
        pieces = await off_loop(len(query), lambda: self._pieces(chapter, query))
        status = max((piece.status for piece in pieces if isinstance(piece, Panel)), default=200)
        body = [self._site.panels.html(piece) if isinstance(piece, Panel) else piece for piece in pieces]
        previous, following = book.neighbours(chapter)
        context = {
            "title": chapter.title,
            "description": chapter.summary,
            "chapter": chapter,
            "part": next((part for part in book.parts(lang) if chapter in part.chapters), None),
            "body": body,
            "previous": previous,
            "next": following,
            "related": book.related(chapter),
        }
        if query:
            return self._page(request, "chapter.html", status, **context)
        return self._finished(request, "chapter.html", **context)

    def _pieces(self, chapter: Chapter, query: str) -> list[Panel | Markup]:
        """The chapter's text with its panels in the state of the address and its evidence as it stands now."""
        refs = {piece.id: piece for piece in chapter.pieces if isinstance(piece, CalculatorRef)}
        given: dict[str, dict[str, str]] = {id_: {} for id_ in refs}
        refusals: dict[str, list[FieldError]] = {id_: [] for id_ in refs}
        for name, value in parse_qsl(query, keep_blank_values=True):
            panel, _, field = name.partition(".")
            if panel in refs and field:
                if field in given[panel]:
                    refusals[panel].append(given_twice(field))
                given[panel][field] = value
        place = self._site.url(chapter.path)
        lang = cast(Lang, chapter.lang)
        pieces: list[Panel | Markup] = []
        for piece in chapter.pieces:
            if isinstance(piece, CalculatorRef):
                pieces.append(
                    self._site.panels.panel(
                        lang,
                        registry()[piece.name],
                        {**piece.fields, **given[piece.id]},
                        refusals=refusals[piece.id],
                        place=f"{place}#{piece.id}",
                        identity=piece.id,
                        others=[(f"{p}.{f}", v) for p in refs if p != piece.id for f, v in given[p].items()],
                    )
                )
            elif isinstance(piece, EvidenceRef):
                pieces.append(self._evidence(piece, lang))
            else:
                pieces.append(Markup(piece))
        return pieces

    def _evidence(self, ref: EvidenceRef, lang: Lang) -> Markup:
        title = self._site.book.experiment(lang, ref.name) or ref.name
        context = {"lang": lang, "ref": ref, "title": title, **self._bag(ref.name)}
        return Markup(self._site.render("_evidence.html", context))

    def _bag(self, name: str) -> dict[str, Any]:
        """`bag` as it stands now, None while nothing is published; `result` and `exhibit` None also when damaged."""
        nothing = {"name": name, "bag": None, "result": None, "exhibit": None}
        try:
            bag = self._site.evidence.bag(name)
        except UnknownEvidenceError:
            return nothing
        exhibit = exhibit_of(bag)
        return nothing | {"bag": bag, "result": exhibit and exhibit.result, "exhibit": exhibit}

    async def experiments(self, request: Request) -> Response:
        lang, book = self._open(request)
        entries = [{"title": title, **self._bag(name)} for name, title in book.experiments(lang).items()]
        title = "实验" if lang == "zh" else "Experiments"
        return self._finished(request, "experiments.html", title=title, description="", experiments=entries)

    async def experiment(self, request: Request) -> Response:
        lang, book = self._open(request)
        name = request.path_params["name"]
        title = book.experiment(lang, name)
        if title is None:
            raise HTTPException(404)
        found = self._bag(name)
        context = {
            "title": title,
            "description": found["result"]["question"][lang] if found["result"] else "",
            "chapters": [c for c in book.chapters[lang] if any(ref.name == name for ref in c.evidence)],
            "origin": origin(found["bag"]),
            **found,
        }
        return self._finished(request, "experiment.html", **context)

    def _open(self, request: Request) -> tuple[Lang, Any]:
        self._site.fresh()
        return request.path_params["lang"], self._site.book

    def context(self, request: Request, lang: Lang) -> dict[str, Any]:
        """What every page needs: its language, its address, and the same page in the other language."""
        path = quote(request.scope["path"])
        query = f"?{request.url.query}" if request.url.query else ""
        alternate = f"/{other(lang)}{path[3:]}{query}" if path.startswith(("/zh", "/en")) else f"/{other(lang)}/"
        return {"lang": lang, "path": path, "alternate_url": self._site.url(alternate)}

    def _page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        shared = self.context(request, request.path_params["lang"])
        body = self._site.render(template, shared | context).encode()
        headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
        if len(body) > _LARGE_PAGE and takes_brotli(request.scope):
            body, headers["content-encoding"] = brotli.compress(body, quality=4), "br"
        return Response(body, status, headers, "text/html")

    def _finished(self, request: Request, template: str, **context: Any) -> Response:
        """A page without state: kept, so that it is not rendered again."""
        if request.url.query:
            return self._page(request, template, **context)
        shared = self.context(request, request.path_params["lang"])
        return AsIs(self._site.keep(request.scope["path"], self._site.render(template, shared | context)))


class AsIs(Response):
    """A finished answer, sent by itself."""

    def __init__(self, ready: Any) -> None:
        super().__init__()
        self._ready = ready

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._ready(scope, receive, send)


async def off_loop(size: int, work: Callable[[], _T]) -> _T:
    return await run_in_threadpool(work) if size > _LONG_STATE else work()
