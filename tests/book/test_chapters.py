"""The book: order, neighbours, planned chapters, and every mistake of its authors in one list."""

import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from samestep.app.book.chapter import Chapter, Planned
from samestep.app.book.chapters import Book, load_book
from samestep.app.book.markdown.pieces import BookError
from samestep.app.calculators import Calculator
from samestep.app.contract.fields import Real
from samestep.app.contract.models import Inputs, Query, Result
from tests.kit import the_book

HEAD = """+++
title = "{title}"
summary = "摘要。"
part = "A"
topic = "scaling"
level = "intro"
kind = "computed"
related = [{related}]

[[sources]]
id = "paper"
title = "A Paper"
year = 2017
url = "https://example.org/paper"
+++
"""

TAGS = """
[part.A]
zh = "甲部"
en = "Part A"
[part.B]
zh = "乙部"
en = "Part B"
[topic.scaling]
zh = "缩放"
en = "Scaling"
[level.intro]
zh = "入门"
en = "Introductory"
[kind.computed]
zh = "演示"
en = "Demo"
"""

PLANNED = """
[chapter.third]
number = 30
part = "B"
zh = "第三章"
en = "Third"
[chapter.first]
number = 10
part = "A"
zh = "旧题目"
en = "Old title"
[experiment.update]
zh = "更新"
en = "Update"
"""

BODY = """
开头 [论文](src:paper)。

{{#sec-a}}
## 标题

文 [+4]{{calc="double?x=2" field="twice"}} {more}
"""


class DoubleQuery(Query):
    x: Real = Fraction(1)


class DoubleView(Result):
    twice: float


def double(query: Any) -> DoubleView:
    return DoubleView(twice=float(2 * query.x))


def double_of(inputs: Any, scheme: str | None = None) -> DoubleView:
    return double(inputs)


DOUBLE = Calculator("double", Inputs, DoubleQuery, DoubleView, DoubleView, double, double_of, double)


class Folder:
    """A small book in a folder of its own."""

    def __init__(self, content: Path) -> None:
        self.content = content
        for name, text in (("tags.toml", TAGS), ("planned.toml", PLANNED)):
            self.write(name, text)
        for lang in ("zh", "en"):
            self.chapter(f"{lang}/10-first.md", title=f"First {lang}", related='"second", "third"')
            self.chapter(f"{lang}/20-second.md", title=f"Second {lang}")

    def write(self, name: str, text: str) -> Path:
        file = self.content / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def chapter(self, name: str, title: str = "T", related: str = "", more: str = "") -> Path:
        return self.write(name, HEAD.format(title=title, related=related) + BODY.format(more=more))

    def publish(self, name: str, result: object) -> Path:
        """A bag that is whole as far as its result goes."""
        file = self.write(f"evidence/{name}/data/result.json", json.dumps(result))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        self.write(f"evidence/{name}/manifest-sha256.txt", f"{digest}  data/result.json\n")
        return file

    def load(self) -> Book:
        return load_book(self.content, calculators={"double": DOUBLE}, link=lambda path: "/r" + path)

    def mistakes(self) -> list[str]:
        with pytest.raises(BookError) as caught:
            self.load()
        return str(caught.value).replace(f"{self.content}/", "").splitlines()


@pytest.fixture
def book_folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def chapter(book: Book, lang: str, slug: str) -> Chapter:
    found = book.chapter(lang, slug)
    assert found is not None
    return found


def test_chapters_stand_in_the_order_of_their_numbers(book_folder: Folder) -> None:
    book_folder.chapter("zh/5-zero.md")
    assert [c.slug for c in book_folder.load().chapters["zh"]] == ["zero", "first", "second"]


def test_neighbours_are_those_of_the_same_language(book_folder: Folder) -> None:
    book = book_folder.load()
    first, second = book.chapters["en"]
    assert book.neighbours(first) == (None, second)
    assert book.neighbours(second) == (first, None)


def test_a_chapter_is_found_by_slug_and_knows_its_other_language(book_folder: Folder) -> None:
    book = book_folder.load()
    first = chapter(book, "zh", "first")
    assert first.path == "/zh/first"
    assert book.alternate(first) is chapter(book, "en", "first")
    assert book.chapter("zh", "third") is None


