"""Figures that show time: whole without a script, played, scrubbed and stepped by keys with one, still where asked."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from samestep.app.paths import folder
from tests.browser.test_live import has_value, until

Open = Callable[..., Page]
FILMS = {
    "replica_ledger": "/en/calculators/replica_ledger?counts=2,3;8,0&gradients=-2,1;1,0.5",
    "collectives": "/zh/calculators/collectives?op=all_gather",
    "fsdp_timeline": "/zh/calculators/fsdp_timeline",
    "clip_order": "/en/calculators/clip_order",
    "overflow_skip": "/en/calculators/overflow_skip",
    "no_sync_timeline": "/en/calculators/no_sync_timeline?scheme=last_synchronised",
}


def hidden(page: Page) -> int:
    count: int = page.evaluate("document.querySelectorAll('.film .film-out').length")
    return count


@pytest.mark.parametrize("address", FILMS.values(), ids=FILMS)
def test_a_film_begins_with_little_and_ends_with_the_whole_figure(open_page: Open, address: str) -> None:
    page = open_page(address, reduced_motion="reduce")
    frame = page.locator("[data-film]").first
    still = frame.screenshot()
    assert hidden(page) == 0
    frame.locator("[data-play]").click()
    moment = frame.locator("input[type=range]")
    expect(moment).to_be_focused()
    captions = set()
    begun = hidden(page) + page.locator("[data-cover]").count()
    assert begun
    for _ in range(int(moment.get_attribute("max") or 0) - 1):
        captions.add(frame.locator(".film-caption").inner_text())
        moment.press("ArrowRight")
    assert len(captions) > 1
    assert moment.get_attribute("aria-valuetext") == frame.locator(".film-caption").inner_text()
    assert page.locator(".film .film-out:not(.film-ghost)").count() == 0
    svg = frame.locator("svg")
    assert svg.evaluate("(figure) => figure.getAnimations({ subtree: true }).length") == 0
    assert still


def test_a_film_plays_to_its_end_pauses_and_goes_on(open_page: Open) -> None:
    page = open_page(FILMS["clip_order"], reduced_motion="no-preference")
    frame = page.locator("[data-film]").first
    button = frame.locator("[data-play]")
    button.click()
    expect(button).to_have_text("Pause")
    button.click()
    at = frame.locator("input[type=range]").input_value()
    page.wait_for_timeout(1300)
    assert frame.locator("input[type=range]").input_value() == at
    button.click()
    until(
        page,
        lambda: (
            frame.locator("input[type=range]").input_value() == frame.locator("input[type=range]").get_attribute("max")
        ),
    )
    expect(button).to_have_text("Play")


def test_a_new_state_begins_with_its_still(open_page: Open) -> None:
    page = open_page(FILMS["overflow_skip"])
    page.locator("[data-play]").click()
    page.locator("#overflow_skip-scaled_grads").evaluate(
        "(area) => { area.value = '1;2'; area.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    has_value(page, "decision", "step", "overflow_skip")
    assert hidden(page) == 0
    page.locator("[data-play]").click()
    expect(page.locator(".film-caption")).to_contain_text(re.compile("finite"))


def test_a_result_glides_to_a_state_that_comes_alone_and_never_for_who_wants_no_motion(open_page: Open) -> None:
    for motion, glides in (("no-preference", True), ("reduce", False)):
        page = open_page("/en/calculators/replica_ledger", reduced_motion=motion)
        page.evaluate(
            """() => {
                const original = Element.prototype.animate;
                Element.prototype.animate = function (...given) {
                    window.glided = (window.glided ?? 0) + 1;
                    return original.apply(this, given);
                };
            }"""
        )
        page.locator("#replica_ledger-a").fill("5")
        has_value(page, "rows.0.n", "5.0")
        assert bool(page.evaluate("window.glided ?? 0")) == glides


def test_text_in_figures_is_large_enough_on_a_phone(open_page: Open) -> None:
    for address in FILMS.values():
        page = open_page(address, viewport={"width": 390, "height": 844})
        sizes: list[float] = page.evaluate(
            """[...document.querySelectorAll("svg.figure text")].filter((text) => text.textContent.trim()).map(
                (text) => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a
            )"""
        )
        assert round(min(sizes), 2) >= 11


def test_without_a_script_the_figure_is_whole_and_has_no_buttons(open_page: Open) -> None:
    page = open_page(FILMS["collectives"], java_script_enabled=False)
    expect(page.locator("[data-film] svg")).to_be_visible()
    expect(page.locator("[data-play]")).to_be_hidden()


def test_all_scripts_together_stay_small(open_page: Open) -> None:
    """All that a page may ever load of scripts, compressed as it is sent: at most 30 kB."""
    page = open_page("/en/calculators/replica_ledger")
    base = page.evaluate("new URL('.', document.querySelector('script[type=module]').src).href")

    def sent(name: str) -> int:
        answer: Any = page.request.get(f"{base}{name}", headers={"accept-encoding": "gzip"})
        return int(answer.headers["content-length"])

    assert sum(sent(file.name) for file in (folder("static") / "js").iterdir()) <= 30_000
