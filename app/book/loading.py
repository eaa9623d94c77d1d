"""From the files of a content folder to compiled chapters, with every mistake on the way."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from samestep.app.book.catalogue import Catalogue
from samestep.app.book.chapter import Chapter, Planned, Tag
from samestep.app.book.compiled import Compiled
from samestep.app.book.head import Head, TextWithHead
from samestep.app.book.markdown.build import Context, DamagedEvidenceError
from samestep.app.book.markdown.glossary import Finder, lost_sections
from samestep.app.book.markdown.parser import compile_markdown
from samestep.app.book.markdown.pieces import Document, Mistake
from samestep.app.book.markdown.states import forget_states
from samestep.app.calculators import Calculator
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.evidence.bags import DamagedError, Library, UnknownEvidenceError
from samestep.app.paths import folder

RESERVED = (
    "api",
    "book",
    "calculators",
    "conformance",
    "experiments",
    "glossary",
    "search",
    "sources",
    "start",
    "tags",
)
"""Slugs that are addresses of other pages."""

_FILE = re.compile(r"(\d+)-([a-z0-9][a-z0-9-]*)\.md")


@dataclass(frozen=True)
class _File:
    """A chapter's file before it is compiled."""

    lang: Lang
    number: int
    slug: str
    path: Path
    text: TextWithHead


@dataclass(frozen=True)
class Loaded:
    """Everything that was read. The chapters with a readable head are here even when there are mistakes."""

    chapters: Mapping[str, tuple[Chapter, ...]]
    planned: Mapping[str, tuple[Planned, ...]]
    catalogue: Catalogue
    mistakes: tuple[Mistake, ...]


def load(
    content: Path,
    link: Callable[[str], str],
    calculators: Mapping[str, Calculator],
    discuss: Callable[[str, str, str], str] | None = None,
    compiled: Compiled | None = None,
) -> Loaded:
    """Compile everything. `discuss` gives the address where a section is discussed, by language, slug and id.

    `compiled` holds the documents of an earlier start; it is written when the book has no mistake.
    """
    catalogue = Catalogue(content)
    mistakes = list(catalogue.mistakes)
    files = list(_files(content, mistakes))
    library = Library(content / "evidence")
    finders: dict[str, Finder] = {lang: catalogue.glossary.finder(lang) for lang in LANGUAGES}
    chapters: dict[str, list[Chapter]] = {lang: [] for lang in LANGUAGES}
    for file in files:
        mistakes += file.text.mistakes
        context = _context(file, files, catalogue, library, link, calculators, finders[file.lang], discuss)
        compile_it = partial(compile_markdown, file.text.body, file.path, context, first_line=file.text.first_line)
        document = compiled.document(file.path, compile_it) if compiled else compile_it()
        mistakes += document.mistakes
        if head := file.text.head:
            mistakes += _head_mistakes(file, head, context, catalogue)
            chapters[file.lang].append(_chapter(file, head, document, catalogue))
    forget_states()
    ordered: dict[str, tuple[Chapter, ...]] = {
        lang: tuple(sorted(chapters[lang], key=lambda chapter: chapter.number)) for lang in LANGUAGES
    }
    mistakes += [mistake for lang in LANGUAGES for mistake in _missing_anchors(ordered[lang])]
    mistakes += _glossary_mistakes(ordered, catalogue)
    mistakes += _redirect_mistakes(catalogue, {file.slug for file in files})
    if compiled and not mistakes:
        compiled.keep()
    planned: dict[str, tuple[Planned, ...]] = {
        lang: _planned(lang, catalogue, {chapter.slug for chapter in ordered[lang]}) for lang in LANGUAGES
    }
    return Loaded(ordered, planned, catalogue, tuple(mistakes))


def _files(content: Path, mistakes: list[Mistake]) -> Iterator[_File]:
    for lang in LANGUAGES:
        seen: dict[str, str] = {}
        for path in sorted((content / lang).glob("*.md")):
            match = _FILE.fullmatch(path.name)
            if not match or match[2] in RESERVED:
                why = f"“{match[2]}” is the address of another page" if match else "write NN-slug.md with a-z, 0-9, -"
                mistakes.append(Mistake(path, 1, f"the file's name cannot be used: {why}"))
                continue
            for key in (str(int(match[1])), match[2]):
                if key in seen:
                    mistakes.append(Mistake(path, 1, f"{seen[key]} has “{key}” already"))
                seen[key] = path.name
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                line = path.read_bytes()[: error.start].count(b"\n") + 1
                mistakes.append(Mistake(path, line, "the file is not UTF-8"))
                continue
            yield _File(lang, int(match[1]), match[2], path, TextWithHead(text, path))


