"""The head of every page, at any width: one row of links, one row with the name, nothing over anything."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

Open = Callable[..., Page]
WIDTHS = [320, 390, 760, 768, 1024, 1280, 1920]

BOXES = """() => [...document.querySelectorAll(".site-head :is(.site-name, .site-nav li, button, .language)")]
    .filter((one) => one.checkVisibility())
    .map((one) => ({name: one.textContent.trim() || one.title, ...one.getBoundingClientRect().toJSON()}))"""


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_nothing_in_the_head_lies_over_anything_else_and_the_name_shares_its_row_with_the_language(
    open_page: Open, lang: str
) -> None:
    page = open_page(f"/{lang}/conformance")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        boxes: list[dict[str, Any]] = page.evaluate(BOXES)
        assert len(boxes) == 10
        for i, one in enumerate(boxes):
            for other in boxes[i + 1 :]:
                apart = (
                    one["right"] <= other["left"] + 0.5
                    or other["right"] <= one["left"] + 0.5
                    or one["bottom"] <= other["top"] + 0.5
                    or other["bottom"] <= one["top"] + 0.5
                )
                assert apart, (width, one["name"], other["name"])
        name, language, *_ = [box for box in boxes if box["name"].startswith(("SameStep", "同一步", "English", "中文"))]
        assert name["top"] < (language["top"] + language["bottom"]) / 2 < name["bottom"], width
        links = [(box["top"] + box["bottom"]) / 2 for box in boxes[1:8]]
        assert max(links) - min(links) < 2, width
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_below_the_head_nothing_is_hidden_by_it(open_page: Open, width: int) -> None:
    """An anchor comes to rest below what stays of the head."""
    page = open_page("/zh/parallel-correctness#sec-negatives", viewport={"width": width, "height": 800})
    heading = page.locator("#sec-negatives").bounding_box()
    head = page.locator(".site-head").bounding_box()
    assert heading is not None
    assert head is not None
    assert heading["y"] >= head["y"] + head["height"]


def test_a_link_that_does_not_fit_is_scrolled_to_by_the_keyboard(open_page: Open) -> None:
    page = open_page("/en/", viewport={"width": 320, "height": 800})
    link = page.locator(".site-nav a").last
    link.focus()
    box = link.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320


def test_the_readers_colours_are_kept_until_they_are_the_systems_again(open_page: Open) -> None:
    page = open_page("/en/", color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Dark colours").click()
    dark = page.evaluate(paper)
    assert dark != light
    page.goto("/zh/glossary")
    assert page.evaluate(paper) == dark
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    page.emulate_media(media="screen")
    page.get_by_role("button", name="换成浅色").click()
    assert page.evaluate(paper) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(paper) == dark
    expect(page.get_by_role("button", name="换成浅色")).to_be_visible()


def test_without_a_script_there_is_no_switch_that_does_nothing(open_page: Open) -> None:
    page = open_page("/en/", java_script_enabled=False)
    assert not page.locator("[data-scheme-switch]").is_visible()