def test_a_head_is_read_with_the_names_of_its_tags(book_folder: Folder) -> None:
    first = chapter(book_folder.load(), "zh", "first")
    assert (first.title, first.summary, first.number, first.minutes) == ("First zh", "摘要。", 10, 1)
    assert [(tag.family, tag.id, tag.name) for tag in first.tags] == [
        ("topic", "scaling", "缩放"),
        ("level", "intro", "入门"),
        ("kind", "computed", "演示"),
    ]
    assert (first.sources[0].id, first.sources[0].year) == ("paper", 2017)


def test_a_file_that_exists_wins_over_its_plan(book_folder: Folder) -> None:
    book = book_folder.load()
    part_a, part_b = book.parts("en")
    assert ([c.slug for c in part_a.chapters], part_a.planned) == (["first", "second"], ())
    assert (part_b.title, part_b.planned) == ("Part B", (Planned("en", "third", 30, "B", "Third"),))


def test_related_chapters_may_be_planned(book_folder: Folder) -> None:
    book = book_folder.load()
    written, planned = book.related(chapter(book, "zh", "first"))
    assert (written.title, planned.title) == ("Second zh", "第三章")


def test_chapters_are_found_by_tag(book_folder: Folder) -> None:
    book = book_folder.load()
    tag = book.tag("en", "intro")
    assert tag is not None
    assert tag.name == "Introductory"
    assert [c.slug for c in book.tagged(tag, "en")] == ["first", "second"]
    assert book.tag("en", "nothing") is None


def test_search_gets_every_heading_of_both_languages(book_folder: Folder) -> None:
    found = [section for section in book_folder.load().sections() if section.slug == "first"]
    assert [(s.lang, s.heading, s.path) for s in found] == [
        ("zh", "First zh", "/zh/first"),
        ("zh", "标题", "/zh/first#sec-a"),
        ("en", "First en", "/en/first"),
        ("en", "标题", "/en/first#sec-a"),
    ]
    assert "开头 论文。" in found[0].text
    assert found[1].text == "文 +4"


def test_addresses_in_the_text_go_through_the_link_function(book_folder: Folder) -> None:
    page = "".join(map(str, chapter(book_folder.load(), "zh", "first").pieces))
    assert 'href="/r/zh/calculators/double?x=2"' in page


def test_every_mistake_of_every_file_is_reported_with_file_and_line(book_folder: Folder) -> None:
    book_folder.chapter("zh/20-second.md", more="[x](ch:first#sec-no) [y](ch:none)\n\n$\\foo$")
    book_folder.chapter("en/20-second.md", related='"none"', more='[5]{calc="double?x=2" field="twice"}')
    assert book_folder.mistakes() == [
        "en/20-second.md:8: head: related: there is no other chapter “none”",
        "en/20-second.md:22: the checked number “5” is wrong: the value is 4.0",
        "zh/20-second.md:22: the chapter “first” has no id “sec-no”",
        "zh/20-second.md:22: there is no chapter “none”, and none is planned in planned.toml",
        'zh/20-second.md:24: formula: Unknown command "\\foo".',
    ]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (("summary =", "summary"), "3: the head is not TOML"),
        (('title = "T"\n', ""), "1: head: title: Field required"),
        (('level = "intro"', 'level = "hard"'), "6: head: level “hard” is not in tags.toml (there are intro)"),
        (('part = "A"', 'part = "Z"'), "4: head: part “Z” is not in tags.toml (there are A, B)"),
        (("year = 2017", 'year = "soon"'), "13: head: sources.0.year: Input should be a valid integer"),
        (("https://", "http://"), "14: head: sources.0.url: String should match pattern"),
        (("year =", "yaer ="), "13: head: sources.0.yaer: Extra inputs are not permitted"),
        (("+++\ntitle", "---\ntitle"), "1: the file must start with a head"),
    ],
)
def test_a_broken_head_is_reported_at_its_line(book_folder: Folder, change: tuple[str, str], mistake: str) -> None:
    file = book_folder.chapter("zh/30-third.md")
    file.write_text(file.read_text().replace(*change))
    assert any(line.startswith(f"zh/30-third.md:{mistake}") for line in book_folder.mistakes())


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("zh/first.md", "", "zh/first.md:1: the file's name cannot be used"),
        ("zh/30-search.md", "", "zh/30-search.md:1: the file's name cannot be used: “search” is the address"),
        ("zh/10-again.md", "", "zh/10-first.md:1: 10-again.md has “10” already"),
        ("zh/30-first.md", "", "zh/30-first.md:1: 10-first.md has “first” already"),
        (
            "redirects.toml",
            '[redirect]\nold = "gone"\n',
            "redirects.toml:1: “old” leads to “gone”, which is no chapter",
        ),
        ("redirects.toml", '[redirect]\nfirst = "second"\n', "redirects.toml:1: “first” is a chapter"),
        ("tags.toml", TAGS + "[topic.intro]\nzh='x'\nen='x'\n", "tags.toml:1: the tag “intro” is declared twice"),
        ("tags.toml", TAGS + "[topic.x]\nzh='x'\n", "tags.toml:17: topic.x: must be words in zh and in en"),
        ("planned.toml", "[chapter.x", "planned.toml:1: not TOML"),
    ],
)
def test_a_broken_folder_is_reported(book_folder: Folder, name: str, text: str, mistake: str) -> None:
    book_folder.write(name, text)
    assert [line for line in book_folder.mistakes() if line.startswith(mistake)]


