"""Terms of the glossary in a text, the glossary's own mistakes, and the links to discuss a section."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from samestep.app.book.markdown.glossary import Finder, Glossary, lost_sections, mistakes_of
from samestep.app.book.markdown.pieces import Document

Html = Callable[..., str]
Compile = Callable[..., Document]

GLOSSARY = Glossary.model_validate(
    {
        "group": {"g": {"zh": "组", "en": "Group"}},
        "term": {
            "replica": {
                "group": "g",
                "zh": "副本",
                "en": "replica",
                "symbols": ["P"],
                "definition": {"zh": "模型的“一份”", "en": 'A copy <of> "the" model'},
                "derived": "scaling#sec-a",
            },
            "rank": {
                "group": "g",
                "zh": "rank",
                "en": "rank",
                "definition": {"zh": "进程", "en": "A process"},
                "derived": "scaling#sec-a",
                "unlinked": {"en": ["other"]},
            },
            "norm": {
                "group": "g",
                "zh": "范数",
                "en": "norm",
                "definition": {"zh": "长度", "en": "A length"},
                "derived": "scaling#sec-a",
            },
            "global-norm": {
                "group": "g",
                "zh": "全局范数",
                "en": "global norm",
                "forms": {"zh": ["全局范数", "总范数"]},
                "definition": {"zh": "总长度", "en": "The whole length"},
                "derived": "scaling#sec-a",
            },
            "parameter": {
                "group": "g",
                "zh": "参数",
                "en": "parameter",
                "forms": {"zh": [], "en": []},
                "definition": {"zh": "θ", "en": "θ"},
                "derived": "scaling#sec-a",
            },
        },
    }
)


def finder(lang: str, slug: str = "this") -> Finder:
    return GLOSSARY.finder(lang).of(slug)


def linked(document: Document) -> str:
    """The text with 【…】 where a term is linked."""
    html = "".join(piece for piece in document.pieces if isinstance(piece, str))
    while '<a class="term"' in html:
        start = html.index('<a class="term"')
        inside = html.index(">", start) + 1
        end = html.index("</a>", inside)
        html = html[:start] + "【" + html[inside:end] + "】" + html[end + 4 :]
    return html


def test_the_first_occurrence_is_a_link_that_carries_the_definition(html: Html) -> None:
    assert html("Two replicas, one replica.", "en", terms=finder("en")) == (
        '<p>Two <a class="term" id="term-replica" href="/root/en/glossary#replica" '
        'aria-description="A copy &lt;of&gt; &quot;the&quot; model">replicas</a>, one replica.</p>\n'
    )


def test_the_terms_of_a_text_are_known_in_their_order(compiled: Compile) -> None:
    assert compiled("范数、副本、范数。", terms=finder("zh")).terms == ("norm", "replica")
    assert compiled("范数、副本。").terms == ()


LINKED = {
    "en": {
        "Replicas differ.": "【Replicas】 differ.",
        "a replication, a preRank, sub-rank, rank_0, ranks": "a replication, a preRank, sub-rank, rank_0, 【ranks】",
        "a global norm and a norm": "a 【global norm】 and a 【norm】",
        "A **replica's** norm": "A <strong>【replica】's</strong> 【norm】",
        "the parameter": "the parameter",
    },
    "zh": {
        "每个rank的副本": "每个【rank】的【副本】",
        "总范数是全局范数，不是范数": "【总范数】是全局范数，不是【范数】",
        "副\n本的范数": "副本的【范数】",
        "`副本`与 $P$ 个副本": "<code>副本</code>与 <math><mi>P</mi></math> 个【副本】",
    },
}
"""Texts in each language, and what is linked in them."""


@pytest.mark.parametrize(
    ("lang", "source", "expected"), [(lang, *one) for lang, texts in LINKED.items() for one in texts.items()]
)
def test_a_word_counts_whole_in_the_plural_and_at_the_start_of_a_sentence(
    compiled: Compile, lang: str, source: str, expected: str
) -> None:
    assert linked(compiled(source, lang, terms=finder(lang))) == f"<p>{expected}</p>\n"


@pytest.mark.parametrize(
    "source",
    [
        "{#sec-a}\n## One replica",
        "[one replica](ch:scaling)",
        "[the replica](#sec)\n\n{#sec}\n## A",
        "[one replica](ch:later)",
        "`replica`",
        "```python\nreplica = 1\n```",
        "$\\text{replica}$",
        "| replica |\n|---|\n| replica |",
        "[replica]{lang=en}",
        ':::: steps\n::: step "COUNT|Each replica"\nText.\n:::\n::::',
        '::: answer "The replica"\nText.\n:::',
    ],
)
def test_headings_links_code_formulas_tables_and_titles_stay_as_they_are(html: Html, source: str) -> None:
    assert "term" not in html(source, "en", terms=finder("en"))


def test_the_prose_of_boxes_lists_captions_and_footnotes_is_prose(compiled: Compile) -> None:
    boxed, captioned = "::: note\nA replica.\n:::", "$$x$$\n\n::: caption\nA replica.\n:::"
    for source in (boxed, captioned, "- A replica.", "X[^1]\n\n[^1]: A replica."):
        assert compiled(source, "en", terms=finder("en")).terms == ("replica",)


def test_a_chapter_in_which_a_word_means_something_else_does_not_link_it(compiled: Compile) -> None:
    assert compiled("A rank.", "en", terms=finder("en", "other")).terms == ()
    assert compiled("一个 rank。", "zh", terms=finder("zh", "other")).terms == ("rank",)


def test_search_and_reading_time_see_the_text_without_links(compiled: Compile) -> None:
    source = "{#sec-a}\n## A\n\nTwo replicas and one norm."
    (section,) = compiled(source, "en", terms=finder("en")).sections
    assert section == compiled(source, "en").sections[0]


def test_an_author_cannot_take_the_id_of_a_term(mistakes: Callable[..., list[tuple[int, str]]]) -> None:
    assert mistakes("{#term-x}\n## A") == [(2, "the id “term-x” belongs to the page around the text")]


def complaints(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    file = tmp_path / "glossary.toml"
    file.write_text(text)
    return [(one.line, one.reason) for one in mistakes_of(Glossary.model_validate(tomllib.loads(text)), file)]


ENTRY = """[term.{id}]
group = "{group}"
zh = "{zh}"
en = "{en}"
symbols = ['{symbol}']
definition = {{ zh = "甲", en = "a" }}
derived = "{derived}"
"""
GROUP = '[group.g]\nzh = "组"\nen = "Group"\n'


def entry(name: str, **changes: str) -> str:
    fields = {"id": name, "group": "g", "zh": f"词{name}", "en": name, "symbol": "x", "derived": "scaling#sec-a"}
    return ENTRY.format(**(fields | changes))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (entry("a", group="h"), 4, "there is no group “h”"),
        (entry("main"), 4, "the id “main” cannot be used"),
        (entry("group-a"), 4, "the id “group-a” cannot be used"),
        (entry("a") + entry("b", symbol="y", zh="词a"), 11, "“词a” stands for “a” already"),
        (entry("a") + entry("b"), 11, "“x” stands for “a” already"),
        (entry("a", symbol="\\frac{1}"), 4, "the symbol \\frac{1}: "),
    ],
)
def test_a_mistake_of_the_glossary_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    ((found, said),) = complaints(tmp_path, GROUP + text)
    assert (found, said[: len(reason)]) == (line, reason)


def test_a_glossary_in_order_has_no_mistakes(tmp_path: Path) -> None:
    assert complaints(tmp_path, GROUP + entry("a") + entry("b", symbol="y")) == []


@pytest.mark.parametrize(
    ("derived", "reason"),
    [
        ("scaling#sec-a", ""),
        ("later#sec-anything", ""),
        ("scaling#sec-b", "the chapter “scaling” has no id “sec-b”"),
        ("scaling#sec-zh", "the chapter “scaling” has no id “sec-zh”"),
        ("nowhere#sec-a", "there is no chapter “nowhere”"),
    ],
)
def test_a_term_is_derived_in_a_section_that_exists_in_both_languages(
    tmp_path: Path, derived: str, reason: str
) -> None:
    file = tmp_path / "glossary.toml"
    file.write_text(GROUP + entry("a", derived=derived))
    glossary = Glossary.model_validate(tomllib.loads(file.read_text()))
    anchors = {"scaling": [{"sec-a": 3, "sec-zh": 9}, {"sec-a": 3}]}
    found = [(one.line, one.reason) for one in lost_sections(glossary, file, anchors, frozenset({"later"}))]
    assert found == ([(4, reason)] if reason else [])


def test_every_section_ends_with_the_link_to_discuss_it(html: Html) -> None:
    first = "Lead.\n\n{#sec-a}\n## A\n\nText.[^1]\n\n{#sec-b}\n### B\n\nMore.\n\n"
    source = first + '{#sec-c kicker="C"}\n## C\n\nEnd.\n\n[^1]: Note.'
    made = html(source, "en", discuss=lambda section: f"https://example.org/?a=1&s={section}")
    links = [
        f'<p class="discuss"><a href="https://example.org/?a=1&amp;s={section}" rel="external" '
        f'aria-describedby="{section}">Discuss or correct this section</a></p>\n'
        for section in ("sec-a", "sec-c")
    ]
    assert made.count('class="discuss"') == 2
    assert f"<p>More.</p>\n{links[0]}<hgroup>" in made
    assert f'<p>End.</p>\n{links[1]}<section class="footnotes"' in made


def test_without_an_address_no_section_speaks_of_discussion(html: Html) -> None:
    assert "discuss" not in html("{#sec-a}\n## A\n\nText.", "en")
