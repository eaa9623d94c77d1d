"""Headings, tables, code, fences, footnotes, links, and marks that were left over."""

from collections.abc import Callable

import pytest

from samestep.app.book.markdown.highlight import Dark, Light, stylesheet
from samestep.app.book.markdown.pieces import CalculatorRef, Document, EvidenceRef, Reference

Html = Callable[..., str]
Compile = Callable[..., Document]
Mistakes = Callable[..., list[tuple[int, str]]]


def test_a_heading_links_to_itself_below_its_kicker(html: Html) -> None:
    assert html('{#sec-a kicker="01 / COUNT"}\n## 先数 $N$') == (
        '<hgroup>\n<p class="kicker">01 / COUNT</p>\n'
        '<h2 id="sec-a"><a class="anchor" href="#sec-a">先数 <math><mi>N</mi></math></a></h2>\n</hgroup>\n'
    )
    assert '<p class="kicker">01 / 先数</p>' in html('{#sec-a kicker="01 / 先数"}\n## 甲')


def test_sections_form_a_tree_with_plain_text_and_formula_names(compiled: Compile) -> None:
    document = compiled(
        "开头 $N$。[^n]\n\n{#sec-a}\n## 甲 $\\tau$\n\n文 $S_r$。\n\n$$\\mathcal L_{\\text{all}}$$\n\n"
        "{#sec-b}\n### 乙\n\n细节 `no_sync`\n\n{#sec-c}\n## 丙\n\n尾\n\n[^n]: 脚注\n"
    )
    first, last = document.sections
    assert document.lead == "开头 N。\n\n脚注"
    assert (first.id, first.title, first.text, first.formulas) == ("sec-a", "甲 τ", "文 Sr。", "S_r S r L_all L all")
    assert first.title_html == "甲 <math><mi>τ</mi></math>"
    assert [(child.id, child.level, child.text) for child in first.children] == [("sec-b", 3, "细节 no_sync")]
    assert (last.id, last.text) == ("sec-c", "尾")


def test_a_table_scrolls_in_a_named_region_and_aligns_by_class(html: Html) -> None:
    page = html("| a | b |\n|---|--:|\n| $\\lvert x\\rvert$ | 1 |")
    assert page.startswith('<div class="table-scroll" tabindex="0" role="region" aria-label="表格 1">\n<table>')
    assert '<th scope="col" class="align-right">b</th>' in page
    assert "style=" not in page


def test_code_is_coloured_and_wide_code_can_be_scrolled_by_keyboard(html: Html) -> None:
    narrow, wide = html("```python\nx = 1\n```"), html("```python\n" + "x = 1 " * 20 + "\n```")
    assert narrow.startswith('<pre class="highlight"><code class="language-python"><span class="n">x</span>')
    assert wide.startswith('<pre class="highlight" tabindex="0" role="group" aria-label="代码">')
    assert html("```\na < b\n```") == '<pre class="highlight"><code>a &lt; b\n</code></pre>\n'


def test_an_unknown_language_and_an_open_fence_are_reported(mistakes: Mistakes) -> None:
    assert mistakes("文\n\n```pyhton\nx\n```") == [(3, "unknown code language “pyhton”")]
    assert mistakes("文\n\n```python\nx\n") == [(3, "the code fence is never closed")]


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("style", "paper"), [(Light, "f0ede4"), (Dark, "2a2d33")])
def test_every_colour_of_code_is_readable(style: type[Light], paper: str) -> None:
    assert min(_contrast(token["color"], paper) for _, token in style if token["color"]) >= 5


def test_the_stylesheet_has_both_colours_of_every_class() -> None:
    rules = stylesheet().splitlines()
    assert all("light-dark(#" in rule for rule in rules)
    assert any(rule.startswith(".highlight .k{") for rule in rules)


def test_a_calculator_fence_becomes_a_reference_with_the_texts_as_typed(compiled: Compile) -> None:
    document = compiled('文\n\n```{calculator} average\na = 0.50\nb = "1/3"\n```\n\n尾')
    assert document.mistakes == ()
    assert document.pieces == (
        "<p>文</p>\n",
        CalculatorRef("average", "average", {"a": "0.50", "b": "1/3"}, 3),
        "<p>尾</p>\n",
    )


def test_a_second_panel_has_an_id_of_its_own(compiled: Compile) -> None:
    document = compiled('```{calculator} average\n```\n\n```{calculator} average\nid = "second"\na = 5\n```')
    assert [(ref.id, ref.fields) for ref in document.calculators] == [("average", {}), ("second", {"a": "5"})]


def test_an_evidence_fence_keeps_its_choice_even_when_nothing_is_published(compiled: Compile) -> None:
    document = compiled('```{evidence} unpublished\nrows = ["a", "b"]\nkeys = ["gradient"]\n```')
    assert document.mistakes == ()
    assert document.evidence == (EvidenceRef("unpublished", "evidence-unpublished", ("a", "b"), ("gradient",), 1),)


def test_a_drawn_figure_stands_where_its_fence_names_it(compiled: Compile) -> None:
    document = compiled("```{figure} window\n```\n", figures=frozenset({"window"}))
    assert [(figure.name, figure.id) for figure in document.figures] == [("window", "figure-window")]
    assert "figure-window" in document.anchors
    assert not document.mistakes


def test_footnotes_link_there_and_back(html: Html) -> None:
    page = html("一[^a]二[^a]三^[行内]\n\n[^a]: 注 $N$\n")
    assert '<sup class="footnote-ref"><a href="#fn1" id="fnref1" aria-label="脚注 1">1</a></sup>' in page
    assert 'id="fnref1-1"' in page
    assert '<a class="footnote-back" href="#fnref1-1" aria-label="回到脚注 1 的引用处">' in page
    assert page.count('class="footnotes"') == 1
    assert '<li id="fn2" class="footnote-item"><p>行内' in page


def test_links_between_chapters_go_below_the_root_path(compiled: Compile) -> None:
    document = compiled("[甲](ch:scaling#sec-a)")
    assert document.pieces == ('<p><a href="/root/zh/scaling#sec-a" class="chapter">甲</a></p>\n',)
    assert document.references == (Reference("scaling", "sec-a", 1),)


def test_a_planned_chapter_is_marked_and_not_linked(html: Html) -> None:
    page = html("[*以后*](ch:later#sec-x)再说")
    assert page == '<p><span class="planned"><em>以后</em> <span class="planned-mark">(计划中)</span></span>再说</p>\n'


def test_other_links_are_kept(html: Html) -> None:
    page = html('[论文](src:paper) [页](/zh/search "标题") [外](https://a.example/x)\n\n[此处](#x) []{#x}')
    assert 'href="#source-paper" class="source"' in page
    assert 'href="/root/zh/search"' in page
    assert 'href="https://a.example/x"' in page


def test_html_is_text(html: Html) -> None:
    assert html("a <script>x</script> <b>y</b>") == ("<p>a &lt;script&gt;x&lt;/script&gt; &lt;b&gt;y&lt;/b&gt;</p>\n")


def test_reading_time_counts_characters_words_and_formulas(compiled: Compile) -> None:
    assert compiled("字").minutes == 1
    assert compiled("字" * 700).minutes == 2
    assert compiled("word " * 601, "en").minutes == 4
    assert compiled("$$a$$\n\n" * 8).minutes == 2


def test_a_header_of_formulas_alone_has_their_source_as_text(html: Html) -> None:
    made = html("| $w_q$ | text $x$ |\n|---|---|\n| 1 | 2 |\n")
    assert made.count("visually-hidden") == 1
    assert '<span class="visually-hidden">w_q</span></th>' in made
