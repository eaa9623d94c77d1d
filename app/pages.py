"""Whole pages: shelf, chapters, calculators on their own, search, the API's description."""

from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from app.answers import fields_of
from app.calculators import Calculator, registry
from app.chapters import CalculatorRef, Chapter, EvidenceRef
from app.endpoints import state_tag
from app.errors import FieldError, RefusedError, given_twice
from app.evidence import DamagedError, UnknownEvidenceError
from app.panels import Panel, default_texts
from app.ready import matches
from app.rendering import Lang
from app.site import Site

_T = TypeVar("_T")

_LONG_STATE = 1_000
"""Above so many characters of state a panel is computed off the event loop."""
_MAX_FORM = 16 * 1024 * 1024


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
        Route("/{lang:lang}/calculators/{name}", pages.calculator, methods=["GET", "POST"]),
        Route("/{lang:lang}/calculators/{name}/result", pages.result, methods=["GET", "POST"]),
        Route("/{lang:lang}/experiments", pages.experiments),
        Route("/{lang:lang}/experiments/{name}", pages.experiment),
        Route("/{lang:lang}/search", pages.search),
        Route("/{lang:lang}/api", pages.api),
        Route("/{lang:lang}/{slug}", pages.chapter),
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

    async def shelf(self, request: Request) -> Response:
        lang, book = self._open(request)
        description = (
            "梯度缩放与并行正确性的交互式 Wiki" if lang == "zh" else "An interactive wiki on parallel correctness"
        )
        title = "同一步" if lang == "zh" else "SameStep"
        return self._finished(request, "shelf.html", title=title, description=description, parts=book.parts(lang))

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
        pieces = await _off_loop(len(query), lambda: self._pieces(chapter, query))
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
        context = {"lang": lang, "ref": ref, **self._bag(ref.name)}
        return Markup(self._site.render("_evidence.html", context))

    def _bag(self, name: str) -> dict[str, Any]:
        """`bag` as it stands now, None while nothing is published; `result` None also when it is damaged."""
        try:
            bag = self._site.evidence.bag(name)
        except UnknownEvidenceError:
            return {"name": name, "bag": None, "result": None}
        try:
            return {"name": name, "bag": bag, "result": bag.result}
        except (DamagedError, UnknownEvidenceError):
            return {"name": name, "bag": bag, "result": None}

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
        carriers = [c for c in book.chapters[lang] if any(ref.name == name for ref in c.evidence)]
        bag = self._bag(name)
        description = bag["result"]["question"][lang] if bag["result"] else ""
        context = {"title": title, "description": description, "chapters": carriers, **bag}
        return self._finished(request, "experiment.html", **context)

    async def calculator(self, request: Request) -> Response:
        lang, book = self._open(request)
        calculator = _calculator(request)
        panel = await self._own_panel(request, lang, calculator)
        carriers = [c for c in book.chapters[lang] if any(r.name == calculator.name for r in c.document.calculators)]
        context = {
            "title": panel.title,
            "description": self._site.panels.words(lang, calculator.name, "summary"),
            "panel": panel,
            "chapters": carriers,
        }
        if request.method != "POST" and not request.url.query:
            return self._finished(request, "calculator.html", **context)
        return self._page(request, "calculator.html", panel.status, **context)

    async def result(self, request: Request) -> Response:
        lang, _ = self._open(request)
        etag = state_tag(self._site.version.encode(), b"html", request.scope)
        headers = {"etag": etag.decode(), "cache-control": "public, max-age=60"}
        if request.method != "POST" and matches(request.scope, etag):
            return Response(status_code=304, headers=headers)
        panel = await self._own_panel(request, lang, _calculator(request))
        fresh = panel.status == 200 and request.method != "POST"
        html = self._site.panels.result(panel)
        return _html(html, panel.status, headers if fresh else {"cache-control": "no-store"})

    async def _own_panel(self, request: Request, lang: Lang, calculator: Calculator) -> Panel:
        refusals: tuple[FieldError, ...] = ()
        fields: dict[str, str] = {}
        try:
            fields = await _form_fields(request) if request.method == "POST" else fields_of(request.url.query)
        except RefusedError as error:
            refusals = error.errors
        size = sum(map(len, fields.values()))
        return await _off_loop(size, lambda: self._site.panels.panel(lang, calculator, fields, refusals=refusals))

    def _open(self, request: Request) -> tuple[Lang, Any]:
        self._site.fresh()
        return request.path_params["lang"], self._site.book

    def context(self, request: Request, lang: Lang) -> dict[str, Any]:
        """What every page needs: its language, its address, and the same page in the other language."""
        path = request.scope["path"]
        query = f"?{request.url.query}" if request.url.query else ""
        alternate = f"/{other(lang)}{path[3:]}{query}" if path.startswith(("/zh", "/en")) else f"/{other(lang)}/"
        return {"lang": lang, "path": path, "alternate_url": self._site.url(alternate)}

    def _page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        shared = self.context(request, request.path_params["lang"])
        return _html(self._site.render(template, shared | context), status, {"cache-control": "no-cache"})

    def _finished(self, request: Request, template: str, **context: Any) -> Response:
        """A page without state: kept, so that it is not rendered again."""
        if request.url.query:
            return self._page(request, template, **context)
        shared = self.context(request, request.path_params["lang"])
        return _AsIs(self._site.keep(request.scope["path"], self._site.render(template, shared | context)))


class _AsIs(Response):
    """A finished answer, sent by itself."""

    def __init__(self, ready: Any) -> None:
        super().__init__()
        self._ready = ready

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._ready(scope, receive, send)


def _html(text: str, status: int, headers: dict[str, str]) -> Response:
    return Response(text, status, headers, "text/html")


def _calculator(request: Request) -> Calculator:
    calculator = registry().get(request.path_params["name"])
    if calculator is None:
        raise HTTPException(404)
    return calculator


async def _form_fields(request: Request) -> dict[str, str]:
    """The fields of a form sent by POST: states too long for an address, files included as their text."""
    form = await request.form(max_files=20, max_fields=200, max_part_size=_MAX_FORM)
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise RefusedError([given_twice(name)])
        fields[name] = (await value.read()).decode("utf-8-sig", "replace") if isinstance(value, UploadFile) else value
    return fields


async def _off_loop(size: int, work: Callable[[], _T]) -> _T:
    return await run_in_threadpool(work) if size > _LONG_STATE else work()
