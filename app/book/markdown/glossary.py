"""The glossary: `content/glossary.toml`, the words and symbols that mean one thing through the whole book.

A term has its name in both languages, one sentence that says what it is, and the section that derives it. Chapters link
its first occurrence; which words count as one is `forms`. A symbol belongs to one term only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from samestep.app.book.markdown.math import FormulaError, convert
from samestep.app.book.markdown.pieces import Mistake
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.contract.texts import InBoth, Named

_ID = re.compile(r"[a-z][a-z0-9-]*")
_LATIN = re.compile(r"[A-Za-z0-9]")


class ByLanguage(BaseModel):
    """Words or slugs for each language; None where a language is not mentioned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: tuple[str, ...] | None = None
    en: tuple[str, ...] | None = None

    def __getitem__(self, lang: Lang) -> tuple[str, ...] | None:
        return {"zh": self.zh, "en": self.en}[lang]


class Term(Named):
    """One entry. `symbols` are TeX; `derived` is `slug#section`; `forms` are the words that are this term in a text, in
    place of its name; `unlinked` are the slugs of chapters in which they mean something else; `also` are words under
    which readers may look for it.
    """

    group: str
    definition: InBoth
    derived: str = Field(pattern=r"^[a-z0-9-]+#[a-z0-9_-]+$")
    symbols: tuple[str, ...] = ()
    forms: ByLanguage = ByLanguage()
    unlinked: ByLanguage = ByLanguage()
    also: ByLanguage = ByLanguage()

    def sought(self) -> tuple[str, ...]:
        """Everything that somebody who looks for this term may type, in either language."""
        return tuple(dict.fromkeys(word for lang in LANGUAGES for word in self._sought(lang)))

    def _sought(self, lang: Lang) -> tuple[str, ...]:
        return self[lang], *self.words(lang), *(self.also[lang] or ())

    def words(self, lang: Lang) -> tuple[str, ...]:
        forms = self.forms[lang]
        return (self[lang],) if forms is None else forms


class Glossary(BaseModel):
    """All terms in the order of the file, each in one group."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: dict[str, InBoth] = {}
    term: dict[str, Term] = {}
    synonyms: tuple[tuple[str, ...], ...] = ()
    """Words that stand for each other when somebody searches, beside those of the terms."""

    def sought_together(self) -> list[tuple[str, ...]]:
        """Every group of words that find the same."""
        return [*(term.sought() for term in self.term.values()), *self.synonyms]

    def finder(self, lang: Lang) -> "Finder":
        words = [(form, identifier) for identifier, term in self.term.items() for form in term.words(lang)]
        words += [(form[0].upper() + form[1:], one) for form, one in words if form[0].isascii() and form[0].islower()]
        words.sort(key=lambda word: (word[0][0], -len(word[0])))
        branches = [
            _branch(first, [form for form, _ in some]) for first, some in groupby(words, lambda word: word[0][0])
        ]
        return Finder(lang, self.term, re.compile("|".join(branches) or "(?!)"), tuple(one for _, one in words))


@dataclass(frozen=True)
class Finder:
    """Finds terms in a text of one language: the group of `pattern` that matched says whose word it was."""

    lang: Lang
    terms: Mapping[str, Term]
    pattern: re.Pattern[str]
    owners: tuple[str, ...]
    skipped: frozenset[str] = frozenset()
    """Terms that this chapter does not link."""

    def of(self, slug: str) -> "Finder":
        """The finder for one chapter."""
        skipped = (one for one, term in self.terms.items() if slug in (term.unlinked[self.lang] or ()))
        return replace(self, skipped=frozenset(skipped))

    def definition(self, identifier: str) -> str:
        return self.terms[identifier].definition[self.lang]

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Start, end and id of every term in a text; of two that overlap the longer one."""
        for match in self.pattern.finditer(text):
            owner = self.owners[(match.lastindex or 0) - 1]
            if owner not in self.skipped:
                yield match.start(), match.end(), owner


def _branch(first: str, forms: Sequence[str]) -> str:
    """All words with one first letter, longest first, each in a group: so a text is skipped from letter to letter.

    Latin words stand whole in their text, with or without the -s of the plural.
    """
    before = f"(?<![A-Za-z0-9_-]{first})" if _LATIN.match(first) else ""
    after = r"(?:e?s)?(?![A-Za-z0-9_-])"
    rests = (re.escape(form[1:]) + (after if _LATIN.match(form[-1]) else "") for form in forms)
    return f"{re.escape(first)}{before}(?:{'|'.join(f'({rest})' for rest in rests)})"


def mistakes_of(glossary: Glossary, file: Path) -> Iterator[Mistake]:
    """What is wrong with the glossary by itself: an unknown group, a word or symbol of two terms, a bad formula."""
    text = file.read_text(encoding="utf-8") if glossary.term else ""
    owners: dict[tuple[str, str], str] = {}
    for identifier, term in glossary.term.items():
        line = line_of(text, identifier)
        if not _ID.fullmatch(identifier) or identifier == "main" or identifier.startswith("group-"):
            yield Mistake(file, line, f"the id “{identifier}” cannot be used: write a-z, 0-9, -")
        if term.group not in glossary.group:
            yield Mistake(file, line, f"there is no group “{term.group}”")
        words = [(lang, form) for lang in ("zh", "en") for form in term.words(lang)]
        for lang, form in (*words, *(("symbol", symbol) for symbol in term.symbols)):
            owner = owners.setdefault((lang, form), identifier)
            if owner != identifier:
                yield Mistake(file, line, f"“{form}” stands for “{owner}” already")
        for symbol in term.symbols:
            try:
                convert(symbol, False)
            except FormulaError as error:
                yield Mistake(file, line, f"the symbol {symbol}: {error.reason}")


def line_of(text: str, identifier: str) -> int:
    """The line of `glossary.toml` where a term begins."""
    return next((n for n, row in enumerate(text.split("\n"), 1) if row.rstrip() == f"[term.{identifier}]"), 1)


def lost_sections(
    glossary: Glossary, file: Path, anchors: Mapping[str, Sequence[Mapping[str, int]]], planned: frozenset[str]
) -> Iterator[Mistake]:
    """Terms whose section does not exist; `anchors` are the ids of each chapter in every language that has it."""
    text = file.read_text(encoding="utf-8") if glossary.term else ""
    for identifier, term in glossary.term.items():
        slug, _, section = term.derived.partition("#")
        known = anchors.get(slug)
        if known is None and slug not in planned:
            yield Mistake(file, line_of(text, identifier), f"there is no chapter “{slug}”")
        elif not all(section in ids for ids in known or ()):
            yield Mistake(file, line_of(text, identifier), f"the chapter “{slug}” has no id “{section}”")
