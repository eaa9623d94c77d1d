"""The way in: the shelf of chapters, with the living figure above it."""

from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from samestep.app.contract.errors import RefusedError
from samestep.app.contract.languages import Lang
from samestep.app.instruments.first_answer import RECIPE, FirstAnswer, fields_in, first_answer
from samestep.app.instruments.panels import Panel
from samestep.app.instruments.states import named_once
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.site import Site


def shelf(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    description = "梯度缩放与并行正确性的交互式 Wiki" if lang == "zh" else "An interactive wiki on parallel correctness"
    fields, first, errors = _first(request, lang)
    context = {
        "title": "同一步" if lang == "zh" else "SameStep",
        "description": description,
        "parts": book.parts(lang),
        "families": book.families(lang),
        "first": first,
        "panel": _panel(layout.site, lang, fields, errors),
    }
    if errors:
        return layout.page(request, "shelf.html", 422, **context)
    return layout.finished(request, "shelf.html", **context)


def living_figure(layout: Layout, request: Request) -> Response:
    """The inside of the living figure's result: what its script asks for."""
    lang, _ = layout.open(request)
    fields, first, errors = _first(request, lang)
    if first is None:
        panel = _panel(layout.site, lang, fields, errors)
        html = layout.site.render("_errors.html", {"lang": lang, "panel": panel})
        return Response(html, 422, {"cache-control": "no-store"}, "text/html")
    html = layout.site.render("_first_answer_result.html", {"lang": lang, "first": first})
    return Response(html, 200, {"cache-control": "public, max-age=60"}, "text/html")


PAGES: Pages = {
    "/{lang:lang}/": shelf,
    "/{lang:lang}/first-answer": living_figure,
}


def _panel(site: Site, lang: Lang, fields: dict[str, str], errors: dict[str, str]) -> Panel:
    """The frame of the living figure, as those of the instruments have it."""
    page, result = site.url(f"/{lang}/"), site.url(f"/{lang}/first-answer")
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
