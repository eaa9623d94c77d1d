"""Chapters as the rest of the wiki sees them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from samestep.app.book.head import Source
from samestep.app.book.markdown.pieces import CalculatorRef, Document, EvidenceRef, Piece, Section
from samestep.app.contract.languages import Lang


@dataclass(frozen=True)
class Tag:
    """A topic, level or kind: its id and its name in one language."""

    family: str
    id: str
    name: str


@dataclass(frozen=True)
class Chapter:
    """One chapter in one language."""

    lang: Lang
    slug: str
    number: int
    file: Path
    title: str
    summary: str
    kicker: str
    part: str
    tags: tuple[Tag, ...]
    """Topic, level, kind, in this order."""
    related: tuple[str, ...]
    """Slugs, each of a chapter or of a planned one."""
    sources: tuple[Source, ...]
    updated: date | None
    """When the author last changed what it says; None when the head does not tell."""
    document: Document

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.document.pieces

    @property
    def sections(self) -> tuple[Section, ...]:
        return self.document.sections

    @property
    def calculators(self) -> tuple[CalculatorRef, ...]:
        return self.document.calculators

    @property
    def evidence(self) -> tuple[EvidenceRef, ...]:
        return self.document.evidence

    @property
    def minutes(self) -> int:
        return self.document.minutes

    @property
    def path(self) -> str:
        """Its address, without the root path."""
        return f"/{self.lang}/{self.slug}"


@dataclass(frozen=True)
class Planned:
    """A chapter that is announced but not written in this language."""

    lang: Lang
    slug: str
    number: int
    part: str
    title: str


@dataclass(frozen=True)
class Part:
    """A part of the book: what is written and what is planned, each in order."""

    id: str
    title: str
    chapters: tuple[Chapter, ...]
    planned: tuple[Planned, ...]


@dataclass(frozen=True)
class SearchSection:
    """What search indexes: a heading and its text. A chapter's beginning has the chapter's title as its heading."""

    lang: Lang
    slug: str
    chapter_title: str
    heading: str
    path: str
    text: str
    formulas: str


def search_sections(chapter: Chapter) -> Iterator[SearchSection]:
    """The chapter's beginning, then every heading in order."""
    yield _found(chapter, chapter.title, "", f"{chapter.summary}\n{chapter.document.lead}", "")
    yield from _below(chapter, chapter.sections)


def _below(chapter: Chapter, sections: Sequence[Section]) -> Iterator[SearchSection]:
    for section in sections:
        yield _found(chapter, section.title, f"#{section.id}", section.text, section.formulas)
        yield from _below(chapter, section.children)


def _found(chapter: Chapter, heading: str, anchor: str, text: str, formulas: str) -> SearchSection:
    return SearchSection(
        chapter.lang, chapter.slug, chapter.title, heading, chapter.path + anchor, text.strip(), formulas
    )
