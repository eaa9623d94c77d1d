"""The way in: the address without a language, the shelf of chapters, and addresses that are nearly right."""

from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from samestep.app.contract.errors import RefusedError
from samestep.app.contract.languages import Lang
from samestep.app.instruments.first_answer import RECIPE, FirstAnswer, fields_in, first_answer
from samestep.app.instruments.panels import Panel
from samestep.app.instruments.states import named_once
from samestep.app.web.pages import languages
from samestep.app.web.pages.layout import Layout


class ShelfPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/", self.root),
            Route("/{lang:lang}", self.without_slash),
            Route("/{lang:lang}/", self._layout.beside(self.shelf)),
            Route("/{lang:lang}/first-answer", self._layout.beside(self.first_answer)),
        ]

    def last_routes(self) -> list[Route]:
        """Those that catch what nothing else does."""
        return [Route("/{lang:lang}/{path:path}/", self.slash_too_many)]

    async def root(self, request: Request) -> Response:
        lang = languages.preferred(request.headers.get("accept-language", ""))
        return RedirectResponse(self._site.url(f"/{lang}/"), 307, {"vary": "accept-language"})

    async def without_slash(self, request: Request) -> Response:
        return RedirectResponse(self._site.url(f"{request.url.path.removesuffix('/')}/"), 308)

    async def slash_too_many(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(self._site.url(quote(request.scope["path"].rstrip("/"))) + query, 308)

    def shelf(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        description = (
            "梯度缩放与并行正确性的交互式 Wiki" if lang == "zh" else "An interactive wiki on parallel correctness"
        )
        fields, first, errors = _first(request, lang)
        context = {
            "title": "同一步" if lang == "zh" else "SameStep",
            "description": description,
            "parts": book.parts(lang),
            "families": book.families(lang),
            "first": first,
            "panel": self._panel(lang, fields, errors),
        }
        if errors:
            return self._layout.page(request, "shelf.html", 422, **context)
        return self._layout.finished(request, "shelf.html", **context)

    def first_answer(self, request: Request) -> Response:
        """The inside of the living figure's result: what its script asks for."""
        lang, _ = self._layout.open(request)
        fields, first, errors = _first(request, lang)
        if first is None:
            panel = self._panel(lang, fields, errors)
            html = self._site.render("_errors.html", {"lang": lang, "panel": panel})
            return Response(html, 422, {"cache-control": "no-store"}, "text/html")
        html = self._site.render("_first_answer_result.html", {"lang": lang, "first": first})
        return Response(html, 200, {"cache-control": "public, max-age=60"}, "text/html")

    def _panel(self, lang: Lang, fields: dict[str, str], errors: dict[str, str]) -> Panel:
        """The frame of the living figure, as those of the instruments have it."""
        page, result = self._site.url(f"/{lang}/"), self._site.url(f"/{lang}/first-answer")
        return Panel(
            name=RECIPE,
            id="first",
            prefix="",
            action=page,
            values=fields,
            errors=errors,
            view=None,
            lang=lang,
            page_url=f"{page}?{urlencode(fields)}",
            json_url="",
            csv_url="",
            result_url=result,
        )


def _first(request: Request, lang: Lang) -> tuple[dict[str, str], FirstAnswer | None, dict[str, str]]:
    """The living figure's fields as typed, its answer, and what is wrong with a field."""
    given, twice = named_once(parse_qsl(request.url.query, keep_blank_values=True))
    fields = fields_in(given)
    refusals = [error for error in twice if error.field in fields]
    first = None
    try:
        first = first_answer(fields)
    except RefusedError as error:
        refusals += error.errors
    return fields, None if refusals else first, {one.field: one.message(lang) for one in reversed(refusals)}
