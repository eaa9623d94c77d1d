"""The palette over everything: two keys open it, it finds while one types, and without it there is the search page."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.axe import violations

Open = Callable[..., Page]


@pytest.mark.parametrize("key", ["/", "Control+k"])
def test_a_framework_flag_is_found_by_key_word_and_enter(open_page: Open, key: str) -> None:
    page = open_page("/en/")
    page.keyboard.press(key)
    page.keyboard.type("average_tokens_across")
    expect(page.locator(".palette a").first).to_contain_text("Trainer")
    page.keyboard.press("Enter")
    page.wait_for_url("**/en/conformance/transformers")


def test_a_symptom_is_found_from_any_page_with_the_readers_language_first(open_page: Open) -> None:
    page = open_page("/zh/parallel-correctness")
    page.locator("[data-palette]").click()
    page.keyboard.type("NaN")
    expect(page.locator(".palette .hits li").first).not_to_have_attribute("lang", "en")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".palette a").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".palette input")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".palette")).to_be_hidden()


def test_an_answer_that_comes_late_leaves_the_keyboard_where_it_was(open_page: Open) -> None:
    page = open_page("/en/")
    page.keyboard.press("/")
    page.keyboard.type("clip")
    expect(page.locator(".palette a").first).to_be_visible()
    late: list[Route] = []
    page.route("**/palette?q=NaN", lambda route: late.append(route))
    with page.expect_request("**/palette?q=NaN"):
        page.locator(".palette input").fill("NaN")
    page.keyboard.press("ArrowDown")
    before = page.locator(".palette a").first
    expect(before).to_be_focused()
    shown = before.inner_text()
    late[0].continue_()
    expect(before).not_to_have_text(shown)
    expect(before).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".palette input")).to_be_focused()


def test_a_public_report_opens_its_state(open_page: Open) -> None:
    page = open_page("/en/start")
    page.keyboard.press("/")
    page.keyboard.type("transformers#34242")
    page.locator(".palette a", has_text="One label against 511").click()
    page.wait_for_url(re.compile("/en/calculators/replica_ledger.counts=1"))


def test_a_slash_that_is_typed_into_a_field_stays_there(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger")
    page.locator("#replica_ledger-a").press("End")
    page.keyboard.type("/3")
    expect(page.locator("#replica_ledger-a")).to_have_value("2/3")
    expect(page.locator(".palette")).to_have_count(0)
    page.watch.forget_refusals()  # type: ignore[attr-defined]  # "2/" on the way is refused


def test_the_palette_is_usable_by_all_and_its_link_works_without_a_script(open_page: Open) -> None:
    page = open_page("/zh/")
    page.keyboard.press("/")
    page.locator(".palette input").fill("裁剪")
    expect(page.locator(".palette a").first).to_be_visible()
    assert violations(page) == []
    still = open_page("/en/", java_script_enabled=False)
    still.locator("[data-palette]").click()
    still.wait_for_url("**/en/search")
