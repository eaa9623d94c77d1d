"""A calculator's own page in a browser: tables to type into, blocks to paste, files to drop."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_live import exact, follows, query_of, until
from tests.kit import CASE_FILE

LEDGER = "/en/calculators/replica_ledger?counts=2,3;8,0&gradients=-2,1;1,0"
CASES = {case["id"]: case for case in json.loads(CASE_FILE.read_text("utf-8"))["cases"]}
Open = Callable[..., Page]


def cell(page: Page, field: str, row: int, column: int, layer: int = 0) -> Locator:
    """A cell of the table that stands for a text area."""
    return page.locator(f"[id='replica_ledger-{field}'] + .grid input[data-at='{layer} {row} {column}']")


def shows(page: Page, path: str, expected: float, panel: str = "replica_ledger") -> None:
    """An output has come to a number."""
    until(page, lambda: exact(page, path, panel) == expected)


def paste(target: Locator, text: str) -> None:
    """What a spreadsheet's clipboard does."""
    target.evaluate(
        """(input, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text", text);
            input.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
        }""",
        text,
    )


def drop(target: Locator, name: str, content: str) -> None:
    """A file let go over the target."""
    target.evaluate(
        """(target, [name, content]) => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([content], name));
            for (const kind of ["dragover", "drop"])
                target.dispatchEvent(new DragEvent(kind, {dataTransfer, bubbles: true, cancelable: true}));
        }""",
        [name, content],
    )


def test_a_number_typed_into_a_cell_moves_result_and_address(open_page: Open) -> None:
    page = open_page(LEDGER)
    shows(page, "N", 13)
    cell(page, "counts", 1, 1).fill("4")
    shows(page, "N", 17)
    follows(page, "counts", "2,3;8,4")


def test_a_rank_more_is_a_rank_more_in_every_matrix_and_can_be_taken_back(open_page: Open) -> None:
    page = open_page(LEDGER)
    actions = page.locator("#replica_ledger-counts + .grid + .grid-actions")
    actions.get_by_role("button", name="one replica more").click()
    follows(page, "counts", "2,3;8,0;0,0")
    follows(page, "gradients", "-2,1;1,0;0,0")
    actions.get_by_role("button", name="one microstep more").click()
    follows(page, "counts", "2,3,0;8,0,0;0,0,0")
    for _ in range(2):
        actions.get_by_role("button", name="one microstep less").click()
    follows(page, "counts", "2;8;0")


def test_a_block_of_a_spreadsheet_fills_the_table_from_the_cell_on(open_page: Open) -> None:
    page = open_page(LEDGER)
    paste(cell(page, "gradients", 0, 1), "5\t6\n7\t8")
    expect(page.locator("#replica_ledger-gradients")).to_have_value("-2,5,6;1,7,8")
    paste(cell(page, "counts", 0, 0), "1\t2\t3\n4\t5\t6")
    follows(page, "counts", "1,2,3;4,5,6")
    shows(page, "N", 21)
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_wrong_cell_is_marked_at_its_place_and_the_rest_stays(open_page: Open) -> None:
    page = open_page(LEDGER)
    cell(page, "counts", 1, 0).fill("x")
    expect(cell(page, "counts", 1, 0)).to_have_attribute("aria-invalid", "true")
    assert cell(page, "counts", 0, 1).get_attribute("aria-invalid") is None
    assert cell(page, "counts", 0, 1).input_value() == "3"
    cell(page, "counts", 1, 0).fill("8")
    expect(cell(page, "counts", 1, 0)).not_to_have_attribute("aria-invalid", "true")
    page.watch.forget_refusals()  # type: ignore[attr-defined]


@pytest.mark.parametrize("typed", ["1,5", "1，234"])
def test_a_cell_with_a_comma_is_refused_and_never_taken_for_two(open_page: Open, typed: str) -> None:
    page = open_page(LEDGER)
    cell(page, "counts", 1, 0).fill(typed)
    message = page.locator("[data-error=counts]")
    expect(message).to_contain_text("a cell holds one number")
    assert cell(page, "counts", 1, 0).get_attribute("aria-invalid") == "true"
    assert cell(page, "counts", 1, 0).input_value() == typed
    assert exact(page, "N") == 13
    cell(page, "counts", 1, 0).fill("1.5")
    shows(page, "N", 6.5)
    assert message.inner_text() == ""
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_thousands_mark_in_a_pasted_block_stays_in_its_cell(open_page: Open) -> None:
    page = open_page(LEDGER)
    paste(cell(page, "counts", 0, 0), '"1,234"\t5\r\n6\t7\r\n')
    expect(page.locator("[data-error=counts]")).to_contain_text("1,234")
    assert [cell(page, "counts", r, k).input_value() for r in range(2) for k in range(2)] == ["1,234", "5", "6", "7"]
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_keys_walk_through_a_column(open_page: Open) -> None:
    page = open_page(LEDGER)
    cell(page, "counts", 0, 1).focus()
    page.keyboard.press("ArrowDown")
    expect(cell(page, "counts", 1, 1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(cell(page, "counts", 0, 1)).to_be_focused()


def test_table_and_text_are_two_views_of_one_field(open_page: Open) -> None:
    page = open_page(LEDGER)
    toggle = page.locator("#replica_ledger-counts ~ .grid-actions .grid-toggle")
    toggle.click()
    page.locator("#replica_ledger-counts").fill("1,1;1,1")
    follows(page, "counts", "1,1;1,1")
    toggle.click()
    assert cell(page, "counts", 1, 0).input_value() == "1"


@pytest.mark.parametrize("case_id", ["L-17", "N-04", "C-10", "S-01", "O-02", "Z-01"])
def test_a_case_dropped_on_any_page_opens_its_instrument_and_agrees(open_page: Open, case_id: str) -> None:
    page = open_page("/en/calculators/clip_ownership")
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), f"{case_id}.json", json.dumps(CASES[case_id]))
    found = page.locator("[data-comparison]")
    assert found.get_attribute("data-agree") == found.get_attribute("data-of") != "0"


