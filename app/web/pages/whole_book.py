"""All chapters on one page, for print and for reading offline."""

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book.book_page import Binding
from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import Book
from samestep.app.contract.languages import Lang
from samestep.app.instruments.panels import Panel
from samestep.app.web.pages.chapters import pieces_of
from samestep.app.web.pages.layout import Layout


class WholeBookPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/book", self._layout.beside(self.book)),
        ]

    def book(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        return self._layout.finished(
            request,
            "book.html",
            title="全书" if lang == "zh" else "The whole book",
            description="全部章节在一页上，供打印与离线阅读。"
            if lang == "zh"
            else "All chapters on one page, for print.",
            parts=book.parts(lang),
            chapters=[(chapter, self._bound(book, chapter)) for chapter in book.chapters[lang]],
        )

    def _bound(self, book: Book, chapter: Chapter) -> Markup:
        """A chapter as a part of the whole: its panels as results without controls."""
        lang = chapter.lang
        pieces = [
            self._still(one, lang) if isinstance(one, Panel) else str(one) for one in pieces_of(self._site, chapter, "")
        ]
        sources = self._site.render("_sources.html", {"lang": lang, "chapter": chapter}) if chapter.sources else ""
        slugs = frozenset(one.slug for one in book.chapters[lang])
        binding = Binding(chapter.slug, chapter.title, self._site.url(f"/{lang}/"), slugs)
        return Markup(binding.bound(f'<div class="prose">\n{"".join(pieces)}</div>\n{sources}'))

    def _still(self, panel: Panel, lang: Lang) -> str:
        panels = self._site.panels
        context = {
            "lang": lang,
            "panel": panel,
            "subtitle": Markup(panels.words(lang, panel.name, "subtitle")),
            "result": Markup(panels.result(panel, printed=True)),
        }
        return self._site.render("_still.html", context)
