"""Figures are inputs: a cell of the map is taken by a click, a gradient by dragging the point that it leads to."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_live import exact, query_of, until

Open = Callable[..., Page]


def centre(handle: Locator) -> tuple[float, float]:
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_click_on_the_map_takes_the_cell_under_the_pointer(open_page: Open) -> None:
    page = open_page("/en/calculators/direction_map?a=2&b=8&size=32")
    plane = page.locator("[data-pull]")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    assert box
    cells = 33
    page.mouse.click(box["x"] + box["width"] * 20.5 / cells, box["y"] + box["height"] * (1 - 5.5 / cells))
    expect(page.locator("#direction_map-a")).to_have_value("20")
    expect(page.locator("#direction_map-b")).to_have_value("5")
    until(page, lambda: query_of(page).get("a") == "20")


def test_a_dragged_point_changes_the_gradient_of_its_microstep_alone(open_page: Open) -> None:
    page = open_page("/en/calculators/clip_order?microstep_grads=3,4;-3,0")
    x, y = centre(page.locator("[data-pull]").first)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 30, steps=6)
    page.mouse.up()
    first, second = page.locator("#clip_order-microstep_grads").input_value().split(";")
    assert second == "-3,0"
    moved = [float(cell) for cell in first.split(",")]
    assert moved[0] < 3
    assert moved[1] < 4
    until(
        page,
        lambda: exact(page, "microsteps.0.norm", "clip_order") == pytest.approx((moved[0] ** 2 + moved[1] ** 2) ** 0.5),
    )


def test_on_a_scaled_state_no_point_pretends_to_be_the_gradient(open_page: Open) -> None:
    page = open_page("/en/calculators/clip_order?microstep_grads=3,4;-3,0&scale=8")
    expect(page.locator("[data-pull]")).to_have_count(0)
