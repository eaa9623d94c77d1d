"""What can be found: the sections of all chapters, and every other page that has words of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from samestep.app.book.chapters import Book
from samestep.app.book.search import SearchIndex, Section
from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES, Lang
from samestep.app.evidence.bags import ConformanceRow, Library, Result
from samestep.app.evidence.conformance import NAME, load_texts
from samestep.app.evidence.exhibits import exhibit_of
from samestep.app.instruments.bodies import body_fields
from samestep.app.instruments.panels import Panels
from samestep.app.instruments.presets import load_presets
from samestep.app.instruments.start import load_guide


def search_index(book: Book, panels: Panels, library: Library, content: Path) -> SearchIndex:
    """The index over the whole wiki; the glossary says which words stand for each other."""
    sections = [*_chapters(book)]
    for lang in LANGUAGES:
        sections += _calculators(panels, lang)
        sections += _start(content, lang)
        sections += _frameworks(content, library, lang)
        sections += _reports(content, lang)
        sections += _experiments(book, library, lang)
        sections += _terms(book, lang)
    return SearchIndex(sections, book.catalogue.glossary.sought_together())


def _chapters(book: Book) -> Iterator[Section]:
    for section in book.sections():
        yield Section(
            lang=section.lang,
            slug=section.slug,
            chapter_title=section.chapter_title,
            heading="" if section.heading == section.chapter_title else section.heading,
            anchor=section.path.partition("#")[2],
            text=section.text,
            formulas=(section.formulas,),
        )


def _calculators(panels: Panels, lang: Lang) -> Iterator[Section]:
    for name, calculator in registry().items():
        fields = " ".join([name, *calculator.query.model_fields, *body_fields(calculator)])
        text = f"{panels.words(lang, name, 'summary')} {panels.words(lang, name, 'subtitle')}"
        yield Section(
            lang, f"calculators/{name}", panels.words(lang, name, "heading"), "", "", text, (fields,), "calculator"
        )


def _start(content: Path, lang: Lang) -> Iterator[Section]:
    for symptom in load_guide(content).symptom:
        title = symptom[lang]
        answers = [f"{answer[lang]}\n\n{answer.why[lang]}" for answer in symptom.answer]
        yield Section(lang, "start", title, "", symptom.id, "\n\n".join(answers), (), "start")


def _frameworks(content: Path, library: Library, lang: Lang) -> Iterator[Section]:
    result = _published(library, NAME)
    settings: dict[str, dict[str, None]] = {}
    for row in cast(list[ConformanceRow], result["rows"]) if result else []:
        settings.setdefault(row["framework"], {})[row["title"][lang]] = None
    for name, text in load_texts(content).framework.items():
        words = [text.recipe[lang], *(surprise.text[lang] for surprise in text.surprise), text.code]
        words += settings.get(name, ())
        yield Section(lang, f"conformance/{name}", text.name, "", "", "\n\n".join(words), (), "framework")


def _reports(content: Path, lang: Lang) -> Iterator[Section]:
    """Situations of public reports, each at the state of the calculator that shows it."""
    for name, presets in load_presets(content).items():
        for preset in presets:
            slug = f"calculators/{name}{preset.state}"
            yield Section(lang, slug, preset[lang], "", "", preset.report, (preset.report,), "report")


def _experiments(book: Book, library: Library, lang: Lang) -> Iterator[Section]:
    for name, title in book.experiments(lang).items():
        result = _published(library, name)
        question = result["question"][lang] if result else ""
        yield Section(lang, f"experiments/{name}", title, "", "", question, (name,), "experiment")


def _terms(book: Book, lang: Lang) -> Iterator[Section]:
    for identifier, term in book.catalogue.glossary.term.items():
        text = f"{term.definition[lang]} {' '.join(term.also[lang] or ())}".strip()
        yield Section(lang, "glossary", term[lang], "", identifier, text, term.symbols, "term")


def _published(library: Library, name: str) -> Result | None:
    exhibit = exhibit_of(library.bag(name)) if name in library.names() else None
    return exhibit.result if exhibit else None
