"""The page of search results."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book import glossary
from samestep.app.web.pages.layout import Layout


class SearchPages:
    """The handler."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [Route("/{lang:lang}/search", self._layout.beside(self.search))]

    def search(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        q = request.query_params.get("q", "").strip()
        found = self._site.search.search(q, lang) if q else []
        answers = glossary.answers(book, lang, q)
        answered = {entry.id for entry in answers}
        hits = [hit for hit in found if not (hit.kind == "term" and hit.anchor in answered)]
        title = "搜索" if lang == "zh" else "Search"
        return self._layout.page(
            request,
            "search.html",
            title=title,
            description="",
            q=q,
            answers=answers,
            hits=hits,
            unknown=self._site.search.unknown(q) if q else [],
        )
