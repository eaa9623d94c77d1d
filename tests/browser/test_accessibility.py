"""axe finds nothing to complain of, and no page is wider than a small screen: every kind of page, both schemes."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, ViewportSize

from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from tests.browser.axe import violations
from tests.kit import the_book

BOOK = the_book()
KINDS = {
    "shelf": "/zh/",
    "chapter": "/zh/parallel-correctness",
    "chapter with refused inputs": "/en/gradient-scaling?replica_ledger.a=-1&gradient_scaling.batch=63",
    "calculators": "/en/calculators",
    "ledger": "/zh/calculators/replica_ledger?counts=2,3;8,0;1&gradients=-2,1;1,0.5;3",
    "refused form": "/en/calculators/replica_ledger?a=x&lr=",
    "search": "/zh/search?q=梯度",
    "search without hits": "/en/search?q=xyzzyx",
    "experiments": "/zh/experiments",
    "experiment": "/en/experiments/info_nce",
    "API": "/en/api",
    "glossary": "/zh/glossary",
    "sources": "/en/sources",
    "tag": "/zh/tags/advanced",
    "missing page": "/zh/no-such-page",
}
ONCE = {
    "full form and comparison": "/en/calculators/replica_ledger?body.n=2,3;8,0&body.g=-2,1;1,0&expected={%22N%22:1}",
    "lists in the full form": "/zh/calculators/token_budget?body.lengths=900,350,1200",
    "refused full form": "/zh/calculators/overflow_skip?body.scaled_grads=x;1&body.params=1;1&body.scale=2&body.lr=1",
    "start": "/en/start?answer=curve.0&counts=100;900",
    "framework": "/zh/conformance/open_clip",
    "frameworks": "/zh/conformance",
}
"""Pages whose parts are those of others, in another order: looked at on a small dark screen only."""
GATHER = """async (names) => {
  const answers = await Promise.all(names.map((name) => fetch(`/en/calculators/${name}/result`)));
  document.querySelector("[data-body]").innerHTML = (await Promise.all(answers.map((one) => one.text()))).join("");
}"""
"""The results of every instrument, one after the other in the frame of the page's own."""
CHAPTERS = [chapter.path for lang in LANGUAGES for chapter in BOOK.chapters[lang][lang == "zh" :: 2]]
CHAPTERS.remove(KINDS["chapter"])
STUCK = """() => [...document.querySelectorAll(".table-scroll")].filter((region) => {
  const first = region.querySelector("tbody th:first-child");
  const stays = first && region.scrollWidth > region.clientWidth && getComputedStyle(first).position === "sticky";
  return stays && first.offsetWidth > 0.6 * region.clientWidth;
}).map((region) => region.ariaLabel)"""
"""Tables whose first column stays and leaves too little room for the others."""
LAID_OUT = "document.querySelectorAll('.panel').forEach((panel) => { panel.style.contentVisibility = 'visible'; })"
"""Panels far below are laid out when they come near; axe wants to see where everything is."""
SCREENS: dict[str, ViewportSize] = {"1280": {"width": 1280, "height": 900}, "390": {"width": 390, "height": 844}}
LOOKS: list[tuple[str, Literal["light", "dark"]]] = [("1280", "light"), ("390", "dark")]
"""Colours do not depend on the width, nor places on the colours: two looks show both screens and both schemes."""

each_kind = pytest.mark.parametrize("path", KINDS.values(), ids=KINDS)


def forgive(page: Any, path: str) -> None:
    """The address itself is refused or missing here, and Chromium says so."""
    if "no-such" in path or "=x" in path or "=-1" in path:
        page.watch.complaints = [text for text in page.watch.complaints if "Failed to load resource" not in text]


@each_kind
def test_axe_finds_no_violation_in_either_look_and_nothing_scrolls_sideways(
    open_page: Callable[..., Page], path: str
) -> None:
    page = open_page(path, reduced_motion="reduce")
    look(page)
    forgive(page, path)


def test_axe_finds_no_violation_in_the_results_of_any_instrument(open_page: Callable[..., Page]) -> None:
    page = open_page("/en/calculators/replica_ledger", reduced_motion="reduce")
    page.evaluate(GATHER, list(registry()))
    assert page.locator("[data-verdict]").count() == len(registry())
    look(page)


def look(page: Page) -> None:
    """At both looks axe finds nothing; on the small screen nothing scrolls sideways, tables leave room to scroll."""
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    page.evaluate(LAID_OUT)
    found = []
    for screen, scheme in LOOKS:
        page.set_viewport_size(SCREENS[screen])
        page.emulate_media(color_scheme=scheme)
        found += [f"{screen} {scheme}: {violation}" for violation in violations(page)]
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= SCREENS[screen]["width"]
    assert page.evaluate(STUCK) == []
    assert found == []


