"""The page of search results, and what the palette shows of them."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from samestep.app.book import glossary
from samestep.app.book.chapters import Book
from samestep.app.book.search import Hit
from samestep.app.contract.languages import Lang
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.site import Site

PALETTE = 12
"""So many results are in the palette."""


def search(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    q = _query(request)
    answers, hits = _found(layout.site, book, lang, q)
    return layout.page(
        request,
        "search.html",
        title="搜索" if lang == "zh" else "Search",
        description="",
        q=q,
        answers=answers,
        hits=hits,
        unknown=layout.site.search.unknown(q) if q else [],
    )


def palette(layout: Layout, request: Request) -> Response:
    """The first results as a fragment."""
    lang, book = layout.open(request)
    q = _query(request)
    answers, hits = _found(layout.site, book, lang, q)
    context = {"lang": lang, "q": q, "answers": answers, "hits": hits[: PALETTE - len(answers)]}
    html = layout.site.render("_palette.html", context)
    return Response(html, 200, {"cache-control": "no-cache"}, "text/html")


PAGES: Pages = {
    "/{lang:lang}/search": search,
    "/{lang:lang}/search/palette": palette,
}


def _found(site: Site, book: Book, lang: Lang, q: str) -> tuple[Sequence[glossary.Entry], list[Hit]]:
    """The terms that are meant word by word, and what else there is."""
    found = site.search.search(q, lang) if q else []
    answers = glossary.answers(book, lang, q)
    answered = {entry.id for entry in answers}
    return answers, [hit for hit in found if not (hit.kind == "term" and hit.anchor in answered)]


def _query(request: Request) -> str:
    return request.query_params.get("q", "").strip()
