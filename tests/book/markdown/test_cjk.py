"""Emphasis and line breaks in Chinese text."""

from collections.abc import Callable

import pytest

Html = Callable[..., str]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("**并行正确性：**每一步", "<strong>并行正确性：</strong>每一步"),
        ("这是**“重点”**内容", "这是<strong>“重点”</strong>内容"),
        ("默认**（A=2）**时", "默认<strong>（A=2）</strong>时"),
        ("先**求和。**再平均", "先<strong>求和。</strong>再平均"),
        ("《**标题**》之外", "《<strong>标题</strong>》之外"),
        ("用**DDP**平均", "用<strong>DDP</strong>平均"),
        ("**中文**English", "<strong>中文</strong>English"),
        ("一处*强调*与**加粗**", "一处<em>强调</em>与<strong>加粗</strong>"),
        ("**`no_sync`**必须", "<strong><code>no_sync</code></strong>必须"),
        ("除以**$P$**之后", "除以<strong><math><mi>P</mi></math></strong>之后"),
        ("***都要***才行", "<em><strong>都要</strong></em>才行"),
        ("「**引文**」", "「<strong>引文</strong>」"),
        ("plain **bold** and *it*.", "plain <strong>bold</strong> and <em>it</em>."),
        ("in**tra**word", "in<strong>tra</strong>word"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        (r"\*\*字面\*\*", "**字面**"),
    ],
)
def test_emphasis_opens_and_closes_beside_chinese_characters(html: Html, source: str, expected: str) -> None:
    assert html(source) == f"<p>{expected}</p>\n"


def test_stars_between_a_word_and_punctuation_stay_closed_as_in_commonmark(html: Html) -> None:
    assert html('a*"b"*c') == "<p>a*&quot;b&quot;*c</p>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("第一行\n第二行", "第一行第二行"),
        ("逗号，\nDDP 平均", "逗号，DDP 平均"),
        ("中文\nLatin", "中文\nLatin"),
        ("one\ntwo", "one\ntwo"),
        ("**重**\n点", "<strong>重</strong>点"),
        ("中文\n`code`", "中文\n<code>code</code>"),
    ],
)
def test_a_line_break_between_chinese_characters_is_no_space(html: Html, source: str, expected: str) -> None:
    assert html(source) == f"<p>{expected}</p>\n"
