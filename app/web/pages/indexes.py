"""Pages over the whole book: start, glossary, sources, tags, the printable book; feed, sitemap, llms.txt."""

import re
from typing import cast

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book import feeds, glossary, sources
from samestep.app.book.book_page import Binding
from samestep.app.book.chapters import Book, Chapter
from samestep.app.calculators import registry
from samestep.app.contract.languages import Lang
from samestep.app.instruments.panels import Panel
from samestep.app.instruments.start import load_guide
from samestep.app.paths import folder
from samestep.app.web.pages.chapters import AsIs, Pages
from samestep.app.web.site import Site

_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
_UTF8 = "; charset=utf-8"


def index_routes(site: Site) -> list[Route]:
    """They stand before the routes of chapters, whose slugs would swallow them."""
    indexes = Indexes(site)
    return [
        Route("/{lang:lang}/start", indexes.start),
        Route("/{lang:lang}/glossary", indexes.glossary),
        Route("/{lang:lang}/sources", indexes.sources),
        Route("/{lang:lang}/tags/{tag}", indexes.tag),
        Route("/{lang:lang}/book", indexes.book),
        Route("/{lang:lang}/feed.atom", indexes.feed),
        Route("/sitemap.xml", indexes.sitemap),
        Route("/llms.txt", indexes.llms),
    ]


class Indexes(Pages):
    """The handlers; pages in the language of their address, files for programs with absolute addresses."""

    async def start(self, request: Request) -> Response:
        """From what a reader sees to the instrument that tells, in at most two steps."""
        lang, _ = self._open(request)
        words = {
            "zh": ("从现象开始", "看到的现象、可能的原因，和一台填好了数的计算器。"),
            "en": ("Start from what you see", "What you see, what it may be, and an instrument that is filled in."),
        }
        title, description = words[lang]
        guide = load_guide(folder("content"))
        titles = {name: self._site.panels.words(lang, name, "heading") for name in registry()}
        context = {"guide": guide, "titles": titles}
        return self._finished(request, "start.html", title=title, description=description, **context)

    async def glossary(self, request: Request) -> Response:
        lang, book = self._open(request)
        words = {
            "zh": ("术语与符号", "全书的术语与符号，每个只有一个意思；附推导它的小节和用到它的章节。"),
            "en": ("Glossary", "The book’s words and symbols, each with one meaning, its derivation and its chapters."),
        }
        title, description = words[lang]
        groups = glossary.groups(book, lang)
        return self._finished(request, "glossary.html", title=title, description=description, groups=groups)

    async def sources(self, request: Request) -> Response:
        lang, book = self._open(request)
        works = sources.works(book.chapters[lang])
        words = {
            "zh": ("资料", "全书引用的论文、文档与源代码，以及引用它们的章节。"),
            "en": ("Sources", "The papers, documentation and source files that the book cites, and where."),
        }
        title, description = words[lang]
        return self._finished(request, "sources.html", title=title, description=description, works=works)

    async def tag(self, request: Request) -> Response:
        lang, book = self._open(request)
        tag = book.tag(lang, request.path_params["tag"])
        if tag is None:
            raise HTTPException(404)
        chapters = book.tagged(tag, lang)
        description = f"带有“{tag.name}”标签的章节" if lang == "zh" else f"Chapters tagged “{tag.name}”"
        context = {"tag": tag, "chapters": chapters, "families": book.families(lang)}
        return self._finished(request, "tag.html", title=tag.name, description=description, **context)

    async def book(self, request: Request) -> Response:
        """Rendered beside the event loop: it is as large as all chapters together."""
        lang, book = self._open(request)
        title = "全书" if lang == "zh" else "The whole book"
        description = "全部章节在一页上，供打印与离线阅读。" if lang == "zh" else "All chapters on one page, for print."

        def whole() -> Response:
            chapters = [(chapter, self._bound(book, chapter)) for chapter in book.chapters[lang]]
            context = {"title": title, "description": description, "parts": book.parts(lang), "chapters": chapters}
            return self._finished(request, "book.html", **context)

        return await run_in_threadpool(whole)

    def _bound(self, book: Book, chapter: Chapter) -> Markup:
        """A chapter as a part of the whole: its panels as results without controls."""
        lang = cast(Lang, chapter.lang)
        pieces = [self._still(one, lang) if isinstance(one, Panel) else str(one) for one in self._pieces(chapter, "")]
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
            "result": Markup(panels.result(panel)),
        }
        return self._site.render("_still.html", context)

    async def feed(self, request: Request) -> Response:
        lang, book = self._open(request)
        absolute = self._absolute(request)
        return self._file(request, feeds.atom(book, lang, absolute), "application/atom+xml" + _UTF8)

    async def sitemap(self, request: Request) -> Response:
        self._site.fresh()
        places = feeds.places(self._site.book, registry())
        return self._file(request, feeds.sitemap(places, self._absolute(request)), "application/xml" + _UTF8)

    async def llms(self, request: Request) -> Response:
        self._site.fresh()
        words = self._site.panels.words
        calculators = {name: (words("en", name, "heading"), words("en", name, "summary")) for name in registry()}
        text = feeds.llms(self._site.book, calculators, self._absolute(request))
        return self._file(request, text, "text/plain" + _UTF8)

    def _absolute(self, request: Request) -> feeds.Absolute:
        """Addresses below the base that the settings give, else below the host that was asked."""
        base = self._site.settings.base_url
        if not base:
            host = request.headers.get("host", "")
            if not _HOST.fullmatch(host):
                raise HTTPException(400)
            base = f"{request.scope['scheme']}://{host}"
        return lambda path: base + self._site.url(path)

    def _file(self, request: Request, text: str, content_type: str) -> Response:
        """Kept only when it is the same for everybody: with a base of its own, whatever host was asked."""
        ready = self._site.finished(text, content_type)
        if self._site.settings.base_url and not self._site.settings.reload:
            self._site.ready[request.scope["path"]] = ready
        return AsIs(ready)
