"""The book: every chapter of `content/<lang>/NN-slug.md`, in order, compiled and checked.

`python -m app.book.chapters` builds it and prints every mistake. A chapter compiles in a few tens of milliseconds; the
server keeps what it compiled for its next start (`compiled`).
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from samestep.app.book.catalogue import Catalogue
from samestep.app.book.chapter import Chapter, Part, Planned, SearchSection, Tag, search_sections
from samestep.app.book.compiled import Compiled
from samestep.app.book.loading import load
from samestep.app.book.markdown.pieces import (
    BookError,
    Mistake,
)
from samestep.app.book.parity import differences
from samestep.app.calculators import Calculator, registry
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.paths import folder


@dataclass(frozen=True)
class _Settings:
    """How a book is loaded, kept to load it again."""

    content: Path
    link: Callable[[str], str]
    calculators: Mapping[str, Calculator]
    discuss: Callable[[str, str, str], str] | None
    cache: Path | None

    def load(self) -> "Book":
        stamp = _stamp(self.content)
        compiled = None
        if self.cache is not None:
            addresses = self.link("/") + (self.discuss("en", "slug", "id") if self.discuss else "")
            compiled = Compiled(self.cache, self.content, addresses)
        loaded = load(self.content, self.link, self.calculators, self.discuss, compiled)
        if loaded.mistakes:
            raise BookError(loaded.mistakes)
        return Book(loaded.chapters, loaded.planned, loaded.catalogue, self, stamp)


@dataclass(frozen=True)
class Book:
    """All chapters of both languages, in the order of their numbers."""

    chapters: Mapping[str, tuple[Chapter, ...]]
    planned: Mapping[str, tuple[Planned, ...]]
    catalogue: Catalogue
    settings: _Settings
    stamp: frozenset[tuple[str, int, int]]

    @property
    def redirects(self) -> Mapping[str, str]:
        """Old slugs and the slugs that took their place."""
        return self.catalogue.redirects

    def chapter(self, lang: Lang, slug: str) -> Chapter | None:
        return self._by_slug.get((lang, slug))

    def alternate(self, chapter: Chapter) -> Chapter | None:
        """The same chapter in the other language."""
        return self.chapter("en" if chapter.lang == "zh" else "zh", chapter.slug)

    def neighbours(self, chapter: Chapter) -> tuple[Chapter | None, Chapter | None]:
        """The chapters before and after, in the same language."""
        order = self.chapters[chapter.lang]
        place = order.index(chapter)
        return (order[place - 1] if place else None), (order[place + 1] if place + 1 < len(order) else None)

    def related(self, chapter: Chapter) -> tuple[Chapter | Planned, ...]:
        """The chapters that it names as related, in its order."""
        planned = {plan.slug: plan for plan in self.planned[chapter.lang]}
        return tuple(self.chapter(chapter.lang, slug) or planned[slug] for slug in chapter.related)

    def parts(self, lang: Lang) -> tuple[Part, ...]:
        return tuple(
            Part(
                identifier,
                name[lang],
                tuple(chapter for chapter in self.chapters[lang] if chapter.part == identifier),
                tuple(plan for plan in self.planned[lang] if plan.part == identifier),
            )
            for identifier, name in self.catalogue.tags.part.items()
        )

    def tag(self, lang: Lang, identifier: str) -> Tag | None:
        """The topic, level or kind of that id."""
        for family in ("topic", "level", "kind"):
            if name := self.catalogue.tags.family(family).get(identifier):
                return Tag(family, identifier, name[lang])
        return None

    def families(self, lang: Lang) -> dict[str, list[tuple[Tag, int]]]:
        """The tags that chapters carry, by topic, level and kind, each with the number of its chapters."""
        counts = Counter(tag for chapter in self.chapters[lang] for tag in chapter.tags)
        families: dict[str, list[tuple[Tag, int]]] = {}
        for family in ("topic", "level", "kind"):
            tags = [Tag(family, one, name[lang]) for one, name in self.catalogue.tags.family(family).items()]
            families[family] = [(tag, counts[tag]) for tag in tags if counts[tag]]
        return families

    def tagged(self, tag: Tag, lang: Lang) -> tuple[Chapter, ...]:
        return tuple(chapter for chapter in self.chapters[lang] if tag in chapter.tags)

    def experiment(self, lang: Lang, name: str) -> str | None:
        """The title of an experiment that is planned or published under this name, where it is declared."""
        title = self.catalogue.plans.experiment.get(name)
        return title[lang] if title else None

    def experiments(self, lang: Lang) -> dict[str, str]:
        """The titles of all experiments that are declared, by name."""
        return {name: title[lang] for name, title in self.catalogue.plans.experiment.items()}

    def sections(self) -> tuple[SearchSection, ...]:
        """Everything that search indexes, in both languages."""
        return tuple(
            found for lang in LANGUAGES for chapter in self.chapters[lang] for found in search_sections(chapter)
        )

    def check(self) -> tuple[Mistake, ...]:
        """What does not keep the book from being shown: differences between the languages, numbers left unchecked."""
        chapters = [chapter for lang in LANGUAGES for chapter in self.chapters[lang]]
        return tuple(sorted(mistake for chapter in chapters for mistake in self._check(chapter)))

    def _check(self, chapter: Chapter) -> Iterator[Mistake]:
        for number in chapter.document.checked:
            if not number.verified:
                reason = f"“{number.text}” is unchecked: the evidence {number.source} is damaged"
                yield Mistake(chapter.file, number.line, reason)
        other = self.alternate(chapter)
        if other is None:
            yield Mistake(chapter.file, 1, "the chapter is missing in the other language")
            return
        if other.file.name != chapter.file.name:
            yield Mistake(chapter.file, 1, f"in the other language its file is {other.file.name}")
        if _declared(other) != _declared(chapter):
            yield Mistake(chapter.file, 1, f"part, tags, related or source ids differ from those in {other.lang}")
        for line, what in differences(chapter.document, other.document):
            yield Mistake(chapter.file, line, f"{what} is not in {other.lang}")

    def reload_if_changed(self) -> "Book":
        """This book, or a new one when a file was saved since. Raises BookError when it has a mistake now."""
        if _stamp(self.settings.content) == self.stamp:
            return self
        return self.settings.load()

    @cached_property
    def _by_slug(self) -> dict[tuple[str, str], Chapter]:
        return {(lang, chapter.slug): chapter for lang in LANGUAGES for chapter in self.chapters[lang]}


def load_book(
    content: Path | None = None,
    *,
    link: Callable[[str], str] = str,
    calculators: Mapping[str, Calculator] | None = None,
    discuss: Callable[[str, str, str], str] | None = None,
    cache: Path | None = None,
) -> Book:
    """Read, compile and check all chapters; raises BookError with every mistake that was found.

    `link` turns a path from the root of the site into the address that is printed in the text; `discuss` gives the
    address where a section is discussed, by language, slug and the section's id. In `cache` the compiled chapters are
    kept for the next start.
    """
    calculators = registry() if calculators is None else calculators
    return _Settings(content or folder("content"), link, calculators, discuss, cache).load()


def _stamp(content: Path) -> frozenset[tuple[str, int, int]]:
    """The files that the book is made of, each with its time and size."""
    files = [*content.glob("*.toml"), *content.glob("evidence/*/data/result.json")]
    files += [file for lang in LANGUAGES for file in (content / lang).glob("*.md")]
    return frozenset(filter(None, map(_state, files)))


def _state(file: Path) -> tuple[str, int, int] | None:
    try:
        state = file.stat()
    except FileNotFoundError:  # an editor is just replacing it
        return None
    return str(file), state.st_mtime_ns, state.st_size


def _declared(chapter: Chapter) -> object:
    """What must be the same in both languages' heads."""
    sources = sorted((source.id, source.url, source.year) for source in chapter.sources)
    return chapter.part, [(tag.family, tag.id) for tag in chapter.tags], chapter.related, sources


def main() -> int:
    """Build the book and print its mistakes; the exit code is 1 when there are any."""
    parser = argparse.ArgumentParser(prog="python -m app.book.chapters", description="Build the book and check it.")
    parser.add_argument("content", nargs="?", type=Path, help="the content folder (default: the book's own)")
    start = time.perf_counter()
    try:
        book = load_book(parser.parse_args().content)
        mistakes = book.check()
    except BookError as error:
        mistakes = error.mistakes
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    if mistakes:
        print(f"{len(mistakes)} mistakes", file=sys.stderr)
        return 1
    chapters = sum(map(len, book.chapters.values()))
    print(f"book ok: {chapters} chapters, {time.perf_counter() - start:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
