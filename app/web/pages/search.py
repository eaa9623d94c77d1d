"""The page of search results, and what the palette shows of them."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book import glossary
from samestep.app.book.chapters import Book
from samestep.app.book.search import Hit
from samestep.app.contract.languages import Lang
from samestep.app.web.pages.layout import Layout

PALETTE = 12
"""So many results are in the palette."""


class SearchPages:
    """The handler."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/search", self._layout.beside(self.search)),
            Route("/{lang:lang}/search/palette", self._layout.beside(self.palette)),
        ]

    def search(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        q = _query(request)
        answers, hits = self._found(book, lang, q)
        return self._layout.page(
            request,
            "search.html",
            title="搜索" if lang == "zh" else "Search",
            description="",
            q=q,
            answers=answers,
            hits=hits,
            unknown=self._site.search.unknown(q) if q else [],
        )

    def palette(self, request: Request) -> Response:
        """The first results as a fragment."""
        lang, book = self._layout.open(request)
        q = _query(request)
        answers, hits = self._found(book, lang, q)
        context = {"lang": lang, "q": q, "answers": answers, "hits": hits[: PALETTE - len(answers)]}
        html = self._site.render("_palette.html", context)
        return Response(html, 200, {"cache-control": "no-cache"}, "text/html")

    def _found(self, book: Book, lang: Lang, q: str) -> tuple[Sequence[glossary.Entry], list[Hit]]:
        """The terms that are meant word by word, and what else there is."""
        found = self._site.search.search(q, lang) if q else []
        answers = glossary.answers(book, lang, q)
        answered = {entry.id for entry in answers}
        return answers, [hit for hit in found if not (hit.kind == "term" and hit.anchor in answered)]


def _query(request: Request) -> str:
    return request.query_params.get("q", "").strip()
