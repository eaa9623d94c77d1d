"""Checked numbers: recomputed at build, compared at the printed precision, printed as links."""

from collections.abc import Callable

import pytest

from samestep.app.book.markdown.checked import UnconfirmedError, compare
from samestep.app.book.markdown.pieces import Document

Mistakes = Callable[..., list[tuple[int, str]]]


def number(text: str, state: str = "average?a=2&b=8", field: str = "grad") -> str:
    return f'[{text}]{{calc="{state}" field="{field}"}}'


def test_a_right_number_is_a_link_to_the_calculator_in_that_state(html: Callable[..., str]) -> None:
    assert html("得到 " + number("+0.4") + "。") == (
        '<p>得到 <a class="checked" href="/root/zh/calculators/average?a=2&amp;b=8" data-field="grad">+0.4</a>。</p>\n'
    )


def test_the_link_stays_in_the_language_of_the_text(html: Callable[..., str]) -> None:
    assert 'href="/root/en/calculators/average"' in html(number("0.4", "average"), "en")


def test_a_wrong_number_is_a_mistake_with_its_line_and_the_value(mistakes: Mistakes) -> None:
    assert mistakes("一\n二 " + number("+0.5") + "\n三") == [
        (2, "the checked number “+0.5” is wrong: the value is 0.4")
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.07", 2.072539),
        ("2.0725", 2.072539),
        ("−0.5", -0.5),
        ("-0.5", -0.5),
        ("+1", 1.0),
        ("13", 13.0),
        ("17.69", 17.691806),
        ("298,176", 298176),
        ("1,234.5", 1234.5),
        ("2e-10", 2.2e-10),
        ("0.00", 0.004),
        ("0", 0.0),
        ("0.13", 0.125),
        ("0.12", 0.125),
        ("2/5", "2/5"),
        ("−1/4", "-1/4"),
        ("inf", "inf"),
        ("∞", "inf"),
        ("update", "update"),
        ("true", True),
    ],
)
def test_a_number_agrees_when_the_value_rounds_to_it(text: str, value: object) -> None:
    compare(text, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.08", 2.072539),
        ("2.0724", 2.072539),
        ("0.5", -0.5),
        ("0", 0.4),
        ("0.4", "2/5"),
        ("2/5", 0.4),
        ("12", 13.0),
        ("many", 13.0),
        ("nan", 13.0),
        ("1e999999999", 13.0),
        ("0.4", None),
        ("1", [1]),
        ("true", False),
    ],
)
def test_a_number_disagrees_when_the_value_rounds_to_another(text: str, value: object) -> None:
    with pytest.raises(UnconfirmedError):
        compare(text, value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (number("1", "nothing?a=1"), "names a calculator “nothing” that does not exist"),
        (number("1", field="grid"), "has a field “grid” that does not exist (at “grid”)"),
        (number("1", field="counts.7"), "has a field “counts.7” that does not exist (at “7”)"),
        (number("1", "average?c=1"), "asks average for what it refuses: c is not a field of this calculator"),
        (number("1", "average?a=-1"), "asks average for what it refuses: a must be 0 or more"),
        (number("1", "average?a=1&a=2"), "asks average for what it refuses: a is given twice"),
        (number("1", "average?a"), "has a state “a” that is not a=1&b=2"),
        (number("0.1", "average?a=0&b=0"), "is undefined there"),
        ('[1]{calc="average"}', 'needs calc="NAME?…" or evidence="NAME", and field="…"'),
        (
            '[1]{evidence="unpublished" field="rows.0.x"}',
            "quotes the experiment “unpublished”, which is not published yet",
        ),
        ('[1]{evidence="nothing" field="rows.0.x"}', "names an experiment “nothing” that does not exist"),
    ],
)
def test_a_number_that_cannot_be_confirmed_says_why(mistakes: Mistakes, source: str, reason: str) -> None:
    text = "0.1" if "undefined" in reason else "1"
    assert mistakes(source) == [(1, f"the checked number “{text}” {reason}")]


@pytest.mark.parametrize("field", ["rows.0.max_abs_difference", "rows.full-batch.max_abs_difference"])
def test_a_number_of_an_experiment_leads_to_its_row(html: Callable[..., str], field: str) -> None:
    page = html(f'[1.3e-12]{{evidence="update" field="{field}"}}')
    assert f'href="/root/zh/experiments/update#row-full-batch" data-field="{field}"' in page


def test_a_number_of_damaged_evidence_stays_readable_and_is_marked_unverified(
    compiled: Callable[..., Document],
) -> None:
    document = compiled('[0.31]{evidence="damaged" field="rows.0.x"}')
    assert document.mistakes == ()
    assert [number.verified for number in document.checked] == [False]


@pytest.mark.parametrize(
    "around", ["**{}**", "| a |\n|---|\n| {} |", '::: note "共 {}"\n文\n:::', "- {}", "注[^a]\n\n[^a]: {}"]
)
def test_numbers_stand_in_emphasis_cells_titles_and_notes(html: Callable[..., str], around: str) -> None:
    assert html(around.format(number("+0.4"))).count('class="checked"') == 1


def test_a_span_without_a_binding_stays_a_span(html: Callable[..., str]) -> None:
    assert html("[小]{.small}") == '<p><span class="small">小</span></p>\n'
