"""All sources of all chapters in one list: a work that several chapters cite stands there once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from samestep.app.book.chapter import Chapter
from samestep.app.book.head import Source


class Citation(NamedTuple):
    """Where a chapter cites a work: at its own `#source-ID`; the note says what for."""

    chapter: Chapter
    id: str
    note: str


@dataclass(frozen=True)
class Work:
    """A source and the chapters that cite it, in the order of the book. The id is unique in the list."""

    id: str
    source: Source
    citations: tuple[Citation, ...]

    @property
    def is_paper(self) -> bool:
        """Papers have authors and a year; documentation and source files have versions."""
        return bool(self.source.authors and self.source.year)


def works(chapters: Iterable[Chapter]) -> tuple[Work, ...]:
    """Papers by year, then everything else by title.

    Two entries are the same work when they have the same address, or without one the same title and version.
    """
    found: dict[tuple[str, ...], list[tuple[Citation, Source]]] = {}
    for chapter in chapters:
        for source in chapter.sources:
            key = (source.url,) if source.url else (source.title, source.version)
            found.setdefault(key, []).append((Citation(chapter, source.id, source.note), source))
    taken: set[str] = set()
    merged = [_work(entries, taken) for entries in found.values()]
    return tuple(sorted(merged, key=_order))


def _work(entries: list[tuple[Citation, Source]], taken: set[str]) -> Work:
    citations = tuple(citation for citation, _ in entries)
    sources = [source for _, source in entries]
    fullest = max((source.authors for source in sources), key=len)
    names = [source.id for source in sources] + [f"{citations[0].chapter.slug}-{sources[0].id}"]
    identifier = next(name for name in names if name not in taken)
    taken.add(identifier)
    return Work(identifier, sources[0].model_copy(update={"authors": fullest}), citations)


def _order(work: Work) -> tuple[bool, int, str]:
    year = work.source.year or 0
    return not work.is_paper, year if work.is_paper else 0, (work.source.authors + work.source.title).casefold()
