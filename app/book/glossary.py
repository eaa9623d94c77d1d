"""The glossary as a page shows it: each term with its symbols, where it is derived, and the chapters that use it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import Book
from samestep.app.book.markdown.glossary import Term
from samestep.app.book.markdown.math import convert
from samestep.app.book.markdown.pieces import Section
from samestep.app.contract.languages import Lang


@dataclass(frozen=True)
class Entry:
    """A term in one language. `derived` is the title and path of a section, None while its chapter is not written."""

    id: str
    name: str
    other_name: str
    definition: str
    symbols: tuple[Markup, ...]
    derived: tuple[str, str] | None
    uses: tuple[Chapter, ...]
    """Chapters that link the term: each at `#term-ID`."""


@dataclass(frozen=True)
class Group:
    id: str
    title: str
    entries: tuple[Entry, ...]


def groups(book: Book, lang: Lang) -> tuple[Group, ...]:
    """All terms, group by group, in the order in which they are declared."""
    glossary = book.catalogue.glossary
    entries = {identifier: _entry(book, lang, identifier, term) for identifier, term in glossary.term.items()}
    found = (
        Group(name, title[lang], tuple(entries[one] for one, term in glossary.term.items() if term.group == name))
        for name, title in glossary.group.items()
    )
    return tuple(group for group in found if group.entries)


def answers(book: Book, lang: Lang, query: str) -> tuple[Entry, ...]:
    """The terms that somebody looks for who types just this, in either language."""
    wanted = " ".join(query.casefold().split())
    terms = book.catalogue.glossary.term.items()
    return tuple(
        _entry(book, lang, identifier, term)
        for identifier, term in terms
        if wanted in {word.casefold() for word in term.sought()}
    )


def _entry(book: Book, lang: Lang, identifier: str, term: Term) -> Entry:
    return Entry(
        id=identifier,
        name=term[lang],
        other_name=term["en" if lang == "zh" else "zh"],
        definition=term.definition[lang],
        symbols=tuple(Markup(convert(symbol, False).mathml) for symbol in term.symbols),
        derived=_section(book, lang, term.derived),
        uses=tuple(chapter for chapter in book.chapters[lang] if identifier in chapter.document.terms),
    )


def _section(book: Book, lang: Lang, target: str) -> tuple[str, str] | None:
    slug, _, anchor = target.partition("#")
    chapter = book.chapter(lang, slug)
    if chapter is None:
        return None
    titles = {section.id: section.title for section in _flat(chapter.sections)}
    return titles.get(anchor, chapter.title), f"{chapter.path}#{anchor}"


def _flat(sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from section.children
