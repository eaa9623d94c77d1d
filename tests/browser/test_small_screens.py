"""On a phone: figures stay in sight while a finger drags, tables keep their first column, long pages are folded."""

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

Open = Callable[..., Page]
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


def test_the_figure_stays_in_sight_while_a_finger_drags_its_slider(open_page: Open) -> None:
    page = open_page("/zh/calculators/replica_ledger", **PHONE)
    handle = page.locator("[data-twin='replica_ledger-a']")
    handle.scroll_into_view_if_needed()
    figure = page.locator("#replica_ledger-result figure").first
    before = handle.bounding_box()
    handle.dispatch_event("pointerdown", {"pointerType": "touch", "bubbles": True})
    expect(figure).to_be_in_viewport(ratio=1)
    box, slider = figure.bounding_box(), handle.bounding_box()
    assert box
    assert slider
    assert slider == before
    assert box["y"] + box["height"] <= slider["y"] or box["y"] >= slider["y"] + slider["height"]
    handle.dispatch_event("pointerup", {"pointerType": "touch", "bubbles": True})
    expect(page.locator("[data-dragged]")).to_have_count(0)


def test_a_table_that_scrolls_keeps_its_first_column_and_shows_an_edge(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger", **PHONE)
    table = page.locator("#replica_ledger-result .table-scroll").first
    first = table.locator("tbody th").first
    left = first.evaluate("(cell) => cell.getBoundingClientRect().left")
    table.evaluate("(region) => region.scrollTo(120, 0)")
    assert abs(first.evaluate("(cell) => cell.getBoundingClientRect().left") - left) < 1
    assert "gradient" in table.evaluate("(region) => getComputedStyle(region).backgroundImage")


def test_a_long_experiment_is_folded_and_a_link_into_it_unfolds_its_case(open_page: Open) -> None:
    page = open_page("/en/experiments/conformance", **PHONE)
    assert page.evaluate("document.scrollingElement.scrollHeight") < 16_000
    last = page.locator(".case-list a").last
    last.click()
    opened = page.locator("details.case[open]").last
    expect(opened).to_be_in_viewport()
    assert page.locator("details.case[open]").count() == 1
