"""The calculators' own pages: panel or whole body, results as fragments, files in and out."""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from samestep.app.book.chapters import Book
from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import RefusedError
from samestep.app.contract.languages import Lang
from samestep.app.instruments.bench import general_query
from samestep.app.instruments.case_files import saved
from samestep.app.instruments.own_page import submitted
from samestep.app.instruments.panels import default_texts
from samestep.app.instruments.presets import load_presets
from samestep.app.instruments.start import load_guide
from samestep.app.instruments.states import Shown, shown
from samestep.app.paths import folder
from samestep.app.rendering.environment import shown_text
from samestep.app.web.bodies import Bodies, BodyError, retry_after
from samestep.app.web.offload import Offload, OffloadError
from samestep.app.web.pages.languages import other
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.ready import matches, state_tag

_UNKEPT = {"cache-control": "no-store"}
_LARGE_FORM = 256 * 1024
"""Above so many bytes a form of typed fields goes to the worker."""

_PATH, _MOST_PATHS = "shown", 256
_LONG_STATE = 1_000
"""Above so many characters of state a panel is computed off the event loop."""

_T = TypeVar("_T")


def calculators(layout: Layout, request: Request) -> Response:
    """All of them by the question that they answer, each with its title and what it tells."""
    lang, _ = layout.open(request)
    words = layout.site.panels.words
    entries = {
        name: {"name": name, "title": words(lang, name, "heading"), "summary": words(lang, name, "summary")}
        for name in registry()
    }
    groups = load_guide(folder("content")).questions(entries)
    title = "计算器" if lang == "zh" else "Calculators"
    return layout.finished(request, "calculators.html", title=title, description="", groups=groups, entries=entries)


def api(layout: Layout, request: Request) -> Response:
    """Their doors, for programs."""
    lang, _ = layout.open(request)
    words = layout.site.panels.words
    operations = [
        {"name": name, "title": words(lang, name, "heading"), "fields": default_texts(calculator)}
        for name, calculator in registry().items()
    ]
    return layout.finished(request, "api.html", title="API", description="", operations=operations)


PAGES: Pages = {
    "/{lang:lang}/calculators": calculators,
    "/{lang:lang}/api": api,
}