def test_a_file_that_is_not_utf8_is_reported(book_folder: Folder) -> None:
    (book_folder.content / "zh" / "30-third.md").write_bytes("+++\n标题".encode("gb18030"))
    assert "zh/30-third.md:2: the file is not UTF-8" in book_folder.mistakes()


def test_a_renamed_chapter_is_redirected(book_folder: Folder) -> None:
    book_folder.write("redirects.toml", '[redirect]\nold = "first"\n')
    assert book_folder.load().redirects == {"old": "first"}


def test_both_languages_must_carry_the_same(book_folder: Folder) -> None:
    assert book_folder.load().check() == ()
    book_folder.chapter("zh/20-second.md", more='\n\n{#sec-b}\n## 乙\n\n[6]{calc="double?x=3" field="twice"}\n\n$$a$$')
    book_folder.chapter("zh/30-third.md")
    assert [str(mistake).replace(f"{book_folder.content}/", "") for mistake in book_folder.load().check()] == [
        "zh/20-second.md:1: 1 display formulas (the other has 0) is not in en",
        "zh/20-second.md:25: the id “sec-b” is not in en",
        "zh/20-second.md:27: the checked number “6” (double?x=3, twice) is not in en",
        "zh/30-third.md:1: the chapter is missing in the other language",
    ]


def test_a_panel_with_another_state_in_the_other_language_is_reported(book_folder: Folder) -> None:
    for lang, x in (("zh", 1), ("en", 2)):
        book_folder.chapter(f"{lang}/20-second.md", more=f"\n\n```{{calculator}} double\nx = {x}\n```")
    assert "the content of the panel “double” is not in en" in str(book_folder.load().check()[-1])


def test_evidence_that_was_damaged_later_keeps_no_page_from_being_shown(book_folder: Folder) -> None:
    result = book_folder.publish("update", {"rows": [{"id": "a", "difference": 0.31}]})
    number = '[0.31]{evidence="update" field="rows.a.difference"}'
    for lang in ("zh", "en"):
        book_folder.chapter(f"{lang}/20-second.md", more=number)
    assert book_folder.load().check() == ()
    result.write_text("{broken")
    assert "is unchecked: the evidence update is damaged" in str(book_folder.load().check()[0])


def test_a_saved_file_shows_at_the_next_look(book_folder: Folder) -> None:
    book = book_folder.load()
    assert book.reload_if_changed() is book
    file = book_folder.chapter("zh/10-first.md", title="Neu")
    os.utime(file, ns=(1, 1))
    changed = book.reload_if_changed()
    assert chapter(changed, "zh", "first").title == "Neu"
    assert changed.reload_if_changed() is changed
    file.unlink()
    assert changed.reload_if_changed().chapter("zh", "first") is None