def test_the_whole_case_file_lists_its_cases_and_one_opens(open_page: Open) -> None:
    page = open_page("/zh/calculators/replica_ledger")
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "cases.json", CASE_FILE.read_text("utf-8"))
    page.locator("[data-cases]").get_by_text("L-01", exact=False).first.click()
    expect(page.locator("[data-comparison]")).to_be_visible()
    shows(page, "reference.grad", 0.4)


def test_a_table_without_header_dropped_on_a_matrix_fills_that_matrix(open_page: Open) -> None:
    page = open_page("/en/calculators/clip_order")
    with page.expect_navigation():
        drop(page.locator("[data-panel] .field:has(textarea[data-grid])").first, "grads.csv", "1,2\n3,4\n")
    assert "1,2;3,4" in query_of(page).values()


def test_a_ledger_of_columns_in_long_form_is_read_from_csv(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger")
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "log.csv", "rank,microstep,n,g,loss\n0,0,2,-2,2\n1,0,8,1,0.5\n")
    shows(page, "reference.grad", 0.4)


def test_a_file_that_is_none_is_explained_where_it_was_chosen_and_nothing_is_lost(open_page: Open) -> None:
    page = open_page(LEDGER)
    cell(page, "counts", 1, 1).fill("4")
    shows(page, "N", 17)
    content = {"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG\xff"}
    with page.expect_navigation():
        page.locator("input[type=file]").set_input_files(files=[content])  # type: ignore[list-item]
    assert "UTF-8" in page.locator("[data-error=file]").inner_text()
    expect(page.locator("input[type=file]")).to_be_focused()
    assert cell(page, "counts", 1, 1).input_value() == "4"
    page.watch.forget_refusals()  # type: ignore[attr-defined]
    page.go_back()
    shows(page, "N", 17)


def test_all_numbers_and_the_program_follow_the_state_when_they_are_open(open_page: Open) -> None:
    page = open_page(LEDGER)
    page.locator("details[data-more=fields] summary").click()
    page.locator("details[data-more=snippet] summary").click()
    more = page.locator("[data-more-body] [data-field='N']")
    until(page, lambda: float(more.get_attribute("data-value") or "nan") == 13)
    cell(page, "counts", 1, 1).fill("4")
    until(page, lambda: float(more.get_attribute("data-value") or "nan") == 17)
    expect(page.locator("details[data-more=snippet]")).to_have_attribute("open", "")
    expect(page.locator("details[data-more=snippet] code")).to_contain_text(re.compile(r"[(\[]4, 0"))


def test_a_preset_fills_the_instrument_with_one_click(open_page: Open) -> None:
    page = open_page("/en/calculators/sampler_padding")
    page.get_by_role("link", name="Ten samples on three replicas").click()
    shows(page, "consumed", 12, panel="sampler_padding")
    assert "pytorch/pytorch#25162" in page.inner_text(".presets")


def test_the_full_form_has_the_panels_state_and_answers_live(open_page: Open) -> None:
    page = open_page(LEDGER)
    cell(page, "counts", 1, 1).fill("4")
    follows(page, "counts", "2,3;8,4")
    page.locator("[data-switch=general]").click()
    shows(page, "N", 17)
    cell(page, "body.n", 0, 0).fill("5")
    shows(page, "N", 20)
    follows(page, "body.n", "5,3;8,4")


def test_a_state_too_long_for_a_link_says_so_and_is_saved_as_a_file(open_page: Open) -> None:
    page = open_page(LEDGER)
    row = ",".join(["12.125"] * 32)
    for field in ("counts", "gradients"):
        paste(cell(page, field, 0, 0), "\n".join([row] * 64))
    expect(page.locator("#replica_ledger-result [data-status]")).to_contain_text(re.compile("too long", re.I))
    assert page.locator("a[data-state]:visible").count() == 0
    assert page.locator(".grid input").count() < 64 * 32  # so many inputs would cost the browser its pace
    with page.expect_download() as download:
        page.locator("button[formaction$='/case']").click()
    saved: dict[str, Any] = json.loads(Path(download.value.path()).read_text("utf-8"))
    assert [len(row) for row in saved["inputs"]["microsteps"]["n"]] == [32] * 64
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_without_a_script_a_file_and_the_full_form_work(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger", java_script_enabled=False)
    content = {"name": "a.json", "mimeType": "application/json", "buffer": json.dumps(CASES["L-17"]).encode()}
    page.locator("input[type=file]").set_input_files(files=[content])  # type: ignore[list-item]
    page.locator("form[data-upload] button").click()
    found = page.locator("[data-comparison]")
    assert found.get_attribute("data-agree") == found.get_attribute("data-of") != "0"
