"""What is looked up over the whole book: glossary, sources, tags."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book import glossary, sources
from samestep.app.web.pages.layout import Layout


class ReferencePages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/glossary", self._layout.beside(self.glossary)),
            Route("/{lang:lang}/sources", self._layout.beside(self.sources)),
            Route("/{lang:lang}/tags/{tag}", self._layout.beside(self.tag)),
        ]

    def glossary(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        words = {
            "zh": ("术语与符号", "全书的术语与符号：释义、推导它的小节、用到它的章节。"),
            "en": (
                "Glossary",
                "The book’s words and symbols, what they mean, and the chapters that derive and use them.",
            ),
        }
        title, description = words[lang]
        groups = glossary.groups(book, lang)
        return self._layout.finished(request, "glossary.html", title=title, description=description, groups=groups)

    def sources(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        works = sources.works(book.chapters[lang])
        words = {
            "zh": ("资料", "全书引用的论文、文档与源代码，以及引用它们的章节。"),
            "en": ("Sources", "The papers, documentation and source files that the book cites, and where."),
        }
        title, description = words[lang]
        return self._layout.finished(request, "sources.html", title=title, description=description, works=works)

    def tag(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        tag = book.tag(lang, request.path_params["tag"])
        if tag is None:
            raise HTTPException(404)
        chapters = book.tagged(tag, lang)
        description = f"带有“{tag.name}”标签的章节" if lang == "zh" else f"Chapters tagged “{tag.name}”"
        context = {"tag": tag, "chapters": chapters, "families": book.families(lang)}
        return self._layout.finished(request, "tag.html", title=tag.name, description=description, **context)
