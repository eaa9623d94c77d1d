"""Whole pages: which language, which address, what a chapter page carries, what search and errors say."""

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from samestep.app.book.chapter import Chapter
from samestep.app.book.chapters import load_book
from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from samestep.app.evidence.bags import Library
from samestep.app.instruments.start import load_guide
from samestep.app.main import create_app
from samestep.app.paths import folder
from samestep.app.settings import Settings
from samestep.app.web.site import Site
from tests.kit import CONTENT, Element, lay_out_first_chapter, text_of, the_book, tree

BOOK = the_book()
CHAPTERS = [chapter for lang in LANGUAGES for chapter in BOOK.chapters[lang]]
CALCULATORS = sorted(registry())
CHINESE = re.compile("[\u4e00-\u9fff]")

each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=[f"{c.lang}-{c.slug}" for c in CHAPTERS])
each_language = pytest.mark.parametrize("lang", LANGUAGES)


def having(page: Element, tag: str, **attributes: str) -> list[Element]:
    """The elements of that tag with these attributes; `_` in a name stands for `-`, `class_` for a class."""
    wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return [
        element
        for element in page.iter(tag)
        if all(value in (element.get(name) or "").split() for name, value in wanted.items())
    ]


def only(found: list[Element]) -> Element:
    assert len(found) == 1, found
    return found[0]


# ---- languages and addresses


