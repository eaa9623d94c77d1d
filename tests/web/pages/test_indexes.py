"""The pages over the whole book: glossary, sources, tags, the printable book; feed, sitemap, llms.txt."""

import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from starlette.testclient import TestClient

from samestep.app.book import feeds
from samestep.app.book.book_page import Binding
from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import load_book
from samestep.app.book.head import Source
from samestep.app.book.sources import works
from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from samestep.app.settings import Settings, SettingsError
from tests.conftest import BASE
from tests.kit import Element, by_id, text_of, the_book, tree

BOOK = the_book()
TERMS = BOOK.catalogue.glossary.term
TAGS = [(lang, tag) for lang in LANGUAGES for family in BOOK.families(lang).values() for tag, _ in family]
PAGES = [f"/{lang}/{name}" for lang in LANGUAGES for name in ("glossary", "sources", "book", "tags/advanced")]
ATOM = "{http://www.w3.org/2005/Atom}"
MAP = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
TWIN = "{http://www.w3.org/1999/xhtml}link"

each_language = pytest.mark.parametrize("lang", LANGUAGES)
each_page = pytest.mark.parametrize("path", PAGES)


class Trees:
    """Pages as trees, each fetched once."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self._trees: dict[str, Element] = {}
        self._ids: dict[str, Counter[str]] = {}

    def tree(self, path: str) -> Element:
        if path not in self._trees:
            answer = self._client.get(path)
            assert answer.status_code == 200, path
            self._trees[path] = tree(answer.text)
        return self._trees[path]

    def ids(self, path: str) -> Counter[str]:
        """How often each id stands on a page."""
        if path not in self._ids:
            self._ids[path] = Counter(element.get("id") for element in self.tree(path).iter() if element.get("id"))
        return self._ids[path]


@pytest.fixture(scope="module")
def trees(client: TestClient) -> Trees:
    return Trees(client)


def having(tree: Element, tag: str, name: str) -> list[Element]:
    return [element for element in tree.iter(tag) if name in (element.get("class") or "").split()]


def hrefs(tree: Element) -> list[str]:
    return [link.get("href", "") for link in tree.iter("a")]


# ---- every page; that its ids, headings and links are sound is known of all pages (tests/web/test_html.py)


@each_page
def test_the_footer_leads_to_the_indexes_and_the_head_to_the_feed(trees: Trees, path: str) -> None:
    lang = path.split("/")[1]
    tree = trees.tree(path)
    (foot,) = having(tree, "footer", "site-foot")
    assert {f"/{lang}/{name}" for name in ("glossary", "sources", "book", "feed.atom")} <= set(hrefs(foot))
    (feed,) = [link for link in tree.iter("link") if link.get("type") == "application/atom+xml"]
    assert (feed.get("rel"), feed.get("href")) == ("alternate", f"/{lang}/feed.atom")


def test_the_links_of_every_page_stay_below_the_root_path(below: TestClient) -> None:
    for path in (*PAGES, "/zh/parallel-correctness"):
        text = below.get(f"/wiki{path}").text
        inside: list[str] = re.findall(r'(?:href|src)="(/[^"]*)"', text)
        assert inside
        assert [address for address in inside if not address.startswith("/wiki/")] == []


# ---- glossary


def test_the_glossary_fixes_forty_terms_and_the_books_symbols() -> None:
    assert len(TERMS) >= 40
    symbols = {symbol: name for name, term in TERMS.items() for symbol in term.symbols}
    assert {name: symbols[name] for name in ("\\tau", "c", "P", "K", "N")} == {
        "\\tau": "temperature",
        "c": "threshold",
        "P": "replica",
        "K": "microstep",
        "N": "global-count",
    }


@each_language
def test_every_term_stands_in_the_glossary_with_both_names_and_its_definition(trees: Trees, lang: str) -> None:
    tree = trees.tree(f"/{lang}/glossary")
    for identifier, term in TERMS.items():
        entry = by_id(tree, identifier)
        name = text_of(entry.findall("dt")[0])
        assert term.zh in name
        assert term.en in name
        assert term.definition[lang] in text_of(entry)
        assert len(list(entry.findall("dt")[0].iter("math"))) == len(term.symbols)


@each_language
def test_a_term_leads_to_its_derivation_and_to_every_chapter_that_uses_it(trees: Trees, lang: str) -> None:
    tree = trees.tree(f"/{lang}/glossary")
    for identifier, term in TERMS.items():
        links = hrefs(by_id(tree, identifier))
        slug = term.derived.partition("#")[0]
        assert (f"/{lang}/{term.derived}" in links) == (BOOK.chapter(lang, slug) is not None)
        users = [chapter for chapter in BOOK.chapters[lang] if identifier in chapter.document.terms]
        assert links[-len(users) :] == [f"{user.path}#term-{identifier}" for user in users] or not users


@each_language
def test_most_terms_are_met_in_some_chapter(lang: str) -> None:
    met = {name for chapter in BOOK.chapters[lang] for name in chapter.document.terms}
    assert len(met) >= 0.8 * len(TERMS)


@pytest.mark.parametrize("chapter", [c for lang in LANGUAGES for c in BOOK.chapters[lang]], ids=lambda c: c.path)
def test_a_chapter_links_each_term_once_with_the_glossarys_words(trees: Trees, chapter: Chapter) -> None:
    links = having(trees.tree(chapter.path), "a", "term")
    assert [str(link.get("id")).removeprefix("term-") for link in links] == list(chapter.document.terms)
    for link, identifier in zip(links, chapter.document.terms, strict=True):
        assert link.get("href") == f"/{chapter.lang}/glossary#{identifier}"
        assert link.get("aria-description") == TERMS[identifier].definition[chapter.lang]


# ---- sources


@each_language
def test_every_source_of_every_chapter_is_in_the_list_once_and_leads_back(trees: Trees, lang: str) -> None:
    path = f"/{lang}/sources"
    back = Counter(href for href in hrefs(trees.tree(path)) if "#source-" in href)
    expected = [f"{one.path}#source-{source.id}" for one in BOOK.chapters[lang] for source in one.sources]
    assert back == Counter(expected)
    addresses = [link.get("href") for link in trees.tree(path).iter("a") if link.get("rel") == "external"]
    assert len(addresses) == len(set(addresses))
    assert set(addresses) == {source.url for one in BOOK.chapters[lang] for source in one.sources if source.url}


def test_both_languages_list_the_same_works_under_the_same_ids() -> None:
    zh, en = ([(work.id, work.source.url) for work in works(BOOK.chapters[lang])] for lang in LANGUAGES)
    assert sorted(zh) == sorted(en)
    assert len({name for name, _ in zh}) == len(zh)


def test_one_work_under_two_ids_is_one_and_two_works_under_one_id_are_two() -> None:
    first, second, third = (_cited(slug, sources) for slug, sources in (
        ("a", [Source(id="li", title="DDP", authors="Li et al.", year=2020, url="https://x.org/1")]),
        ("b", [Source(id="ddp", title="DDP", authors="Li, Zhao, Varma", year=2020, url="https://x.org/1", note="n")]),
        ("c", [Source(id="li", title="Another", url="https://x.org/2"), Source(id="f", title="A file", version="1")]),
    ))  # fmt: skip
    listed = works([first, second, third])
    assert [(work.id, work.source.title) for work in listed] == [("li", "DDP"), ("f", "A file"), ("c-li", "Another")]
    assert [(cited.chapter.slug, cited.id, cited.note) for cited in listed[0].citations] == [
        ("a", "li", ""),
        ("b", "ddp", "n"),
    ]
    assert listed[0].source.authors == "Li, Zhao, Varma"


def _cited(slug: str, sources: list[Source]) -> Chapter:
    model = BOOK.chapters["en"][0]
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    return Chapter(**(fields | {"slug": slug, "sources": tuple(sources)}))


# ---- tags


@pytest.mark.parametrize(("lang", "tag"), TAGS, ids=lambda value: value if isinstance(value, str) else value.id)
def test_a_tag_lists_its_chapters_and_no_other(trees: Trees, lang: str, tag: object) -> None:
    found = next(one for _, one in TAGS if one == tag)
    tree = trees.tree(f"/{lang}/tags/{found.id}")
    listed = [link.get("href") for entry in having(tree, "li", "entry") for link in entry.iter("a")]
    chapters = [href for href in listed if "/tags/" not in str(href)]
    assert chapters == [one.path for one in BOOK.tagged(found, lang)] != []
    (current,) = [link for link in tree.iter("a") if link.get("aria-current") == "page"]
    assert current.get("href") == f"/{lang}/tags/{found.id}"


@each_language
def test_shelf_and_chapters_link_to_their_tags(trees: Trees, lang: str) -> None:
    every = {f"/{lang}/tags/{tag.id}" for one, tag in TAGS if one == lang}
    for path, expected in [(f"/{lang}/", every)] + [
        (one.path, {f"/{lang}/tags/{tag.id}" for tag in one.tags}) for one in BOOK.chapters[lang]
    ]:
        assert {link.get("href") for link in trees.tree(path).iter("a") if link.get("rel") == "tag"} == expected


def test_the_filters_say_how_many_chapters_a_tag_has(trees: Trees) -> None:
    (filters,) = having(trees.tree("/en/"), "nav", "filters")
    shown = {text_of(link) for link in filters.iter("a")}
    assert shown == {f"{tag.name} {len(BOOK.tagged(tag, 'en'))}" for lang, tag in TAGS if lang == "en"}


@pytest.mark.parametrize("name", ["nothing", "A", "%2e%2e"])
def test_an_unknown_tag_is_no_page(client: TestClient, name: str) -> None:
    assert client.get(f"/zh/tags/{name}").status_code == 404


# ---- the whole book


@each_language
def test_the_book_holds_every_chapter_and_section_in_order(trees: Trees, lang: str) -> None:
    tree = trees.tree(f"/{lang}/book")
    chapters = having(tree, "section", "book-chapter")
    assert [one.get("id") for one in chapters] == [one.slug for one in BOOK.chapters[lang]]
    for section, chapter in zip(chapters, BOOK.chapters[lang], strict=True):
        (title,) = section.iter("h2")
        assert text_of(title) == chapter.title
        headings = [h.get("id") for h in section.iter("h3") if not (h.get("class") or "").startswith("panel")]
        assert headings == [f"{chapter.slug}.{one.id}" for one in chapter.sections]
        assert {f"{chapter.slug}.source-{one.id}" for one in chapter.sources} <= set(trees.ids(f"/{lang}/book"))


@each_language
def test_in_the_book_chapters_link_to_places_on_the_page(trees: Trees, lang: str) -> None:
    paths = {chapter.path for chapter in BOOK.chapters[lang]}
    links = hrefs(by_id(trees.tree(f"/{lang}/book"), "main"))
    assert [href for href in links if href.partition("#")[0] in paths] == []
    inside = [href for href in links if href.startswith("#") and "." in href]
    assert len(inside) > 100


@each_language
def test_the_book_shows_every_panels_results_without_a_control(trees: Trees, lang: str) -> None:
    main = by_id(trees.tree(f"/{lang}/book"), "main")
    assert [tag for tag in ("form", "input", "select", "textarea", "button") if list(main.iter(tag))] == []
    panels = having(main, "article", "panel-still")
    assert [panel.get("id") for panel in panels] == [
        f"{one.slug}.{ref.id}" for one in BOOK.chapters[lang] for ref in one.calculators
    ]
    assert all(having(panel, "dl", "panel-state") for panel in panels)
    assert all(next(panel.iter("data")).get("data-value") for panel in panels)


@each_language
def test_what_the_book_refers_to_exists(trees: Trees, lang: str) -> None:
    path = f"/{lang}/book"
    ids = set(trees.ids(path))
    for element in trees.tree(path).iter():
        for name in ("aria-labelledby", "aria-describedby", "for", "headers"):
            assert set((element.get(name) or "").split()) <= ids, (element.tag, element.attrib)
        for value in element.attrib.values():
            assert set(re.findall(r"^url\(#(.+)\)$", str(value))) <= ids, value


@each_language
def test_regions_of_the_book_have_names_of_their_own(trees: Trees, lang: str) -> None:
    main = by_id(trees.tree(f"/{lang}/book"), "main")
    regions = [e for e in main.iter() if e.get("role") == "region" or e.tag in ("section", "nav")]
    named = [name for region in regions if (name := region.get("aria-label"))]
    assert len(named) > 20
    assert [name for name, count in Counter(named).items() if count > 1] == []
    chapters = [chapter.title for chapter in BOOK.chapters[lang]]
    assert all(any(name.startswith(title) for title in chapters) for name in named[1:])


BINDING = Binding("here", "A “B” & C", "/wiki/en/", frozenset({"here", "there"}))


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ('<h2 id="sec-a"><a href="#sec-a">1</a></h2>', '<h3 id="here.sec-a"><a href="#here.sec-a">1</a></h3>'),
        ("<hgroup><header><hr>", "<hgroup><header><hr>"),
        ('<a href="/wiki/en/there#x">', '<a href="#there.x">'),
        ('<a href="/wiki/en/there">', '<a href="#there">'),
        ('<a href="/wiki/en/there?p.a=1#x">', '<a href="/wiki/en/there?p.a=1#x">'),
        ('<a href="/wiki/zh/there">', '<a href="/wiki/zh/there">'),
        ('<a href="/wiki/en/glossary#x">', '<a href="/wiki/en/glossary#x">'),
        ('<a href="https://x.org/#y">', '<a href="https://x.org/#y">'),
        ('<svg aria-labelledby="a b">', '<svg aria-labelledby="here.a here.b">'),
        ('<path marker-end="url(#tip)"/>', '<path marker-end="url(#here.tip)"/>'),
        ('<mo form="prefix">&#40; id="x"</mo>', '<mo form="prefix">&#40; id="x"</mo>'),
        ('<section aria-label="T">', '<section aria-label="A “B” &amp; C · T">'),
        (
            '<div class="t" role="region" aria-label="T">',
            '<div class="t" role="region" aria-label="A “B” &amp; C · T">',
        ),
        ('<span aria-label="T">', '<span aria-label="T">'),
        (
            '<section aria-label="T"><section aria-label="T">',
            '<section aria-label="A “B” &amp; C · T"><section aria-label="A “B” &amp; C · T (2)">',
        ),
    ],
)
def test_a_chapters_html_is_bound_into_the_book(given: str, bound: str) -> None:
    assert BINDING.bound(given) == bound


# ---- feed, sitemap, llms.txt


def feed_of(client: TestClient, path: str) -> ElementTree.Element:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    return ElementTree.fromstring(answer.content)


@each_language
def test_the_feed_is_atom_with_every_chapter(client: TestClient, lang: str) -> None:
    feed = feed_of(client, f"/{lang}/feed.atom")
    assert feed.tag == f"{ATOM}feed"
    for element in (feed, *feed.findall(f"{ATOM}entry")):
        for name in ("id", "title", "updated"):
            (found,) = element.findall(f"{ATOM}{name}")
            assert found.text
        moment = element.findtext(f"{ATOM}updated") or ""
        assert datetime.fromisoformat(moment).tzinfo is not None
        assert (element.findtext(f"{ATOM}id") or "").startswith("urn:uuid:")
    assert feed.findtext(f"{ATOM}author/{ATOM}name")
    (own,) = [link for link in feed.findall(f"{ATOM}link") if link.get("rel") == "self"]
    assert own.get("href") == f"http://testserver/{lang}/feed.atom"
    links = [entry.find(f"{ATOM}link") for entry in feed.findall(f"{ATOM}entry")]
    targets = [link.get("href", "") for link in links if link is not None]
    assert sorted(targets) == sorted(f"http://testserver{one.path}" for one in BOOK.chapters[lang])
    ids = [element.text for element in feed.iter(f"{ATOM}id")]
    assert len(set(ids)) == len(ids)


def test_the_feed_names_the_latest_change_first_and_ids_outlive_a_move(client: TestClient, below: TestClient) -> None:
    here, there = feed_of(client, "/en/feed.atom"), feed_of(below, "/wiki/en/feed.atom")
    moments = [entry.findtext(f"{ATOM}updated") or "" for entry in here.findall(f"{ATOM}entry")]
    assert moments == sorted(moments, reverse=True)
    assert here.findtext(f"{ATOM}updated") == moments[0]
    assert [e.text for e in here.iter(f"{ATOM}id")] == [e.text for e in there.iter(f"{ATOM}id")]


def test_a_chapters_head_may_tell_the_day_of_its_last_change(tmp_path: Path) -> None:
    head = '+++\ntitle = "T"\nsummary = "S"\npart = "A"\ntopic = "t"\nlevel = "l"\nkind = "k"\n{}+++\n\nText.\n'
    tags = "".join(f'[{name}]\nzh = "甲"\nen = "a"\n' for name in ("part.A", "topic.t", "level.l", "kind.k"))
    (tmp_path / "tags.toml").write_text(tags)
    for lang in LANGUAGES:
        (tmp_path / lang).mkdir()
        (tmp_path / lang / "10-dated.md").write_text(head.format("updated = 2031-05-06\n"))
        (tmp_path / lang / "20-undated.md").write_text(head.format(""))
    book = load_book(tmp_path, calculators={})
    dated, undated = book.chapters["en"]
    assert str(feeds.last_change(dated)) == "2031-05-06"
    assert undated.updated is None
    assert feeds.last_change(undated).year < 2031
    changed = [place for place in feeds.places(book, []) if place.updated]
    assert [place.paths for place in changed] == [{"zh": "/zh/dated", "en": "/en/dated"}]


@pytest.fixture(scope="module")
def urls(below: TestClient) -> list[ElementTree.Element]:
    answer = below.get("/wiki/sitemap.xml")
    assert answer.headers["content-type"] == "application/xml; charset=utf-8"
    root = ElementTree.fromstring(answer.content)
    assert root.tag == f"{MAP}urlset"
    return root.findall(f"{MAP}url")


def test_every_address_of_the_sitemap_answers(below: TestClient, urls: list[ElementTree.Element]) -> None:
    places = [url.findtext(f"{MAP}loc") or "" for url in urls]
    assert len(set(places)) == len(places)
    for place in places:
        assert place.startswith(f"{BASE}/wiki/")
        assert below.get(place.removeprefix(BASE)).status_code == 200, place


def test_the_sitemap_holds_every_page_and_its_twins(urls: list[ElementTree.Element]) -> None:
    places = {(url.findtext(f"{MAP}loc") or "").removeprefix(f"{BASE}/wiki"): url for url in urls}
    names = ("", "glossary", "sources", "book", "api", "calculators", "experiments")
    expected = {f"/{lang}/{name}" for lang in LANGUAGES for name in names}
    expected |= {f"/{lang}/calculators/{name}" for lang in LANGUAGES for name in registry()}
    expected |= {f"/{lang}/tags/{tag.id}" for lang, tag in TAGS}
    expected |= {chapter.path for lang in LANGUAGES for chapter in BOOK.chapters[lang]}
    assert expected <= set(places)
    for path, url in places.items():
        twins = {link.get("hreflang"): link.get("href", "") for link in url.findall(TWIN)}
        assert twins == {lang: f"{BASE}/wiki/{lang}{path[3:]}" for lang in LANGUAGES}


def test_what_language_models_are_told_is_true(below: TestClient) -> None:
    answer = below.get("/wiki/llms.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.text.splitlines()
    assert lines[0] == "# SameStep"
    assert lines[2].startswith("> ")
    addresses = re.findall(rf"{re.escape(BASE)}[^\s).]+(?:\.json)?", answer.text)
    chapters = {f"{BASE}/wiki{one.path}" for lang in LANGUAGES for one in BOOK.chapters[lang]}
    assert chapters | {f"{BASE}/wiki/api/{name}" for name in registry()} <= set(addresses)
    for address in addresses:
        assert below.get(address.removeprefix(BASE)).status_code == 200, address


FILES = ["/en/feed.atom", "/sitemap.xml", "/llms.txt"]


@pytest.mark.parametrize("path", FILES)
def test_without_a_base_addresses_are_those_of_the_host_that_was_asked(client: TestClient, path: str) -> None:
    for host in ("a.example.org", "b.example.org:8080", "[::1]:8000"):
        text = client.get(path, headers={"host": host}).text
        assert f"http://{host}/en/" in text
        assert "example.net" not in text


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("host", ["a b", 'x"><script>', "x.org/evil", "x.org:port", ""])
def test_a_host_that_is_none_is_refused(client: TestClient, path: str, host: str) -> None:
    assert client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("path", FILES)
def test_a_base_of_its_own_stands_for_every_host(below: TestClient, path: str) -> None:
    for _ in range(2):
        text = below.get(f"/wiki{path}", headers={"host": "other.example.net"}).text
        assert f"{BASE}/wiki/en/" in text
        assert "other.example.net" not in text


@pytest.mark.parametrize("path", FILES)
def test_a_reader_that_holds_the_file_is_told_so(client: TestClient, path: str) -> None:
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"if-none-match": tag}).status_code == 304


# ---- settings


@pytest.mark.parametrize("address", ["example.org", "https://example.org/wiki", "ftp://x.org", "https://x.org "])
def test_a_base_that_is_no_scheme_and_host_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="SAMESTEP_BASE_URL must be a scheme and a host"):
        Settings(base_url=address)


@pytest.mark.parametrize(
    "address", ["/new", "javascript:x", "https://x.org/{title}", 'https://x.org/"', "https://x.org/a b"]
)
def test_a_place_for_discussions_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="SAMESTEP_DISCUSS_URL must be an address"):
        Settings(discuss_url=address)


def test_settings_pass_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROOT_PATH", "RELOAD", "BASE_URL", "DISCUSS_URL", "AHEAD"):
        monkeypatch.delenv(f"SAMESTEP_{name}", raising=False)
    assert Settings.from_environment() == Settings()
    settings = Settings("/wiki", True, BASE, "https://x.org/{lang}/{slug}/{section}", True)
    for name in ("ROOT_PATH", "RELOAD", "BASE_URL", "DISCUSS_URL", "AHEAD"):
        monkeypatch.setenv(f"SAMESTEP_{name}", "")
    settings.to_environment()
    assert Settings.from_environment() == settings
    assert settings.discuss("zh", "a", "sec-b") == "https://x.org/zh/a/sec-b"


@each_language
def test_every_section_can_be_discussed_where_the_settings_say(below: TestClient, lang: str) -> None:
    chapter = BOOK.chapters[lang][0]
    text = below.get(f"/wiki{chapter.path}").text
    links = re.findall(r'<p class="discuss"><a href="([^"]+)" rel="external"', text)
    assert links == [
        f"https://forum.example.org/new?lang={lang}&amp;about={chapter.slug}%23{section.id}"
        for section in chapter.sections
    ]


def test_without_a_setting_no_section_has_a_link_and_the_chapter_says_how_else(client: TestClient) -> None:
    page = client.get(BOOK.chapters["en"][0].path).text
    assert 'class="discuss"' not in page
    assert "This site has no address for discussions" in page
