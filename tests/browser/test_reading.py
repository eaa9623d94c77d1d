"""Reading: where links arrive, what the contents mark, definitions at a finger, code to copy."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_live import until

CHAPTER = "/zh/parallel-correctness"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
Open = Callable[..., Page]

AT_THE_LINE = """() => {
    const blocks = [...document.querySelectorAll(".prose > :is(h2, h3, .panel, .evidence), .prose > hgroup > h2")];
    const block = blocks.findLast((one) => one.getBoundingClientRect().top < 160);
    return [block.id || block.dataset.panel, block.getBoundingClientRect().top];
}"""


@pytest.mark.parametrize("section", ["sec-framework", "sec-coordinate", "sources"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_deep_link_arrives_at_once_and_stays_there(open_page: Open, section: str, width: int) -> None:
    """Whatever is laid out above it meanwhile."""
    page = open_page(f"{CHAPTER}#{section}", viewport={"width": width, "height": 900})
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    for _ in range(3):
        top = page.locator(f"#{section}").evaluate("(heading) => heading.getBoundingClientRect().top")
        assert 0 <= top < 160
        page.wait_for_timeout(100)


@pytest.mark.parametrize("panel", ["replica_ledger", "info_nce", "clip_ownership"])
def test_the_language_switch_keeps_the_panel_that_was_in_view_at_its_place(open_page: Open, panel: str) -> None:
    """Scrolled to the lower half of a panel: it is still there in the other language, not its section's start."""
    page = open_page(CHAPTER)
    page.locator(f"[data-panel={panel}]").scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # it is laid out when it comes near, and has its height from then on
    page.evaluate(
        """(id) => {
            const box = document.querySelector(`[data-panel=${id}]`).getBoundingClientRect();
            scrollTo(0, scrollY + box.top + 0.6 * box.height - 160);
        }""",
        panel,
    )
    until(page, lambda: (page.locator("a[data-alternate]").get_attribute("href") or "").endswith(f"#{panel}"))
    box = page.locator("a[data-alternate]").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # a locator's click would scroll first
    page.wait_for_url("**/en/parallel-correctness*")

    def is_at_its_place() -> bool:
        name, top = page.evaluate(AT_THE_LINE)
        box = page.locator(f"[data-panel={panel}]").bounding_box()
        return name == panel and box is not None and abs((160 - top) / box["height"] - 0.6) < 0.1

    until(page, is_at_its_place)


@pytest.mark.parametrize("height", [700, 1400])
def test_at_its_end_a_chapter_marks_the_last_entry_of_its_contents(open_page: Open, height: int) -> None:
    page = open_page("/en/gradient-scaling", viewport={"width": 1280, "height": height})
    links = page.locator(".contents-side a")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(links.last).to_have_attribute("aria-current", "true")
    assert page.locator(".contents-side [aria-current]").count() == 1


def test_on_the_way_down_every_entry_of_the_contents_is_marked_in_turn(open_page: Open) -> None:
    page = open_page("/en/gradient-scaling", viewport={"width": 1280, "height": 900})
    seen: list[str] = page.evaluate(
        """async () => {
            const seen = [];
            for (let y = 0; y <= document.documentElement.scrollHeight; y += 60) {
                scrollTo(0, y);
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                const hash = document.querySelector(".contents-side [aria-current]")?.hash;
                if (hash && hash !== seen.at(-1)) seen.push(hash);
            }
            return seen;
        }"""
    )
    assert seen == page.locator(".contents-side a").evaluate_all("links => links.map((link) => link.hash)")


# ---- terms


def test_a_term_under_a_finger_opens_its_definition_on_the_page(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness", **PHONE)
    term = page.locator("#term-temperature")
    definition = term.get_attribute("aria-description") or ""
    term.scroll_into_view_if_needed()
    term.tap()
    note = page.locator(".term-note")
    expect(note).to_be_visible()
    assert definition in note.inner_text()
    assert "/parallel-correctness" in page.url
    box = note.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()
    term.tap()
    note.get_by_role("link", name="Glossary").tap()
    page.wait_for_url("**/en/glossary#*")


def test_a_term_under_a_pointer_still_leads_to_the_glossary(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness")
    page.locator("#term-temperature").click()
    page.wait_for_url("**/en/glossary#*")


# ---- code


@pytest.mark.parametrize(
    "path", ["/en/parallel-correctness", "/zh/calculators/replica_ledger", "/en/experiments/info_nce"]
)
def test_every_block_of_code_can_be_copied_as_it_stands(open_page: Open, path: str) -> None:
    page = open_page(path)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    block = page.locator("pre:has(> code)").first
    block.hover()
    block.get_by_role("button", name=re.compile("^(Copy|复制)$")).click()
    expect(block.get_by_role("button")).to_have_text(re.compile("Copied|已复制"))
    assert page.evaluate("navigator.clipboard.readText()") == block.locator("code").evaluate("code => code.textContent")
    assert page.locator("pre:has(> code)").count() == page.locator("pre > .copy-corner").count()


def test_a_program_that_follows_its_state_can_be_copied_again(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger")
    page.locator("details[data-more=snippet] summary").click()
    page.locator("#replica_ledger-a").fill("17")
    code = page.locator("details[data-more=snippet] code")
    expect(code).to_contain_text("17")
    expect(page.locator("details[data-more=snippet] .copy-corner")).to_have_count(1)