class CalculatorPages:
    """The pages of one calculator each; large forms are read and computed by the worker."""

    def __init__(self, layout: Layout, offload: Offload, bodies: Bodies) -> None:
        self._layout = layout
        self._site = layout.site
        self._offload = offload
        self._bodies = bodies

    def routes(self) -> list[Route]:
        both = ["GET", "POST"]
        return [
            Route("/{lang:lang}/calculators/{name}", self.calculator, methods=both),
            Route("/{lang:lang}/calculators/{name}/result", self.result, methods=both),
            Route("/{lang:lang}/calculators/{name}/more", self.more, methods=both),
            Route("/{lang:lang}/calculators/{name}/values", self.values),
            Route("/{lang:lang}/calculators/{name}/case", self.case, methods=both),
        ]

    async def calculator(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        calculator = _calculator(request)
        if request.method != "POST" and request.url.query.startswith("as=general"):
            return self._as_general(request, lang, calculator)
        shown = await self._shown(request, calculator)
        query = shown.query()
        if shown.from_file and shown.view is not None and query is not None:
            return RedirectResponse(self._site.url(f"/{lang}/calculators/{shown.name}?{query}"), 303)
        return await self._layout.made(request, lambda: self._own_page(request, book, shown))

    def _own_page(self, request: Request, book: Book, shown: Shown) -> Response:
        lang: Lang = request.path_params["lang"]
        words = self._site.panels.words
        panel = self._site.panels.own(lang, shown)
        context = {
            "title": panel.title,
            "description": words(lang, panel.name, "summary"),
            "panel": panel,
            "chapters": [c for c in book.chapters[lang] if any(r.name == panel.name for r in c.document.calculators)],
            "presets": load_presets(folder("content")).get(panel.name, []),
            "titles": self._titles(lang, shown),
        }
        if request.method != "POST" and not request.url.query:
            return self._layout.finished(request, "calculator.html", **context)
        if request.method == "POST" and (query := shown.query()):
            # the address of a form that was sent holds nothing: the state goes with the links
            context["alternate_url"] = self._site.url(f"/{other(lang)}/calculators/{shown.name}?{query}")
        return self._layout.page(request, "calculator.html", panel.status, **context)

    async def result(self, request: Request) -> Response:
        lang: Lang = request.path_params["lang"]
        etag = state_tag(self._site.version.encode(), b"html", request.scope)
        headers = {"etag": etag.decode(), "cache-control": "public, max-age=60"}
        if request.method != "POST" and matches(request.scope, etag):
            return Response(status_code=304, headers=headers)
        panel = self._site.panels.result_panel(lang, await self._shown(request, _calculator(request)))
        fresh = panel.status == 200 and request.method != "POST"
        html = self._site.panels.result(panel)
        return _html(html, panel.status, headers if fresh else _UNKEPT)

    async def more(self, request: Request) -> Response:
        """All numbers and the snippet of a state, as the page shows them folded."""
        lang: Lang = request.path_params["lang"]
        shown = await self._shown(request, _calculator(request))
        if shown.view is None:
            return _html(self._site.panels.result(self._site.panels.result_panel(lang, shown)), 422, _UNKEPT)
        return _html(self._site.panels.more(lang, shown), 200, _UNKEPT)

    async def values(self, request: Request) -> Response:
        """What a reader sees at the paths `shown` of a state: for numbers in a text that follow a panel."""
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        paths = [text for name, text in pairs if name == _PATH and text.strip("+")][:_MOST_PATHS]
        state = [pair for pair in pairs if pair[0] != _PATH]
        calculator = _calculator(request)
        found = await _off_loop(len(request.url.query), lambda: shown(calculator, state))
        if found.view is None:
            return JSONResponse({}, 422, _UNKEPT)
        lang: Lang = request.path_params["lang"]
        return JSONResponse({path: shown_text(lang, found.view, path) for path in paths}, 200, _UNKEPT)

    async def case(self, request: Request) -> Response:
        """The state as a file that this page opens again."""
        lang: Lang = request.path_params["lang"]
        shown = await self._shown(request, _calculator(request))
        state = shown.body()
        if state is None:
            panel = self._site.panels.own(lang, shown)
            context = {"title": panel.title, "description": "", "panel": panel, "titles": self._titles(lang, shown)}
            return self._layout.page(request, "calculator.html", 422, **context)
        headers = {"content-disposition": f'attachment; filename="{shown.name}.json"', **_UNKEPT}
        return Response(saved(shown.name, state), 200, headers, "application/json")

    def _titles(self, lang: Lang, shown: Shown) -> dict[str, str]:
        """What calculators are called, where the cases of a file are listed by them."""
        return {name: self._site.panels.words(lang, name, "heading") for name in registry()} if shown.cases else {}

    def _as_general(self, request: Request, lang: Lang, calculator: Calculator) -> Response:
        """To the form of the whole body, in the state of the panel's fields."""
        fields = [pair for pair in parse_qsl(request.url.query, keep_blank_values=True) if pair[0] != "as"]
        page = self._site.url(f"/{lang}/calculators/{calculator.name}")
        try:
            return RedirectResponse(f"{page}?{general_query(calculator, dict(fields))}", 303)
        except RefusedError:
            return RedirectResponse(f"{page}?{urlencode(fields)}", 303)

    async def _shown(self, request: Request, calculator: Calculator) -> Shown:
        """The state of a request to an own page; a large one is read and computed by the worker."""
        if request.method != "POST":
            query = request.url.query
            return await _off_loop(len(query), lambda: shown(calculator, parse_qsl(query, keep_blank_values=True)))
        try:
            async with self._bodies.body(request.scope, request.receive) as body:
                return await self._submitted(calculator.name, request.headers.get("content-type", ""), body)
        except BodyError as error:
            headers = {"connection": "close"} | retry_after(error.status)
            raise HTTPException(error.status, headers=headers) from None

    async def _submitted(self, name: str, content_type: str, body: bytes) -> Shown:
        """What a form brings. One that may hold a file is read by the worker, whatever its size."""
        if len(body) <= _LARGE_FORM and not content_type.startswith("multipart/"):
            return await _off_loop(len(body), lambda: submitted(name, content_type, body))
        try:
            return await self._offload.run(submitted, name, content_type, body)
        except OffloadError:
            raise HTTPException(503, headers=retry_after(503)) from None


async def _off_loop(size: int, work: Callable[[], _T]) -> _T:
    """The result of `work`, done beside the event loop where a state of this size may take long."""
    return await run_in_threadpool(work) if size > _LONG_STATE else work()


def _html(text: str, status: int, headers: dict[str, str]) -> Response:
    return Response(text, status, headers, "text/html")


def _calculator(request: Request) -> Calculator:
    calculator = registry().get(request.path_params["name"])
    if calculator is None:
        raise HTTPException(404)
    return calculator