@pytest.mark.parametrize(
    ("accepted", "lang"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("zh-Hant-TW", "zh"),
        ("ZH", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("en;q=0.3, zh;q=0.8", "zh"),
        ("fr;q=1, zh;q=0.2, en;q=0.1", "zh"),
        ("zh;q=0, en;q=0.1", "en"),
        ("zh;q=0", "en"),
        ("zh ; q=0.4 , en ; q=0.5", "en"),
        ("fr-CH, de", "en"),
        ("*", "en"),
        ("", "en"),
        ("zh;q=much, en;q=0.1", "en"),
        (";;,,=", "en"),
    ],
)
def test_the_root_leads_to_the_language_that_the_browser_likes_best(
    client: TestClient, accepted: str, lang: str
) -> None:
    answer = client.get("/", headers={"accept-language": accepted})
    assert answer.headers["location"] == f"/{lang}/"
    assert answer.status_code in (302, 307)  # never for good: the next reader may like another language
    assert "accept-language" in answer.headers["vary"].lower()


@each_language
def test_a_shelf_without_its_slash_leads_to_the_shelf(client: TestClient, lang: str) -> None:
    answer = client.get(f"/{lang}")
    assert (answer.status_code, answer.headers["location"]) == (308, f"/{lang}/")


@pytest.mark.parametrize("path", ["/zh/parallel-correctness/", "/en/calculators/", "/en/calculators/info_nce/"])
def test_a_slash_too_many_leads_to_the_page_with_its_state(client: TestClient, path: str) -> None:
    answer = client.get(f"{path}?replica_ledger.a=5")
    assert answer.status_code in (301, 302, 307, 308)
    place = answer.headers["location"].removeprefix(str(client.base_url))
    assert place == f"{path.rstrip('/')}?replica_ledger.a=5"


@pytest.mark.parametrize(
    "path",
    [
        "/zh/",
        "/en/calculators",
        "/en/api",
        "/zh/search?q=%E6%A2%AF%E5%BA%A6",
        "/en/search?q=%22%3E%3Cb%3E%26amp%3B",
        "/zh/parallel-correctness",
        "/en/parallel-correctness?replica_ledger.a=5&info_nce.tau=0.5",
        "/zh/calculators/replica_ledger?a=5&b=1%2F3",
        "/en/calculators/clip_ownership?gradients=1%3B2&scheme=per_rank",
        "/zh/parallel-correctness?replica_ledger.a=-1",
        "/en/calculators/info_nce?tau=0",
    ],
)
def test_the_other_language_is_the_same_page_in_the_same_state(client: TestClient, path: str) -> None:
    page = tree(client.get(path).text)
    own = path[1:3]
    foreign = "en" if own == "zh" else "zh"
    expected = f"/{foreign}{path[3:]}"
    link = only([a for a in having(page, "a", hreflang=foreign) if a.get("href", "").startswith(f"/{foreign}")])
    assert link.get("href") == expected
    assert only(having(page, "link", rel="alternate", hreflang=foreign)).get("href") == expected
    assert only(having(page, "link", rel="alternate", hreflang=own)).get("href", "").startswith(path.split("?")[0])
    there = client.get(expected)
    assert there.status_code == client.get(path).status_code
    assert tree(there.text).get("lang") == foreign


def test_an_old_address_leads_to_the_new_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chapter = lay_out_first_chapter(tmp_path / "content")
    (tmp_path / "content" / "redirects.toml").write_text(f'[redirect]\nscaling-of-old = "{chapter.stem[3:]}"\n')
    read_from(monkeypatch, tmp_path / "content")
    with TestClient(create_app(Settings(root_path="/wiki", reload=True)), follow_redirects=False) as client:
        answer = client.get("/en/scaling-of-old")
        assert (answer.status_code, answer.headers["location"]) == (308, "/wiki/en/gradient-scaling")


def read_from(monkeypatch: pytest.MonkeyPatch, content: Path) -> None:
    """Let the wiki that is made next read its content there."""
    monkeypatch.setattr("samestep.app.web.site.folder", lambda name: content if name == "content" else folder(name))
    monkeypatch.setattr("samestep.app.web.site.load_book", lambda **options: load_book(content, **options))


# ---- shelf and chapters


@each_language
def test_the_shelf_lists_every_chapter_in_order_and_planned_ones_without_a_link(client: TestClient, lang: str) -> None:
    page = tree(client.get(f"/{lang}/").text)
    entries = having(page, "li", class_="entry")
    order = [int(text_of(only(having(entry, "span", class_="entry-number")))) for entry in entries]
    assert order == sorted(order)
    links = {a.get("href") for entry in entries for a in entry.iter("a") if a.get("rel") != "tag"}
    assert links == {chapter.path for chapter in BOOK.chapters[lang]}
    planned = [entry for entry in entries if "planned" in entry.get("class", "").split()]
    assert len(planned) == len(BOOK.planned[lang])
    for entry, plan in zip(planned, sorted(BOOK.planned[lang], key=lambda plan: plan.number), strict=True):
        assert plan.title in text_of(entry)
        assert ("计划中" if lang == "zh" else "planned") in text_of(entry)
        assert client.get(f"/{lang}/{plan.slug}").status_code == 404


@each_chapter
def test_a_chapter_says_where_it_stands(client: TestClient, chapter: Chapter) -> None:
    page = tree(client.get(chapter.path).text)
    assert text_of(only(list(page.iter("h1")))) == chapter.title
    assert text_of(page.find("./head/title")).startswith(chapter.title)
    assert only([m for m in page.iter("meta") if m.get("name") == "description"]).get("content") == chapter.summary
    crumbs = only(having(page, "nav", class_="breadcrumbs"))
    part = next(part for part in BOOK.parts(chapter.lang) if part.id == chapter.part)
    steps = [(text_of(step), (step.find(".//a") is not None)) for step in crumbs.iter("li")]
    assert steps[-2:] == [(part.title, True), (chapter.title, False)]
    assert text_of(only(having(crumbs, "span", aria_current="page"))) == chapter.title


@each_chapter
def test_a_chapter_shows_its_tags_and_its_reading_time(client: TestClient, chapter: Chapter) -> None:
    tags = only(having(tree(client.get(chapter.path).text), "ul", class_="tags"))
    shown = [text_of(item) for item in tags.iter("li")]
    assert shown[:3] == [tag.name for tag in chapter.tags]
    assert [tag.family for tag in chapter.tags] == ["topic", "level", "kind"]
    minutes = re.search(r"\d+", shown[3])
    assert minutes is not None
    assert int(minutes[0]) == chapter.minutes >= 1


@each_chapter
def test_the_contents_name_every_section_in_order(client: TestClient, chapter: Chapter) -> None:
    page = tree(client.get(chapter.path).text)
    expected = [f"#{inner.id}" for section in chapter.sections for inner in (section, *section.children)]
    for contents in having(page, "nav", class_="contents"):
        links = [a.get("href") for a in contents.iter("a")]
        assert links == [*expected, "#sources", "#discuss"]
    assert having(page, "nav", class_="contents")


@each_chapter
def test_the_sources_are_counted_and_listed(client: TestClient, chapter: Chapter) -> None:
    page = tree(client.get(chapter.path).text)
    listed = only(having(page, "details", class_="sources"))
    items = list(listed.iter("li"))
    assert len(items) == len(chapter.sources) > 0
    counted = f"{len(items)} 项" if chapter.lang == "zh" else f"· {len(items)}"
    assert counted in text_of(listed.find("summary"))
    for item, source in zip(items, chapter.sources, strict=True):
        assert source.title in text_of(item)
        assert not source.url or only(list(item.iter("a"))).get("href") == source.url
    assert any(a.get("href") == "#sources" for a in only(having(page, "header", class_="chapter-head")).iter("a"))


@each_language
def test_previous_and_next_string_the_chapters_together(client: TestClient, lang: str) -> None:
    chain = [chapter.path for chapter in BOOK.chapters[lang]]
    for i, path in enumerate(chain):
        page = tree(client.get(path).text)
        for rel, neighbour in (("prev", chain[i - 1] if i else None), ("next", [*chain, None][i + 1])):
            for tag in ("link", "a"):
                found = [element.get("href") for element in having(page, tag, rel=rel)]
                assert found == ([neighbour] if neighbour else []), (path, tag, rel)


@each_chapter
def test_related_chapters_are_linked_or_shown_as_planned(client: TestClient, chapter: Chapter) -> None:
    if not chapter.related:
        return
    related = only(having(tree(client.get(chapter.path).text), "ul", class_="related"))
    planned = {plan.slug for plan in BOOK.planned[chapter.lang]}
    for item, slug in zip(related.iter("li"), chapter.related, strict=True):
        link = item.find("a")
        if slug in planned:
            assert link is None
            assert ("计划中" if chapter.lang == "zh" else "planned") in text_of(item)
        else:
            assert link is not None
            assert link.get("href") == f"/{chapter.lang}/{slug}"


def test_a_planned_chapter_named_in_the_text_is_no_link(client: TestClient) -> None:
    planned = [
        (chapter, mark)
        for chapter in CHAPTERS
        for mark in having(tree(client.get(chapter.path).text), "span", class_="planned-mark")
    ]
    for chapter, mark in planned:
        assert text_of(mark).strip("()（）") == ("计划中" if chapter.lang == "zh" else "planned")
    assert planned or not the_book().planned["en"]


def test_evidence_that_is_not_published_says_so_and_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("samestep.app.web.site.Library", lambda _: Library(tmp_path))
    client = TestClient(create_app(Settings()))
    carriers = [chapter for chapter in CHAPTERS if chapter.evidence]
    assert carriers
    for chapter in carriers:
        page = tree(client.get(chapter.path).text)
        for ref in chapter.evidence:
            block = text_of(only([section for section in page.iter("section") if section.get("id") == ref.id]))
            assert ("还没有发布" if chapter.lang == "zh" else "not published yet") in block
            assert f"samestep-lab run {ref.name}" in block


@each_chapter
def test_the_first_html_of_a_chapter_holds_every_panel_with_its_result(client: TestClient, chapter: Chapter) -> None:
    page = tree(client.get(chapter.path).text)
    forms = having(page, "form", class_="panel-form")
    assert [form.get("id") for form in forms] == [ref.id for ref in chapter.calculators]
    for ref in chapter.calculators:
        result = only([s for s in page.iter("section") if s.get("id") == f"{ref.id}-result"])
        assert result.get("data-result") == ref.name
        assert [e for e in result.iter() if e.get("data-value")]


# ---- calculators, the API page, small doors


@each_language
def test_the_list_of_calculators_leads_to_every_one(client: TestClient, lang: str) -> None:
    main = tree(client.get(f"/{lang}/calculators").text).find(".//main")
    assert main is not None
    hrefs = [a.get("href", "") for a in main.iter("a")]
    assert sorted(href for href in hrefs if "/calculators/" in href) == [
        f"/{lang}/calculators/{name}" for name in CALCULATORS
    ]


@each_language
def test_calculators_stand_under_the_question_that_first_leads_to_them(client: TestClient, lang: str) -> None:
    page = tree(client.get(f"/{lang}/calculators").text)
    groups = {
        text_of(only(list(section.iter("h2")))): [
            a.get("href", "").rsplit("/", 1)[1] for a in section.findall(".//h3/a")
        ]
        for section in page.iter("section")
    }
    guide = load_guide(CONTENT)
    asked = {name for names in groups.values() for name in names if name}
    assert asked == set(CALCULATORS)
    for symptom in guide.symptom:
        for name in groups.get(symptom[lang], []):
            first = next(s for s in guide.symptom if any(answer.calculator == name for answer in s.answer))
            assert first is symptom
    leading = {answer.calculator for symptom in guide.symptom for answer in symptom.answer}
    others = [name for name in CALCULATORS if name not in leading]
    assert not others or list(groups.values())[-1] == others


@each_language
@pytest.mark.parametrize("name", CALCULATORS)
def test_a_calculator_of_its_own_says_what_it_is_and_where_it_is_used(client: TestClient, name: str, lang: str) -> None:
    page = tree(client.get(f"/{lang}/calculators/{name}").text)
    carriers = [c.path for c in BOOK.chapters[lang] if name in {ref.name for ref in c.calculators}]
    links = [a.get("href") for a in page.iter("a")]
    assert carriers
    assert set(carriers) <= set(links)
    assert bool(CHINESE.search(text_of(only(list(page.iter("h1")))))) == (lang == "zh")


@each_language
def test_the_api_page_describes_every_door(client: TestClient, lang: str) -> None:
    page = tree(client.get(f"/{lang}/api").text)
    links = {a.get("href") for a in page.iter("a")}
    assert {"/openapi.json", *(f"/api/{name}" for name in CALCULATORS)} <= links
    for name, calculator in registry().items():
        assert set(calculator.query.model_fields) <= {text_of(code) for code in page.iter("code")}, name


def test_healthz_answers_ok(client: TestClient) -> None:
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_the_openapi_document_stays_at_its_address_and_loads_no_page_of_others(client: TestClient) -> None:
    assert client.get("/openapi.json").json()["openapi"].startswith("3.")
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


# ---- search


@pytest.mark.parametrize(
    ("lang", "q"), [("zh", "全局梯度"), ("zh", "all-reduce"), ("en", "denominator"), ("en", "裁剪")]
)
def test_search_finds_sections_and_marks_the_words(client: TestClient, lang: str, q: str) -> None:
    page = tree(client.get(f"/{lang}/search", params={"q": q}).text)
    hits = list(only(having(page, "ol", class_="hits")).iter("li"))
    assert hits
    assert any(list(hit.iter("mark")) for hit in hits)
    assert all(hit.find(".//a") is not None for hit in hits)
    assert only(having(page, "input", name="q")).get("value") == q
    answers = list(having(page, "section", class_="hit-answer"))
    assert f"{len(hits) + len(answers)}" in text_of(only(having(page, "p", role="status")))


def test_search_finds_a_formula_by_the_name_of_its_letter(client: TestClient) -> None:
    page = tree(client.get("/en/search?q=theta").text)
    assert list(only(having(page, "ol", class_="hits")).iter("li"))


@each_language
def test_search_covers_both_languages_with_the_readers_first(client: TestClient, lang: str) -> None:
    """“broadcast” stands in the chapters of both."""
    page = tree(client.get(f"/{lang}/search?q=broadcast").text)
    hits = list(only(having(page, "ol", class_="hits")).iter("li"))
    languages = [hit.get("lang") or lang for hit in hits]
    assert set(languages) == set(LANGUAGES)
    assert languages[0] == lang
    for hit, language in zip(hits, languages, strict=True):
        assert (hit.find(".//a").get("href") or "").startswith(f"/{language}/")  # type: ignore[union-attr]


@pytest.mark.parametrize(("lang", "words"), [("zh", "没有找到"), ("en", "Nothing found")])
def test_search_says_when_nothing_is_found(client: TestClient, lang: str, words: str) -> None:
    page = tree(client.get(f"/{lang}/search?q=xyzzyx").text)
    assert words in text_of(only(having(page, "p", role="status")))
    assert "xyzzyx" in text_of(only(having(page, "p", role="status")))


@pytest.mark.parametrize(
    "q", ["", " ", '"', "*", "a OR", "NEAR(", "%00", "\ud800".encode("utf-8", "surrogatepass"), "的" * 5000]
)
def test_no_question_breaks_search(client: TestClient, q: str | bytes) -> None:
    answer = client.get("/zh/search", params={"q": q.decode("latin-1") if isinstance(q, bytes) else q})
    assert answer.status_code == 200


# ---- what is not there


def is_missing(answer: Response, lang: str) -> None:
    assert answer.status_code == 404
    page = tree(answer.text)
    assert page.get("lang") == lang
    assert text_of(only(list(page.iter("h1")))) == ("没有这一页" if lang == "zh" else "There is no such page")
    assert [form for form in page.iter("form") if form.get("action") == f"/{lang}/search"]


@pytest.mark.parametrize("path", ["no-such-chapter", "calculators/no_such", "calculators/no_such/result", "a/b/c"])
@each_language
def test_a_missing_page_says_so_in_the_language_of_its_address(client: TestClient, lang: str, path: str) -> None:
    other = "en" if lang == "zh" else "zh"
    is_missing(client.get(f"/{lang}/{path}", headers={"accept-language": other}), lang)


@pytest.mark.parametrize(("path", "accepted", "lang"), [("/fr/", "zh-CN", "zh"), ("/nothing", "en-US", "en")])
def test_elsewhere_it_says_so_in_the_readers_language(client: TestClient, path: str, accepted: str, lang: str) -> None:
    answer = client.get(path, headers={"accept-language": accepted})
    is_missing(answer, lang)
    assert "accept-language" in answer.headers.get("vary", "").lower()


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/zh/"), ("DELETE", "/en/parallel-correctness"), ("PUT", "/zh/search")]
)
def test_a_request_of_the_wrong_kind_is_refused_in_the_readers_language(
    client: TestClient, method: str, path: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert {"GET", "HEAD"} <= set(re.split(r",\s*", answer.headers["allow"]))
    assert tree(answer.text).get("lang") == path[1:3]


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_door_says_which_requests_it_takes(client: TestClient, name: str) -> None:
    answer = client.put(f"/api/{name}")
    assert answer.status_code == 405
    assert {"GET", "POST"} <= set(re.split(r",\s*", answer.headers["allow"]))


@pytest.mark.parametrize("path", ["/api/no_such", "/s/000000000000/css/page.css", "/evidence/no_such/result.json"])
def test_what_is_missing_beside_the_pages_is_said_as_json(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["detail"]


# ---- an author at work


@pytest.fixture
def author(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[TestClient, Callable[[str, str], Any]]:
    """A wiki with --reload over a book of one chapter, and a way to replace a text in it."""
    file = lay_out_first_chapter(tmp_path / "content")
    read_from(monkeypatch, tmp_path / "content")

    def edit(old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return TestClient(create_app(Settings(reload=True)), raise_server_exceptions=False), edit


def test_with_reload_a_saved_chapter_shows_at_the_next_view(
    author: tuple[TestClient, Callable[[str, str], Any]],
) -> None:
    client, edit = author
    assert "A fresh title" not in client.get("/en/gradient-scaling").text
    title = next(chapter.title for chapter in CHAPTERS if chapter.path == "/en/gradient-scaling")
    edit(f'title = "{title}"', 'title = "A fresh title"')
    assert "A fresh title" in client.get("/en/gradient-scaling").text
    assert "A fresh title" in client.get("/en/").text


def test_with_reload_a_mistake_is_shown_with_its_place_until_it_is_put_right(
    author: tuple[TestClient, Callable[[str, str], Any]],
) -> None:
    client, edit = author
    edit("```{calculator} gradient_scaling", "```{calculator} gradient_scalding")
    answer = client.get("/en/gradient-scaling")
    assert answer.status_code == 500
    assert re.search(r"10-[a-z-]+\.md:\d+", answer.text)
    assert "gradient_scalding" in answer.text
    edit("```{calculator} gradient_scalding", "```{calculator} gradient_scaling")
    assert client.get("/en/gradient-scaling").status_code == 200


def test_a_long_page_that_many_ask_for_at_once_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def render(site: Site, template: str, context: Mapping[str, object]) -> str:
        made.append(template)
        if template == "book.html":
            time.sleep(0.5)  # so long that all others ask meanwhile
        return f"made {len(made)} times"

    application = create_app(Settings())
    monkeypatch.setattr(Site, "render", render)
    with TestClient(application) as client, ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda _: client.get("/en/book").text, range(20)))
    assert made.count("book.html") == 1
    assert set(answers) == {answers[0]}


@each_chapter
def test_a_chapter_says_its_place_in_the_series_its_day_and_at_the_end_where_to_discuss_it(
    client: TestClient, chapter: Chapter
) -> None:
    page = client.get(chapter.path).text
    place = BOOK.chapters[chapter.lang].index(chapter) + 1
    total = len(BOOK.chapters[chapter.lang])
    series = f"本系列第 {place} 篇，共 {total} 篇" if chapter.lang == "zh" else f"No. {place} of {total} in this series"
    assert series in page
    assert chapter.updated
    assert f'<time datetime="{chapter.updated}">' in page
    assert page.index('id="discuss"') > page.index('id="sources"')
    assert chapter.file.name in page[page.index('id="discuss"') :]


def test_where_discussions_have_an_address_the_end_of_a_chapter_links_it(below: TestClient) -> None:
    page = below.get("/wiki/en/parallel-correctness").text
    assert 'href="https://forum.example.org/new?lang=en&amp;about=parallel-correctness%23discuss"' in page


@pytest.mark.parametrize("name", ["audit_walkthrough", "clip_ownership", "conformance"])
def test_what_a_published_result_codes_is_said_in_words(client: TestClient, name: str) -> None:
    page = client.get(f"/zh/experiments/{name}").text
    values = re.findall(r'<data data-field="rows\.[^"]*" data-value="[^"]*" value="([^"]*)">([^<]*)</data>', page)
    code = r"[a-z]+_[a-z_]+|same|different|gradient|\[&#34;(?:skip|update)&#34;.*"
    coded = {value for value, _ in values if re.fullmatch(code, value)}
    assert coded
    assert [
        (value, words) for value, words in values if value in coded and not re.search("[\u4e00-\u9fff]", words)
    ] == []


def test_rows_of_several_precisions_are_not_all_said_to_have_one(client: TestClient) -> None:
    pages = [client.get(f"/en/experiments/{name}").text for name in ("conformance", "info_nce")]
    shown = [re.findall(r'data-field="environment\.dtype"[^>]*>([^<]*)', page)[0] for page in pages]
    assert shown[0].startswith("precision by row")
    assert shown[1] == "float64"