def _context(
    file: _File,
    files: Sequence[_File],
    catalogue: Catalogue,
    library: Library,
    link: Callable[[str], str],
    calculators: Mapping[str, Calculator],
    finder: Finder,
    discuss: Callable[[str, str, str], str] | None,
) -> Context:
    head = file.text.head
    return Context(
        lang=file.lang,
        calculators=calculators,
        evidence=_results(library),
        experiments=frozenset(catalogue.plans.experiment) | frozenset(library.names()),
        chapters=frozenset(one.slug for one in files if one.lang == file.lang),
        planned=frozenset(catalogue.plans.chapter),
        sources=frozenset(source.id for source in head.sources) if head else None,
        link=link,
        terms=finder.of(file.slug),
        discuss=partial(discuss, file.lang, file.slug) if discuss else None,
        figures=_figures(),
    )


@cache
def _figures() -> frozenset[str]:
    return frozenset(file.stem for file in (folder("templates") / "figures" / "chapters").glob("*.svg"))


def _results(library: Library) -> Callable[[str], Any]:
    @cache
    def result(name: str) -> Any:
        if name not in library.names():
            return None
        try:
            return library.bag(name).result
        except (DamagedError, UnknownEvidenceError, ValueError) as error:
            raise DamagedEvidenceError(str(error)) from None

    return result


def _chapter(file: _File, head: Head, document: Document, catalogue: Catalogue) -> Chapter:
    ids = (("topic", head.topic), ("level", head.level), ("kind", head.kind))
    named = [(family, tag, catalogue.tags.family(family).get(tag)) for family, tag in ids]
    return Chapter(
        lang=file.lang,
        slug=file.slug,
        number=file.number,
        file=file.path,
        title=head.title,
        summary=head.summary,
        kicker=head.kicker,
        part=head.part,
        tags=tuple(Tag(family, tag, name[file.lang]) for family, tag, name in named if name),
        related=head.related,
        sources=head.sources,
        updated=head.updated,
        document=document,
    )


def _head_mistakes(file: _File, head: Head, context: Context, catalogue: Catalogue) -> Iterator[Mistake]:
    for family in ("part", "topic", "level", "kind"):
        tag, known = getattr(head, family), catalogue.tags.family(family)
        if tag not in known and not catalogue.mistakes:
            reason = f"head: {family} “{tag}” is not in tags.toml (there are {', '.join(known)})"
            yield Mistake(file.path, file.text.line_of(family), reason)
    for slug in head.related:
        if slug not in context.chapters | context.planned or slug == file.slug:
            yield Mistake(file.path, file.text.line_of("related"), f"head: related: there is no other chapter “{slug}”")


def _missing_anchors(chapters: Sequence[Chapter]) -> Iterator[Mistake]:
    by_slug = {chapter.slug: chapter for chapter in chapters}
    for chapter in chapters:
        for reference in chapter.document.references:
            target = by_slug.get(reference.slug)
            known = target is None or not reference.anchor or reference.anchor in target.document.anchors
            sources = {f"source-{source.id}" for source in target.sources} | {"sources"} if target else set()
            if not known and reference.anchor not in sources:
                reason = f"the chapter “{reference.slug}” has no id “{reference.anchor}”"
                yield Mistake(chapter.file, reference.line, reason)


def _glossary_mistakes(chapters: Mapping[str, Sequence[Chapter]], catalogue: Catalogue) -> Iterator[Mistake]:
    anchors: dict[str, list[Mapping[str, int]]] = {}
    for lang in LANGUAGES:
        for chapter in chapters[lang]:
            anchors.setdefault(chapter.slug, []).append(chapter.document.anchors)
    return lost_sections(catalogue.glossary, catalogue.glossary_file, anchors, frozenset(catalogue.plans.chapter))


def _redirect_mistakes(catalogue: Catalogue, slugs: set[str]) -> Iterator[Mistake]:
    for old, new in catalogue.redirects.items():
        if old in slugs:
            yield Mistake(catalogue.redirects_file, 1, f"“{old}” is a chapter: it cannot be redirected")
        if new not in slugs:
            yield Mistake(catalogue.redirects_file, 1, f"“{old}” leads to “{new}”, which is no chapter")


def _planned(lang: Lang, catalogue: Catalogue, written: set[str]) -> tuple[Planned, ...]:
    plans = sorted(catalogue.plans.chapter.items(), key=lambda item: item[1].number)
    return tuple(Planned(lang, slug, plan.number, plan.part, plan[lang]) for slug, plan in plans if slug not in written)
