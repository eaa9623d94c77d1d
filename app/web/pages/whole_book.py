"""All chapters on one page, for print and for reading offline."""

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.book.book_page import Binding
from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import Book
from samestep.app.contract.languages import Lang
from samestep.app.instruments.panels import Panel
from samestep.app.web.pages.chapters import pieces_of
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.site import Site


def whole_book(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    return layout.finished(
        request,
        "book.html",
        title="全书" if lang == "zh" else "The whole book",
        description="全部章节在一页上，供打印与离线阅读。" if lang == "zh" else "All chapters on one page, for print.",
        parts=book.parts(lang),
        chapters=[(chapter, _bound(layout.site, book, chapter)) for chapter in book.chapters[lang]],
    )


PAGES: Pages = {"/{lang:lang}/book": whole_book}


def _bound(site: Site, book: Book, chapter: Chapter) -> Markup:
    """A chapter as a part of the whole: its panels as results without controls."""
    lang = chapter.lang
    pieces = [_still(site, one, lang) if isinstance(one, Panel) else str(one) for one in pieces_of(site, chapter, "")]
    sources = site.render("_sources.html", {"lang": lang, "chapter": chapter}) if chapter.sources else ""
    slugs = frozenset(one.slug for one in book.chapters[lang])
    binding = Binding(chapter.slug, chapter.title, site.url(f"/{lang}/"), slugs)
    return Markup(binding.bound(f'<div class="prose">\n{"".join(pieces)}</div>\n{sources}'))


def _still(site: Site, panel: Panel, lang: Lang) -> str:
    panels = site.panels
    context = {
        "lang": lang,
        "panel": panel,
        "subtitle": Markup(panels.words(lang, panel.name, "subtitle")),
        "result": Markup(panels.result(panel, printed=True)),
    }
    return site.render("_still.html", context)
