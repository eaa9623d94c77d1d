"""The wiki for programs: an Atom feed of the chapters, a sitemap, and `llms.txt`.

Everything here has absolute addresses: `absolute` turns a path from the root of the site into one.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import Book
from samestep.app.contract.languages import LANGUAGES, Lang

Absolute = Callable[[str], str]

_XML = '<?xml version="1.0" encoding="utf-8"?>\n'
_NAMES = {
    "zh": ("同一步", "同一组样本，切分之后，还是同一次更新吗？"),
    "en": ("SameStep", "The same samples, split another way: is it still the same update?"),
}


@dataclass(frozen=True)
class Place:
    """A page that exists in several languages: its path in each, and the day of its last change where it is known."""

    paths: Mapping[str, str]
    updated: date | None = None


def atom(book: Book, lang: Lang, absolute: Absolute) -> str:
    """The chapters of one language, the latest change first. Ids do not depend on the host."""
    feed = Element("feed", {"xmlns": "http://www.w3.org/2005/Atom", "xml:lang": lang})
    title, subtitle = _NAMES[lang]
    SubElement(feed, "id").text = _urn(f"/{lang}/")
    SubElement(feed, "title").text = title
    SubElement(feed, "subtitle").text = subtitle
    SubElement(feed, "link", {"rel": "self", "type": "application/atom+xml", "href": absolute(f"/{lang}/feed.atom")})
    SubElement(feed, "link", {"rel": "alternate", "type": "text/html", "href": absolute(f"/{lang}/")})
    SubElement(SubElement(feed, "author"), "name").text = title
    chapters = sorted(book.chapters[lang], key=lambda chapter: (last_change(chapter), -chapter.number), reverse=True)
    SubElement(feed, "updated").text = _moment(last_change(chapters[0]) if chapters else date(1970, 1, 1))
    for chapter in chapters:
        _entry(feed, chapter, absolute)
    return _XML + ElementTree.tostring(feed, encoding="unicode")


def _entry(feed: Element, chapter: Chapter, absolute: Absolute) -> None:
    entry = SubElement(feed, "entry")
    SubElement(entry, "id").text = _urn(chapter.path)
    SubElement(entry, "title").text = chapter.title
    SubElement(entry, "link", {"rel": "alternate", "type": "text/html", "href": absolute(chapter.path)})
    SubElement(entry, "updated").text = _moment(last_change(chapter))
    SubElement(entry, "summary").text = chapter.summary
    for tag in chapter.tags:
        SubElement(entry, "category", {"term": tag.id, "label": tag.name})


def last_change(chapter: Chapter) -> date:
    """The day that the chapter's head tells; Atom demands one, so without it the day when its file was written."""
    return chapter.updated or datetime.fromtimestamp(chapter.file.stat().st_mtime, UTC).date()


def _moment(day: date) -> str:
    return f"{day.isoformat()}T00:00:00Z"


def _urn(path: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"samestep:{path}").urn


def sitemap(places: Iterable[Place], absolute: Absolute) -> str:
    """Every page in every language, each with its twins in the other ones."""
    root = Element(
        "urlset",
        {"xmlns": "http://www.sitemaps.org/schemas/sitemap/0.9", "xmlns:xhtml": "http://www.w3.org/1999/xhtml"},
    )
    for place in places:
        for path in place.paths.values():
            url = SubElement(root, "url")
            SubElement(url, "loc").text = absolute(path)
            if place.updated:
                SubElement(url, "lastmod").text = place.updated.isoformat()
            for lang, twin in place.paths.items():
                link = {"rel": "alternate", "hreflang": lang, "href": absolute(twin)}
                SubElement(url, "xhtml:link", link)
    return _XML + ElementTree.tostring(root, encoding="unicode")


def places(book: Book, calculators: Iterable[str]) -> Iterator[Place]:
    """Every page worth finding: not searches, and no panel in one of its countless states."""

    def everywhere(rest: str) -> Place:
        return Place({lang: f"/{lang}/{rest}" for lang in LANGUAGES})

    yield everywhere("")
    by_slug: dict[str, dict[str, Chapter]] = {}
    for lang in LANGUAGES:
        for chapter in book.chapters[lang]:
            by_slug.setdefault(chapter.slug, {})[lang] = chapter
    for twins in by_slug.values():
        days = [chapter.updated for chapter in twins.values() if chapter.updated]
        yield Place({lang: chapter.path for lang, chapter in twins.items()}, max(days, default=None))
    yield from map(
        everywhere, ("start", "glossary", "sources", "book", "calculators", "experiments", "conformance", "api")
    )
    yield from (everywhere(f"calculators/{name}") for name in calculators)
    yield from (everywhere(f"experiments/{name}") for name in book.catalogue.plans.experiment)
    tags = {lang: [tag.id for family in book.families(lang).values() for tag, _ in family] for lang in LANGUAGES}
    for one in dict.fromkeys(name for lang in LANGUAGES for name in tags[lang]):
        yield Place({lang: f"/{lang}/tags/{one}" for lang in LANGUAGES if one in tags[lang]})


def llms(book: Book, calculators: Mapping[str, tuple[str, str]], absolute: Absolute) -> str:
    """What a language model should know first, as Markdown. `calculators` gives each one's title and summary."""
    lines = [
        "# SameStep",
        "",
        f"> {_NAMES['en'][1]} An interactive wiki, in Chinese and English, on gradient scaling and parallel"
        " correctness: what happens to one optimizer update when training moves from one device to many.",
        "",
        "Every calculator is a pure function with an address: GET /api/NAME?field=value answers JSON (format=csv: CSV),"
        " POST /api/NAME takes the general case. Numbers in the chapters are recomputed by these calculators or come"
        f" from published experiments. The API is described in {absolute('/openapi.json')}.",
    ]
    for lang, heading in (("en", "Chapters"), ("zh", "章节（中文）")):
        lines += ["", f"## {heading}", ""]
        lines += [f"- [{one.title}]({absolute(one.path)}): {one.summary}" for one in book.chapters[lang]]
    lines += ["", "## Calculators", ""]
    for name, (title, summary) in calculators.items():
        lines.append(f"- [{title}]({absolute(f'/en/calculators/{name}')}): {summary} JSON: {absolute(f'/api/{name}')}")
    lines += ["", "## Experiments", ""]
    for name, title in book.experiments("en").items():
        lines.append(f"- [{title}]({absolute(f'/en/experiments/{name}')})")
    lines += ["", "## Optional", ""]
    for rest, title in (
        ("start", "From a symptom to an instrument"),
        ("conformance", "What frameworks divide by"),
        ("glossary", "Glossary"),
        ("sources", "All sources"),
        ("book", "The whole book on one page"),
    ):
        lines.append(f"- [{title}]({absolute(f'/en/{rest}')})")
    return "\n".join(lines) + "\n"
