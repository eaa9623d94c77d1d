"""A state travels: as a picture, as one line, as a link that previews."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from samestep.app.cards.style import figure_style
from samestep.app.paths import folder
from tests.browser.test_live import OWN

Open = Callable[..., Page]


def test_one_line_holds_the_verdict_the_fix_and_the_link(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger?counts=100;900", permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-summary]").click()
    expect(page.locator("[data-status]")).to_have_text("Copied.")
    line = page.evaluate("navigator.clipboard.readText()")
    assert "\n" not in line
    for part in (
        "The replicas’ gradient ledger: The weights are wrong",
        "Fix: ",
        "loss = token_losses.sum() * P / N",
        "counts=100;900",
    ):
        assert part in line


def test_the_picture_of_a_state_is_copied_and_its_link_follows_the_state(open_page: Open) -> None:
    page = open_page(OWN, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#replica_ledger-a").fill("5")
    card = page.locator("[data-card]")
    expect(card).to_have_attribute("href", re.compile(r"card\.png\?a=5"))
    card.click()
    expect(page.locator("[data-status]")).to_have_text("Image copied.")
    kinds = page.evaluate("navigator.clipboard.read().then((items) => items.flatMap((item) => item.types))")
    assert kinds == ["image/png"]


def test_a_link_to_a_state_previews_with_its_own_picture(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger?a=5", java_script_enabled=False)
    image = page.locator('meta[property="og:image"]').get_attribute("content") or ""
    assert image.startswith("http://127.0.0.1")
    assert image.endswith("/en/calculators/replica_ledger/card.png?a=5")
    answer = page.request.get(image)
    assert answer.headers["content-type"] == "image/png"


def test_the_cards_colours_are_those_that_the_browser_paints(open_page: Open) -> None:
    """The one place where our own mixing of colours can be seen to differ from CSS."""
    page = open_page(OWN, color_scheme="light")
    painted: dict[str, list[int]] = page.evaluate(
        """() => Object.fromEntries(["p0", "p3", "p5", "p8", "fig-current"].map((name) => {
            const shape = document.createElementNS("http://www.w3.org/2000/svg", "rect");
            shape.setAttribute("class", name);
            document.querySelector("svg.figure").append(shape);
            const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
            context.fillStyle = getComputedStyle(shape).fill;
            context.fillRect(0, 0, 1, 1);
            return [name, [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)];
        }))"""
    )
    style = figure_style(folder("static") / "css")
    for name, colour in painted.items():
        found = re.search(rf"\.{name} {{[^}}]*?fill: (#[0-9a-f]{{6}})", style)
        assert found, name
        ours = [int(found[1][i : i + 2], 16) for i in (1, 3, 5)]
        assert max(abs(a - b) for a, b in zip(ours, colour, strict=True)) <= 1, name