@pytest.mark.parametrize("path", ONCE.values(), ids=ONCE)
def test_axe_finds_no_violation_on_a_small_dark_screen(open_page: Callable[..., Page], path: str) -> None:
    page = open_page(path, viewport=SCREENS["390"], color_scheme="dark", reduced_motion="reduce")
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert violations(page) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    forgive(page, path)


@pytest.mark.parametrize("path", CHAPTERS)
def test_axe_finds_no_violation_in_any_chapter(open_page: Callable[..., Page], path: str) -> None:
    """Every chapter once, half of them in each language: what differs is its panels, tables and formulas.

    Colours are those of the style sheets: they are looked at where both looks are.
    """
    page = open_page(path, reduced_motion="reduce")
    page.evaluate(LAID_OUT)
    assert violations(page, colours=False) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 1280


@pytest.mark.parametrize("width", [320, 768, 1024, 1920])
def test_chapter_20_fits_screens_of_all_widths(kept_page: Callable[..., Page], width: int) -> None:
    page = kept_page("/zh/parallel-correctness", reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_forced_colours_leave_text_and_figures_readable(open_page: Callable[..., Page]) -> None:
    page = open_page("/zh/calculators/replica_ledger", forced_colors="active", color_scheme="dark")
    unreadable = page.evaluate(
        """() => {
            const paper = getComputedStyle(document.body).backgroundColor;
            const texts = [...document.querySelectorAll("h1, h2, p, a, label, button, td, th, data")];
            const marks = [...document.querySelectorAll(".figure rect:not(.fig-grab), .figure path, .figure text")];
            const shown = (e) => e.checkVisibility() && e.getBoundingClientRect().width > 0;
            const pale = (e) => [getComputedStyle(e).fill, getComputedStyle(e).stroke].every(
                (c) => c === "none" || c === paper || c.endsWith(", 0)"));
            const sunk = (e) => getComputedStyle(e).color === getComputedStyle(e).backgroundColor;
            return [...texts.filter((e) => shown(e) && sunk(e)), ...marks.filter((e) => shown(e) && pale(e))]
                .map((e) => e.outerHTML.slice(0, 120));
        }"""
    )
    assert unreadable == []
    assert page.evaluate("matchMedia('(forced-colors: active)').matches")


def test_with_reduced_motion_nothing_moves(kept_page: Callable[..., Page]) -> None:
    page = kept_page("/zh/parallel-correctness", reduced_motion="reduce")
    moving = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((e) => {
            const style = getComputedStyle(e);
            const seconds = [...style.transitionDuration.split(","), ...style.animationDuration.split(",")];
            return style.scrollBehavior === "smooth" || seconds.some((text) => parseFloat(text) > 0.01);
        }).map((e) => e.outerHTML.slice(0, 100))"""
    )
    assert moving == []


def test_on_paper_there_is_text_and_no_machinery(kept_page: Callable[..., Page]) -> None:
    page = kept_page("/zh/parallel-correctness", reduced_motion="reduce")
    page.set_viewport_size(SCREENS["1280"])
    page.emulate_media(media="print")
    for machinery in (
        ".site-head nav",
        ".site-foot nav",
        ".contents-side",
        "[data-copy]",
        ".form-actions",
        ".skip",
        ".neighbours",
    ):
        for found in page.locator(machinery).all():
            assert not found.is_visible(), machinery
    for text in (
        "h1",
        ".prose p >> nth=0",
        "[data-result] .readouts >> nth=0",
        "#sources li >> nth=0",
        "svg.figure >> nth=0",
    ):
        assert page.locator(text).first.is_visible(), text
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 1280
    page.emulate_media(media="screen")


def test_the_focus_is_always_to_be_seen(open_page: Callable[..., Page]) -> None:
    """Every stop of the Tab key on a calculator's page is on the screen and has an outline, or changes its look."""
    page = open_page("/en/calculators/replica_ledger", reduced_motion="reduce")
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop: dict[str, Any] | None = page.evaluate(
            """() => {
                const e = document.activeElement;
                if (e === document.body) return null;
                const style = getComputedStyle(e), box = e.getBoundingClientRect();
                const seen = box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight;
                const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
                return {html: e.outerHTML.slice(0, 100), seen, marked: outlined || style.boxShadow !== "none"};
            }"""
        )
        if stop is None:
            break
        stops.append(stop)
    assert len(stops) > 20
    assert [stop["html"] for stop in stops if not stop["seen"] or not stop["marked"]] == []
    assert "skip" in stops[0]["html"]


def test_the_first_link_leads_past_the_header(open_page: Callable[..., Page]) -> None:
    page = open_page("/zh/parallel-correctness")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    assert page.evaluate("document.activeElement.id") == "main"
