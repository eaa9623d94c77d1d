"""The pages of the conformance experiment: the matrix with its filters and exports, and a page for every framework."""

from typing import cast
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.evidence import conformance
from samestep.app.evidence.conformance import Line, Matrix, Texts
from samestep.app.paths import folder
from samestep.app.web.pages.experiments import Found
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.site import Site

_FILTERS = ("framework", "verdict", "scenario")


def matrix(layout: Layout, request: Request) -> Response:
    """Lines chosen by `framework`, `verdict` and `scenario`; `format=csv` or `json` answers them as data."""
    lang, _ = layout.open(request)
    found = _matrix(layout.site)
    filters = {name: request.query_params.get(name, "") for name in _FILTERS}
    lines = found.chosen(**filters) if found else []
    wanted = request.query_params.get("format", "")
    if wanted == "csv":
        return Response(conformance.as_csv(lines), 200, media_type="text/csv")
    if wanted == "json":
        return Response(conformance.as_json(lines), 200, media_type="application/json")
    given = urlencode({name: value for name, value in filters.items() if value})
    words = {
        "zh": ("框架一致性", "真实框架的一次更新给每个 token 多大的系数：实测、带版本、可重复。"),
        "en": ("Framework conformance", "What real frameworks’ updates weight: measured, versioned, repeatable."),
    }
    title, description = words[lang]
    query = f"{given}&" if given else ""
    texts = conformance.load_texts(folder("content"))
    context = {
        **_shared(layout.site, found, lines, texts),
        "filters": filters,
        "filtered": any(filters.values()),
        "query": Markup(escape(query)),
    }
    return layout.finished(request, "conformance.html", title=title, description=description, **context)


def framework(layout: Layout, request: Request) -> Response:
    """One framework: its recipe, what surprises, and everything that was measured of it."""
    layout.open(request)
    name = request.path_params["framework"]
    texts = conformance.load_texts(folder("content"))
    if name not in texts.framework:
        raise HTTPException(404)
    found = _matrix(layout.site)
    lines = found.chosen(framework=name) if found else []
    text = texts.framework[name]
    context = {**_shared(layout.site, found, lines, texts), "name": name, "text": text}
    return layout.finished(request, "conformance_framework.html", title=text.name, description="", **context)


PAGES: Pages = {
    "/{lang:lang}/conformance": matrix,
    "/{lang:lang}/conformance/{framework}": framework,
}


def _matrix(site: Site) -> Matrix | None:
    result = _found(site).result
    return Matrix(result) if result else None


def _found(site: Site) -> Found:
    return Found.of(site.evidence, conformance.NAME)


def _shared(site: Site, found: Matrix | None, lines: list[Line], texts: Texts) -> dict[str, object]:
    return {
        "matrix": found,
        "bag": _found(site).bag,
        "lines": lines,
        "texts": texts,
        "exact": repr,
        "kinds": _kinds,
        "glyph": conformance.glyph,
    }


def _kinds(lines: list[Line]) -> set[str]:
    return {cast(str, cell.row["kind"]) for line in lines for cell in line.cells.values()}