def test_a_broken_save_keeps_the_old_book(book_folder: Folder) -> None:
    book = book_folder.load()
    book_folder.chapter("zh/10-first.md", more="$\\foo$")
    with pytest.raises(BookError):
        book.reload_if_changed()
    assert book.chapter("zh", "first")


def test_authors_get_every_mistake_on_the_command_line(book_folder: Folder) -> None:
    text = HEAD.format(title="T", related="") + "\n$\\foo$\n\n[x](#no)\n"
    for lang in ("zh", "en"):
        for name in ("10-first", "20-second"):
            book_folder.write(f"{lang}/{name}.md", text.replace("$\\foo$", "").replace("[x](#no)", ""))
    command = [sys.executable, "-m", "samestep.app.book.chapters", str(book_folder.content)]
    root = Path(__file__).parents[2]
    good = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout[:19], good.stderr) == (0, "book ok: 4 chapters", "")
    book_folder.write("zh/10-first.md", text)
    bad = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert bad.stderr.splitlines() == [
        f'{book_folder.content}/zh/10-first.md:17: formula: Unknown command "\\foo".',
        f"{book_folder.content}/zh/10-first.md:19: there is no id “no” in this chapter",
        "2 mistakes",
    ]


def test_the_book_itself_is_right_in_both_languages() -> None:
    book = the_book()
    assert book.chapters["zh"], "the checkout holds chapters"
    assert [str(mistake) for mistake in book.check()] == []


def test_compiled_chapters_are_kept_until_anything_they_depend_on_changes(book_folder: Folder, tmp_path: Path) -> None:
    text = HEAD.format(title="T", related="") + "\nfirst text\n"
    for lang in ("zh", "en"):
        for name in ("10-first", "20-second"):
            book_folder.write(f"{lang}/{name}.md", text)
    cache = tmp_path / "kept"
    load_book(book_folder.content, cache=cache)
    (kept,) = cache.glob("*/*")
    before = kept.read_bytes()
    again = load_book(book_folder.content, cache=cache)
    assert kept.read_bytes() == before
    assert "first text" in "".join(map(str, again.chapters["en"][0].pieces))
    book_folder.write("en/10-first.md", text.replace("first", "second"))
    changed = load_book(book_folder.content, cache=cache)
    assert "second text" in "".join(map(str, changed.chapters["en"][0].pieces))
    kept.write_bytes(b"half of a")
    book_folder.write("en/10-first.md", text)
    assert "first text" in "".join(map(str, load_book(book_folder.content, cache=cache).chapters["en"][0].pieces))


@pytest.mark.parametrize("offset", [0, 20, 60, 200])
def test_spoiled_compiled_chapters_are_compiled_again(book_folder: Folder, tmp_path: Path, offset: int) -> None:
    """Bytes in the middle of a pickle may raise anything, or make something else: nothing but the digest tells."""
    for lang in ("zh", "en"):
        for name in ("10-first", "20-second"):
            book_folder.write(f"{lang}/{name}.md", HEAD.format(title="T", related="") + "\nthe text\n")
    load_book(book_folder.content, cache=tmp_path)
    (kept,) = tmp_path.glob("????????????????????????/*")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:offset] + b"\xff" * 400 + whole[offset + 400 :])
    again = load_book(book_folder.content, cache=tmp_path)
    assert "the text" in "".join(map(str, again.chapters["en"][0].pieces))
    assert kept.read_bytes()[:32] == hashlib.sha256(kept.read_bytes()[32:]).digest()  # mended for the next start


def test_a_cache_that_cannot_be_written_costs_time_only(book_folder: Folder, tmp_path: Path) -> None:
    for lang in ("zh", "en"):
        for name in ("10-first", "20-second"):
            book_folder.write(f"{lang}/{name}.md", HEAD.format(title="T", related="") + "\nthe text\n")
    (tmp_path / "no folder").write_text("")
    book = load_book(book_folder.content, cache=tmp_path / "no folder" / "chapters")
    assert len(book.chapters["en"]) == 2
