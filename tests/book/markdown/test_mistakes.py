"""What an author gets wrong is reported at its line, with the reason."""

from collections.abc import Callable

import pytest

Mistakes = Callable[..., list[tuple[int, str]]]

WRONG = [
    # headings
    ("## 甲", 1, "has no id"),
    ("{#Sec}\n## 甲", 2, "must be made of a-z"),
    ("{#sec-a}\n# 甲", 2, "headings start with ##"),
    ("{#sec-a}\n#### 甲", 2, "two levels"),
    ("{#sec-a}\n### 甲", 2, "must stand below a ## heading"),
    ("{#sec-a}\n## 甲\n\n{#sec-a}\n## 乙", 5, "the id “sec-a” is used already in line 2"),
    ("{#main}\n## 甲", 2, "belongs to the page"),
    ("{#sec-a}\n## [甲](ch:scaling)", 2, "cannot hold a link"),
    ("> {#sec-a}\n> ## 甲", 2, "cannot stand inside"),
    ("文\n{#sec-a}\n## 甲", 2, "an attribute line"),
    ('{#sec-a onclick="x"}\n## 甲', 2, "the attribute “onclick” is not allowed"),
    # tables
    ("| a | b |\n|---|---|\n| $|x|$ | c |", 3, "the row has 4 cells, the table 2 columns"),
    # fences
    ("```{calculator} nothing\n```", 1, "there is no calculator “nothing”"),
    ("```{calculator} average\na = 1\nc = 2\n```", 3, "average: c is not a field of this calculator"),
    ("```{calculator} average\na = 1\nb = -2\n```", 3, "average: b must be 0 or more"),
    ("```{calculator} average\na = [1]\n```", 2, "must be a number or a text"),
    ("```{calculator} average\na = 1\nb == 2\n```", 3, "not TOML"),
    ("```{calculator} average\n```\n\n```{calculator} average\n```", 4, "needs an id of its own"),
    ('```{calculator} average\nid = "a b"\n```', 1, "must be made of a-z"),
    ("```{calculator} average\na = 1", 1, "is never closed"),
    ("```{evidence} nothing\n```", 1, "there is no experiment “nothing”"),
    ("```{evidence} update\nrow = 1\n```", 2, "unknown option “row”"),
    ("```{evidence} update\nrows = 1\n```", 2, "must be a list of texts"),
    ("```{picture} x\n```", 1, "unknown fence {picture}"),
    ("```{figure} x\n```", 1, "there is no figure “x”"),
    # boxes
    ("::: box\nx\n:::", 1, "unknown box “box”"),
    ("文\n\n::: note\nx", 3, "::: note is never closed"),
    ('::: cards\n::: card "A"\nx\n:::\n:::', 2, "::: card is never closed"),
    ('::: card "A"\nx\n:::', 1, "must stand directly inside ::: cards"),
    (":::: cards\n文\n::::", 2, "::: cards may hold only ::: card"),
    (':::: cards\n::: step "A|B"\nx\n:::\n::::', 2, "::: step must stand directly inside ::: steps"),
    (":::: steps\n::: step COUNT\nx\n:::\n::::", 2, "unknown box “step COUNT”"),
    (':::: steps\n::: step "COUNT"\nx\n:::\n::::', 2, "a step needs a verb and a title"),
    (":::: cards\n::: card\nx\n:::\n::::", 2, "a card needs a title"),
    ('$$a$$\n\n::: caption "T"\nx\n:::', 3, "::: caption takes no title"),
    ("文\n\n::: caption\nx\n:::", 3, "::: caption must follow"),
    ("::: note\n::: caption\nx\n:::\n:::", 2, "::: caption must follow"),
    ("文\n\n:::", 3, "a ::: without its partner"),
    # references, links and marks
    ("一\n[甲](ch:nowhere)", 2, "there is no chapter “nowhere”"),
    ("一\n[甲](src:nobody)", 2, "there is no source “nobody”"),
    ("一\n[甲](#nothing)", 2, "there is no id “nothing” in this chapter"),
    ("一\n[甲](other.md)", 2, "the link “other.md” leads nowhere"),
    ("一\n[甲](//evil.example)", 2, "leads nowhere"),
    ("一\n[甲](ch: scaling)", 2, "the link cannot be read"),
    ("一\n![图](x.png)", 2, "pictures are not supported"),
    ("一\n[^nobody]", 2, "the footnote is not defined"),
    ("一\n** 二**", 2, "a ** without its partner"),
    ("一\n$ x$", 2, "a $ without its partner"),
    ("一\n[1]{calc=“average”}", 2, "the attributes after ] cannot be read"),
    ('一\n[1]{onclick="x"}', 2, "the attribute “onclick” is not allowed"),
]
"""A text, the line of its mistake, and words of the reason."""


@pytest.mark.parametrize(("source", "line", "reason"), WRONG)
def test_a_mistake_is_reported_at_its_line(mistakes: Mistakes, source: str, line: int, reason: str) -> None:
    assert any(found == line and reason in told for found, told in mistakes(source))


def test_all_mistakes_are_reported_at_once(mistakes: Mistakes) -> None:
    assert len(mistakes("## 甲\n\n[x](ch:no)\n\n$\\foo$\n\n```{calculator} no\n```")) == 4
