"""Everything that a running server holds: the book, its search index, templates, static files, finished pages."""

import asyncio
import hashlib
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment

from samestep.app.book.chapters import Book, load_book
from samestep.app.book.compiled import content_digest
from samestep.app.book.markdown.highlight import stylesheet
from samestep.app.book.markdown.pieces import BookError
from samestep.app.book.search import SearchIndex
from samestep.app.evidence.bags import Library
from samestep.app.evidence.conformance import load_texts
from samestep.app.instruments.panels import Panels
from samestep.app.paths import Kept, cache_folder, code_digest, digest_of, folder
from samestep.app.rendering.environment import environment
from samestep.app.settings import Settings
from samestep.app.web import fonts
from samestep.app.web.assets import Assets
from samestep.app.web.finished import EvidenceState, Finished, page_headers
from samestep.app.web.ready import Ready
from samestep.app.web.search_entries import search_index

log = logging.getLogger("samestep")

_EVIDENCE_SECONDS = 1.0
HTML = "text/html; charset=utf-8"


@dataclass
class Site:
    """One server's state. `ready` maps a path to its finished answer; `version` names the running code.

    `made_of` names all that pages depend on beside the evidence; empty where they are not kept for the next start.
    """

    settings: Settings
    assets: Assets
    jinja: Environment
    panels: Panels
    evidence: Library
    version: str
    book: Book
    search: SearchIndex
    ready: dict[str, Ready] = field(default_factory=dict)
    made_of: str = ""
    pages: Finished = field(init=False)

    def __post_init__(self) -> None:
        self._book_state = EvidenceState.of(self.evidence)
        self.pages = self._pages(self._book_state)

    def _pages(self, state: EvidenceState) -> Finished:
        kept = Kept(cache_folder() / "pages", self.made_of, str(state.bags)) if self.made_of else None
        return Finished(self.ready, self.evidence, state, kept)

    @classmethod
    def build(cls, settings: Settings) -> "Site":
        """Read and check everything; BookError when a chapter is broken."""
        root = settings.root_path.rstrip("/")
        assets = Assets(folder("static"), _made_assets(), root)
        templates, content, cache = folder("templates"), folder("content"), cache_folder()
        jinja = environment(templates, assets.url, root, Kept(cache / "templates"))
        jinja.auto_reload = settings.reload
        jinja.globals["verdict_words"] = load_texts(content).verdict
        book = load_book(
            link=lambda path: root + path,
            discuss=settings.discuss if settings.discuss_url else None,
            cache=None if settings.reload else cache / "chapters",
        )
        panels, library = Panels(jinja, root), Library(content / "evidence")
        version = digest_of(templates, (file for file in templates.rglob("*") if file.is_file()))
        made_of = f"{version} {content_digest(content)} {settings}"
        site = cls(
            settings=settings,
            assets=assets,
            jinja=jinja,
            panels=panels,
            evidence=library,
            version=hashlib.sha256((code_digest() + version).encode()).hexdigest()[:16],
            book=book,
            search=_search(lambda: search_index(book, panels, library, content), library, made_of),
            made_of=f"{made_of} {assets.base}" if settings.ahead else "",
        )
        site.ready.update(assets.responses(Kept(cache / "static")))
        return site

    def url(self, path: str) -> str:
        """An address below the root path."""
        return self.settings.root_path.rstrip("/") + path

    def fresh(self) -> None:
        """While an author writes, read the chapters again that were saved since."""
        if not self.settings.reload:
            return
        book = self.book.reload_if_changed()
        self._take(book)

    def _take(self, book: Book) -> None:
        """Show this book from now on, where it is another one."""
        if book is not self.book:
            self.book, self.search = book, search_index(book, self.panels, self.evidence, folder("content"))

    async def watch_evidence(self) -> None:
        """Drop the finished pages when a file of the evidence changes, so that damage shows within moments.

        The book is read again beside that, which may take seconds.
        """
        reading: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(_EVIDENCE_SECONDS)
            try:
                await asyncio.to_thread(self.look_at_evidence)
            except OSError as error:  # it is being replaced, or the disk fails: look again
                log.warning("evidence cannot be read: %s", error)
                continue
            if self._book_state != self.pages.state and (reading is None or reading.done()):
                reading = asyncio.create_task(asyncio.to_thread(self._read_book_again))

    def look_at_evidence(self) -> None:
        """Keep the pages that were made since the last look, or drop all of them where a bag changed."""
        state = EvidenceState.of(self.evidence)
        if state != self.pages.state:
            self._begin_again(state)
        elif state == self._book_state:
            self.pages.settle()

    def _begin_again(self, state: EvidenceState) -> None:
        self.pages = self._pages(state)
        for path in [path for path in self.ready if not path.startswith("/s/")]:
            self.ready.pop(path, None)

    def _read_book_again(self) -> None:
        """Chapters quote the evidence: what was damaged when they were read may be whole now."""
        state, before = self.pages.state, self.book
        try:
            self._take(self.book.reload_if_changed())
        except BookError as error:
            log.warning("chapters stay as they were: they do not agree with the evidence as it is now: %s", error)
        self._book_state = state
        if self.book is not before:
            self._begin_again(self.pages.state)

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        return self.jinja.get_template(template).render(context)

    def keep(self, path: str, page: Ready, among: Finished) -> Ready:
        """The page, served from now on without asking again, unless an author is at work.

        `among` are the pages that there were when its making began: book and evidence are to be still the same.
        """
        if among is self.pages and not self.settings.reload:
            among.add(path, page)
        return page

    def finished(self, text: str, content_type: str = HTML) -> Ready:
        """An answer with the headers that every page has, not kept."""
        return Ready(text.encode(), content_type, page_headers())


def _search(make: Callable[[], SearchIndex], library: Library, made_of: str) -> SearchIndex:
    """The index of an earlier start, or the one that is made now."""
    kept = Kept(cache_folder() / "search", made_of, str(EvidenceState.of(library).bags))
    if (before := kept.read("index")) is not None:
        found: SearchIndex = pickle.loads(before)
        return found
    index = make()
    kept.write("index", pickle.dumps(index))
    return index


def _made_assets() -> dict[str, bytes]:
    """Static files that are made at start: the mathematics font with its rule, and the colours of code."""
    made = {"css/code.css": stylesheet().encode()}
    font = fonts.math_font()
    if font is None:
        return made | {"css/math-font.css": b""}
    name = f"fonts/{font.name}"
    source = f'url("../{name}") format("{font.format}")'
    rule = f'@font-face{{font-family:"STIX Two Math Web";src:{source};font-display:swap}}'
    return made | {name: font.data, "css/math-font.css": rule.encode()}
