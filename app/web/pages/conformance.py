"""The pages of the conformance experiment: the matrix with its filters and exports, and a page for every framework."""

from typing import cast
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.evidence import conformance
from samestep.app.evidence.conformance import Line, Matrix, Texts
from samestep.app.paths import folder
from samestep.app.web.pages.experiments import Found
from samestep.app.web.pages.layout import Layout

_FILTERS = ("framework", "verdict", "scenario")


class ConformancePages:
    """The handlers. While the result is missing or damaged they say so and show no number."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/conformance", self._layout.beside(self.matrix)),
            Route("/{lang:lang}/conformance/{framework}", self._layout.beside(self.framework)),
        ]

    def matrix(self, request: Request) -> Response:
        """Lines chosen by `framework`, `verdict` and `scenario`; `format=csv` or `json` answers them as data."""
        lang, _ = self._layout.open(request)
        found = self._matrix()
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
            **self._shared(found, lines, texts),
            "filters": filters,
            "filtered": any(filters.values()),
            "query": Markup(escape(query)),
        }
        return self._layout.finished(request, "conformance.html", title=title, description=description, **context)

    def framework(self, request: Request) -> Response:
        """One framework: its recipe, what surprises, and everything that was measured of it."""
        self._layout.open(request)
        name = request.path_params["framework"]
        texts = conformance.load_texts(folder("content"))
        if name not in texts.framework:
            raise HTTPException(404)
        found = self._matrix()
        lines = found.chosen(framework=name) if found else []
        text = texts.framework[name]
        context = {**self._shared(found, lines, texts), "name": name, "text": text}
        return self._layout.finished(request, "conformance_framework.html", title=text.name, description="", **context)

    def _matrix(self) -> Matrix | None:
        result = self._found().result
        return Matrix(result) if result else None

    def _found(self) -> Found:
        return Found.of(self._site.evidence, conformance.NAME)

    def _shared(self, found: Matrix | None, lines: list[Line], texts: Texts) -> dict[str, object]:
        return {
            "matrix": found,
            "bag": self._found().bag,
            "lines": lines,
            "texts": texts,
            "exact": repr,
            "kinds": _kinds,
            "glyph": conformance.glyph,
        }


def _kinds(lines: list[Line]) -> set[str]:
    return {cast(str, cell.row["kind"]) for line in lines for cell in line.cells.values()}
