"""Numbers in the text follow the panel that they speak of, and find back."""

from collections.abc import Callable

import httpx2
from playwright.sync_api import Page, expect

from tests.browser.test_live import until

Open = Callable[..., Page]
CHAPTER = "/en/gradient-flip"
NUMBER = "a.checked[data-follows=replica_ledger]"


def test_numbers_beside_a_panel_follow_it_with_a_word_and_a_way_back(open_page: Open) -> None:
    page = open_page(CHAPTER)
    numbers = page.locator(NUMBER)
    written = numbers.all_text_contents()
    note = page.locator("[data-panel=replica_ledger] [data-following]")
    assert not note.is_visible()
    page.locator("#replica_ledger-b").fill("3")
    expect(note).to_contain_text(f"({len(written)} of them)")
    followed = page.locator(f"{NUMBER}[data-followed]")
    for number in followed.all()[:5]:  # each says what the page that it leads to says
        field = number.get_attribute("data-field") or ""
        state = (number.get_attribute("href") or "").partition("?")[2]
        answer = httpx2.get(f"{page.url.partition('/en/')[0]}/api/replica_ledger?{state}").json()
        for step in field.split("."):
            answer = answer[int(step)] if step.isdigit() else answer[step]
        told = (number.text_content() or "").replace("−", "-")
        assert told == "undefined" if answer is None else told == str(answer) or abs(float(told) - answer) < 1e-5
    assert numbers.all_text_contents() != written
    note.get_by_role("button").click()
    expect(followed).to_have_count(0)
    assert numbers.all_text_contents() == written
    assert page.locator("#replica_ledger-b").input_value() == "8"
    assert not note.is_visible()


def test_a_number_that_a_sentence_binds_to_a_scheme_keeps_it(open_page: Open) -> None:
    page = open_page(f"{CHAPTER}?replica_ledger.b=3&replica_ledger.scheme=P_over_N_then_ddp_mean")
    until(page, lambda: page.locator(f"{NUMBER}[data-followed]").count() > 0)
    links = page.locator(f"{NUMBER}[data-followed]").evaluate_all("(links) => links.map((link) => link.search)")
    assert all("b=3" in link for link in links)
    assert any("scheme=replica_mean_then_ddp_mean" in link for link in links)
