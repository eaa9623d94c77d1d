"""What is looked up over the whole book: glossary, sources, tags."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.book import glossary as terms, sources as cited
from samestep.app.web.pages.layout import Layout, Pages


def glossary(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    words = {
        "zh": ("术语与符号", "全书的术语与符号：释义、推导它的小节、用到它的章节。"),
        "en": (
            "Glossary",
            "The book’s words and symbols, what they mean, and the chapters that derive and use them.",
        ),
    }
    title, description = words[lang]
    groups = terms.groups(book, lang)
    return layout.finished(request, "glossary.html", title=title, description=description, groups=groups)


def sources(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    works = cited.works(book.chapters[lang])
    words = {
        "zh": ("资料", "全书引用的论文、文档与源代码，以及引用它们的章节。"),
        "en": ("Sources", "The papers, documentation and source files that the book cites, and where."),
    }
    title, description = words[lang]
    return layout.finished(request, "sources.html", title=title, description=description, works=works)


def tag(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    found = book.tag(lang, request.path_params["tag"])
    if found is None:
        raise HTTPException(404)
    chapters = book.tagged(found, lang)
    description = f"带有“{found.name}”标签的章节" if lang == "zh" else f"Chapters tagged “{found.name}”"
    context = {"tag": found, "chapters": chapters, "families": book.families(lang)}
    return layout.finished(request, "tag.html", title=found.name, description=description, **context)


PAGES: Pages = {
    "/{lang:lang}/glossary": glossary,
    "/{lang:lang}/sources": sources,
    "/{lang:lang}/tags/{tag}": tag,
}
