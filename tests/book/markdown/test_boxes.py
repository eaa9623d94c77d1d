"""Boxes: captions, notes, exercises with folded answers, cards, steps, and how they nest."""

from collections.abc import Callable

import pytest

Html = Callable[..., str]
Mistakes = Callable[..., list[tuple[int, str]]]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("::: note\n文\n:::", '<div class="box note" role="note">\n<p class="box-title">说明</p>\n<p>文</p>\n</div>\n'),
        (
            '::: warning "$N$ 为零"\n文\n:::',
            '<div class="box warning" role="note">\n<p class="box-title">注意：<math><mi>N</mi></math> 为零</p>\n'
            "<p>文</p>\n</div>\n",
        ),
        (
            "::: answer\n文\n:::",
            '<details class="answer">\n<summary>答案</summary>\n<p>文</p>\n</details>\n',
        ),
    ],
)
def test_a_box_has_its_element_and_title(html: Html, source: str, expected: str) -> None:
    assert html(source) == expected


def test_titles_speak_the_language_of_the_text(html: Html) -> None:
    assert '<p class="box-title">Conclusion: equal</p>' in html('::: conclusion "equal"\nx\n:::', "en")


def test_exercises_are_numbered_and_hold_their_folded_answers(html: Html) -> None:
    page = html(":::: exercise\n问\n\n::: answer\n答\n:::\n::::\n\n::: exercise\n再问\n:::")
    assert page.index("练习 1") < page.index('<details class="answer">') < page.index("练习 2")


def test_steps_are_an_ordered_list_with_a_verb_and_a_title(html: Html) -> None:
    page = html(':::: steps\n::: step "COUNT|确定 $N$"\n数。\n:::\n::: step "UPDATE|更新"\n走。\n:::\n::::')
    assert page.startswith(
        '<ol class="steps" role="list">\n<li class="step">\n<p class="step-verb">COUNT</p>\n'
        '<p class="step-title">确定 <math><mi>N</mi></math></p>\n<p>数。</p>\n</li>\n'
    )
    assert page.count("<li") == 2
    assert '<p class="step-verb">先数</p>' in html(':::: steps\n::: step "先数|确定"\n数。\n:::\n::::')


def test_cards_are_a_list_and_may_hold_lists_formulas_and_panels(html: Html) -> None:
    page = html(':::: cards\n::: card "**A**"\n- x\n\n  $$y$$\n\n```{calculator} average\n```\n:::\n::::')
    assert '<li class="card">\n<p class="card-title"><strong>A</strong></p>' in page
    assert "⟦average average⟧" in page


@pytest.mark.parametrize("block", ["$$a=b$$", "| a |\n|---|\n| b |", "```python\nx\n```", "```{evidence} update\n```"])
def test_a_caption_makes_a_figure_with_the_block_before_it(html: Html, block: str) -> None:
    page = html(f"前文\n\n{block}\n\n::: caption\n说明\n:::\n\n后文")
    figure = page[page.index("<figure") : page.index("</figure>")]
    assert page.startswith('<p>前文</p>\n<figure class="captioned">\n')
    assert figure.endswith('<figcaption class="caption">\n<p>说明</p>\n</figcaption>\n')
    assert page.endswith("</figure>\n<p>后文</p>\n")
