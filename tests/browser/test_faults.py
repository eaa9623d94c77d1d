"""What first-time visitors stumbled over: files, pasted blocks, words of errors, arrows and colours."""

import json
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.test_live import OWN, has_value, query_of
from tests.browser.test_workbench import LEDGER, cell, drop, paste

Open = Callable[..., Page]


def test_an_error_names_the_label_and_not_the_variable(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger-a").fill("")
    link = page.locator("[data-errors] a")
    expect(link).to_have_text("Valid tokens n of A")
    link.click()
    expect(page.locator("#replica_ledger-a")).to_be_focused()
    still = open_page("/zh/calculators/replica_ledger?a=", java_script_enabled=False)
    assert "A 的有效 token" in still.locator("[data-errors]").inner_text()
    for one in (page, still):
        one.watch.complaints = []  # type: ignore[attr-defined]


def test_open_without_a_file_changes_nothing(open_page: Open) -> None:
    page = open_page(f"{OWN}?a=5")
    page.evaluate("window.same = true")
    page.locator("form[data-upload] button").click()
    page.wait_for_timeout(300)
    assert page.evaluate("window.same")
    assert query_of(page)["a"] == "5"


def test_a_refused_file_leaves_the_state_to_the_links(open_page: Open) -> None:
    page = open_page(f"{OWN}?a=5")
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "a.csv", "no,such\ncolumns,here\n")
    assert page.locator("#replica_ledger-a").input_value() == "5"
    page.locator("a[data-alternate]").click()
    page.wait_for_url("**/zh/calculators/replica_ledger?**")
    assert page.locator("#replica_ledger-a").input_value() == "5"
    page.watch.complaints = []  # type: ignore[attr-defined]


def test_a_table_is_shown_under_the_scheme_of_the_page(open_page: Open) -> None:
    page = open_page(OWN)
    verdict = page.locator("[data-verdict]").inner_text()
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "counts.csv", "rank,microstep,n,g\n0,0,2,-2\n1,0,8,1\n")
    assert page.locator("[data-verdict]").inner_text() == verdict
    assert query_of(page)["scheme"] == "replica_mean_then_ddp_mean"


def test_cases_without_kinds_are_the_pages_own(open_page: Open) -> None:
    page = open_page(OWN)
    body = {"microsteps": {"n": [[2], [8]], "g": [[-2], [1]]}}
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "cases.json", json.dumps({"cases": [{"inputs": body}, {"kind": "odd"}]}))
    text = page.locator("[data-cases]").inner_text()
    assert "None" not in text
    assert "#2" in text
    page.locator("[data-cases] li").first.locator("a, button").click()
    has_value(page, "reference.grad", "0.4")


def test_a_pasted_block_drops_its_header_and_can_be_undone(open_page: Open) -> None:
    page = open_page(LEDGER)
    paste(cell(page, "counts", 0, 0), "step 0\tstep 1\n4\t5\n6\t7")
    area = page.locator("#replica_ledger-counts")
    expect(area).to_have_value("4,5;6,7")
    page.keyboard.press("Control+z")
    expect(area).to_have_value("2,3;8,0")
    expect(cell(page, "counts", 0, 0)).to_be_focused()
    assert cell(page, "counts", 1, 0).input_value() == "8"
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_step_of_no_length_has_no_head(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger?counts=1;1&gradients=-1;1")
    assert page.locator("path[marker-end]").count() == 0
    page.goto("/en/calculators/replica_ledger?a=1&b=2")
    assert "0 times" not in page.locator("[data-verdict]").inner_text()


def test_where_nothing_differs_nothing_is_amber(open_page: Open) -> None:
    page = open_page(f"{OWN}?scheme=P_over_N_then_ddp_mean")
    colour = "getComputedStyle(document.querySelector('.is-current dd > data')).color"
    same = page.evaluate(colour)
    page.goto(OWN)
    assert page.evaluate(colour) != same


def test_labels_of_one_row_stand_on_one_line_and_options_are_whole(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness")
    lines: list[float] = page.evaluate(
        """() => ["a", "b"].map((name) => {
            const label = document.querySelector(`label[for="replica_ledger-${name}"]`);
            const range = document.createRange();
            range.selectNodeContents(label);
            return range.getBoundingClientRect().bottom;
        })"""
    )
    assert max(lines) - min(lines) < 2
    cut: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("#replica_ledger select")].filter((select) => {
            const probe = document.createElement("span");
            probe.style.cssText = `position:absolute;white-space:nowrap;font:${getComputedStyle(select).font}`;
            probe.textContent = [...select.options].map((one) => one.text).sort((x, y) => y.length - x.length)[0];
            document.body.append(probe);
            return probe.getBoundingClientRect().width > select.clientWidth - 20;
        }).map((select) => select.name)"""
    )
    assert cut == []


def test_the_map_of_directions_reads_in_forced_colours(open_page: Open) -> None:
    page = open_page("/en/calculators/direction_map", forced_colors="active", color_scheme="dark")
    labels = page.locator(".plane .fig-label")
    found = labels.evaluate_all("all => all.map((one) => [getComputedStyle(one).fill, getComputedStyle(one).stroke])")
    assert found
    assert all(fill != stroke for fill, stroke in found)
