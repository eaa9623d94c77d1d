"""A term's definition on pointing and on focus; on paper neither it nor what only a screen needs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

SHOWN = "term => getComputedStyle(term, '::after').content !== 'none'"


@pytest.fixture
def term(kept_page: Callable[..., Page]) -> Locator:
    page = kept_page("/en/parallel-correctness", reduced_motion="reduce")
    page.mouse.move(0, 0)
    return page.locator("#term-temperature")


def test_a_definition_shows_while_its_term_is_pointed_at_or_focused(term: Locator) -> None:
    assert not term.evaluate(SHOWN)
    term.hover()
    assert term.evaluate(SHOWN)
    term.page.mouse.move(0, 0)
    assert not term.evaluate(SHOWN)
    term.page.locator("#term-document").focus()
    term.page.keyboard.press("Tab")
    assert term.evaluate("term => term === document.activeElement")
    assert term.evaluate(SHOWN)


def test_escape_puts_a_definition_away_until_the_term_is_left(term: Locator) -> None:
    term.hover()
    term.page.keyboard.press("Escape")
    assert not term.evaluate(SHOWN)
    term.page.mouse.move(0, 0)
    term.hover()
    assert term.evaluate(SHOWN)


def test_the_pointer_may_move_onto_the_definition(term: Locator) -> None:
    term.hover()
    box = term.bounding_box()
    assert box is not None
    for step in range(0, 30, 3):
        term.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + step)
        assert term.evaluate(SHOWN)


def test_a_definition_reads_as_the_links_description_not_as_its_name(term: Locator) -> None:
    term.hover()
    snapshot = term.aria_snapshot()
    assert 'link "temperature"' in snapshot
    assert "softmax" not in snapshot.splitlines()[0]


@pytest.mark.parametrize("width", [320, 1280])
def test_a_definition_stays_inside_the_page(kept_page: Callable[..., Page], width: int) -> None:
    page = kept_page("/zh/parallel-correctness", reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    for term in page.locator(".term").all()[:12]:
        term.hover()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_the_book_does_not_scroll_sideways_on_a_small_screen(kept_page: Callable[..., Page]) -> None:
    page = kept_page("/en/book")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390


def test_on_paper_chapters_begin_on_new_pages_and_nothing_pops_up(
    kept_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = kept_page("/en/book")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(media="print")
    breaks = page.locator(".book-chapter").evaluate_all("all => all.map(one => getComputedStyle(one).breakBefore)")
    assert len(breaks) > 10
    assert set(breaks) == {"page"}
    assert not page.locator(".site-head, .site-foot, .panel-foot").first.is_visible()
    hidden = page.locator(".book details > :not(summary)").evaluate_all(
        "all => all.filter(e => !e.offsetHeight).length"
    )
    assert hidden == 0
    show = "(all, shown) => all.slice(2).forEach(chapter => { chapter.hidden = !shown; })"
    page.locator(".book-chapter").evaluate_all(show, False)  # laid out for paper, they would cost 3 s
    file = tmp_path / "book.pdf"
    page.pdf(path=file, format="A4", page_ranges="1-4")
    page.locator(".book-chapter").evaluate_all(show, True)
    assert file.stat().st_size > 20_000
