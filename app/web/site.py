"""Everything that a running server holds: the book, its search index, templates, static files, finished pages."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment

from samestep.app.book.chapters import Book, load_book
from samestep.app.book.markdown.highlight import stylesheet
from samestep.app.book.markdown.pieces import BookError
from samestep.app.book.search import SearchIndex
from samestep.app.evidence.bags import Library
from samestep.app.instruments.panels import Panels
from samestep.app.paths import APP, cache_folder, folder
from samestep.app.rendering.environment import environment
from samestep.app.settings import Settings
from samestep.app.web import fonts
from samestep.app.web.assets import Assets
from samestep.app.web.ready import Ready, security_headers
from samestep.app.web.search_entries import search_index

log = logging.getLogger("samestep")

_EVIDENCE_SECONDS = 1.0
_HTML = "text/html; charset=utf-8"


@dataclass
class Site:
    """One server's state. `ready` maps a path to its finished answer; `version` names the running code."""

    settings: Settings
    assets: Assets
    jinja: Environment
    panels: Panels
    evidence: Library
    version: str
    book: Book
    search: SearchIndex
    ready: dict[str, Ready] = field(default_factory=dict)

    @classmethod
    def build(cls, settings: Settings) -> "Site":
        """Read and check everything; BookError when a chapter is broken."""
        root = settings.root_path.rstrip("/")
        assets = Assets(folder("static"), _made_assets(), root)
        jinja = environment(folder("templates"), assets.url, root)
        jinja.auto_reload = settings.reload
        book = load_book(
            link=lambda path: root + path,
            discuss=settings.discuss if settings.discuss_url else None,
            cache=None if settings.reload else cache_folder() / "chapters",
        )
        panels, library = Panels(jinja, root), Library(folder("content") / "evidence")
        site = cls(
            settings=settings,
            assets=assets,
            jinja=jinja,
            panels=panels,
            evidence=library,
            version=_version(),
            book=book,
            search=search_index(book, panels, library, folder("content")),
        )
        site.ready.update(assets.responses())
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
        """Drop the finished pages when a file of the evidence changes, so that damage shows within moments."""
        known = await asyncio.to_thread(self._evidence_state)
        while True:
            await asyncio.sleep(_EVIDENCE_SECONDS)
            try:
                state = await asyncio.to_thread(self._evidence_state)
            except OSError as error:  # it is being replaced, or the disk fails: look again
                log.warning("evidence cannot be read: %s", error)
                continue
            if state != known:
                known = state
                await asyncio.to_thread(self._read_book_again)
                for path in [path for path in self.ready if not path.startswith("/s/")]:
                    self.ready.pop(path, None)

    def _evidence_state(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Also how often it changed: pages may have been made between two looks."""
        bags = tuple((bag.name, bag.etag) for bag in self.evidence.bags())
        return self.evidence.changes, bags

    def _read_book_again(self) -> None:
        """Chapters quote the evidence: what was damaged when they were read may be whole now."""
        try:
            book = self.book.reload_if_changed()
        except BookError as error:
            log.warning("chapters stay as they were: they do not agree with the evidence as it is now: %s", error)
            return
        self._take(book)

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        return self.jinja.get_template(template).render(context)

    def keep(self, path: str, html: str) -> Ready:
        """A finished page; served from now on without asking again, unless an author is at work."""
        ready = self.finished(html, _HTML)
        if not self.settings.reload:
            self.ready[path] = ready
        return ready

    def finished(self, text: str, content_type: str) -> Ready:
        """An answer with the headers that every page has, not kept."""
        return Ready(text.encode(), content_type, [(b"cache-control", b"no-cache"), *security_headers()])


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


def _version() -> str:
    """A digest of the code and templates that make the answers."""
    digest = hashlib.sha256()
    for base in (APP, folder("templates")):
        for path in sorted(base.rglob("*")):
            if path.suffix in (".py", ".html", ".svg") and path.is_file():
                digest.update(path.relative_to(base).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
