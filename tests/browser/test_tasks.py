"""What people come with, as they have it: each is answered after at most three actions, and without a script too."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_live import OWN, query_of, slider, until, value
from tests.browser.test_workbench import cell, drop, paste

Open = Callable[..., Page]


def test_the_shelf_weighs_100_and_900_tokens_and_says_which_line_to_change(open_page: Open) -> None:
    page = open_page("/en/")
    first = page.locator("#first-result")
    page.locator("#first-a").fill("100")
    page.locator("#first-b").fill("900")
    expect(first.locator("[data-verdict]")).to_have_text("A token on card A counts as much as 9 on card B.")
    expect(first.locator("[data-fix] code")).to_have_text("loss = loss * n * P / N")
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.evaluate("scrollTo(0, 0)")
        expect(page.locator("#first-a")).to_be_in_viewport()
        expect(first.locator("[data-verdict]")).to_be_in_viewport()


@pytest.mark.parametrize("path", ["/zh/", "/en/parallel-correctness", "/en/calculators/replica_ledger", "/zh/start"])
def test_a_first_view_weighs_at_most_120_kilobytes_without_fonts(open_page: Open, path: str) -> None:
    page = open_page(cold=True)
    page.goto(path, wait_until="networkidle")
    weight: int = page.evaluate(
        """performance.getEntriesByType("navigation")[0].transferSize +
            performance.getEntriesByType("resource").filter((one) => !one.name.includes("/fonts/"))
                .reduce((sum, one) => sum + one.transferSize, 0)"""
    )
    assert 10_000 < weight <= 120_000


def test_an_instrument_below_the_fold_is_laid_out_when_it_comes_near(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness")
    asleep = "(panel) => !panel.querySelector('[data-body]').checkVisibility({ contentVisibilityAuto: true })"
    last = page.locator(".prose > .panel").last
    assert last.evaluate(asleep)
    last.scroll_into_view_if_needed()
    until(page, lambda: not last.evaluate(asleep))


def ask(page: Page, symptom: str, which: int = 0, **typed: str) -> Locator:
    """Open a symptom of the start, fill in what is given, and press the button; the answer."""
    page.locator(f"#{symptom} > summary").click()
    answer = page.locator(f"#{symptom}-{which}")
    for name, text in typed.items():
        answer.locator(f"[name={name}]").fill(text)
    answer.get_by_role("button").first.click()
    return page.locator(f"#{symptom}-{which} .answered")


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("typed", ["100;900", "100, 900", "[100, 900]", "[[100], [900]]"])
def test_unequal_counts_are_answered_on_the_start_page(open_page: Open, script: bool, typed: str) -> None:
    page = open_page("/en/start", java_script_enabled=script)
    answer = ask(page, "curve", counts=typed)
    expect(answer.locator("[data-verdict]")).to_contain_text("multiply the loss by")
    assert page.locator("#curve-0 [name=counts]").input_value() == typed
    answer.get_by_role("link", name="Go on in").click()
    expect(page.locator("#framework_recipe-counts")).to_have_value(typed)


def test_start_keeps_what_it_refuses_and_says_why_beside_it(open_page: Open) -> None:
    page = open_page("/zh/start")
    page.locator("#curve > summary").click()
    page.locator("#curve-0 [name=counts]").fill("nan")
    page.locator("#curve-0 button").click()
    expect(page.locator("#curve-0 [data-error=counts]")).to_contain_text("有限的数")
    assert page.locator("#curve-0 [name=counts]").input_value() == "nan"
    page.watch.complaints = []  # type: ignore[attr-defined]


def test_a_rank_with_nan_is_explained_from_start(open_page: Open) -> None:
    answer = ask(open_page("/en/start"), "non-finite")
    expect(answer.locator("[data-verdict]")).to_be_visible()
    expect(answer.page.locator("#loss-scaled-0 button")).to_have_text("Find the cause")


def test_seven_billion_parameters_on_eight_gpus_have_their_peak(open_page: Open) -> None:
    answer = ask(open_page("/en/start"), "memory", model="7B", ranks="8")
    expect(answer.locator("[data-verdict]")).to_contain_text("Peak")
    expect(answer.locator(".assumed")).to_contain_text("218,750,000")


def test_a_whole_model_in_one_layer_is_doubted_and_corrected_by_one_click(open_page: Open) -> None:
    page = open_page("/en/calculators/fsdp_timeline")
    page.locator("#fsdp_timeline-parameters").fill("7e9")
    page.locator("[data-warning] a").click()
    expect(page.locator("#fsdp_timeline-model")).to_have_value("7000000000")
    expect(page.locator("[data-warning]")).to_have_count(0)


def test_log_lines_of_both_runs_name_the_cause(open_page: Open) -> None:
    page = open_page("/en/start")
    logs = {"reference_loss": "loss: 2.31 grad_norm: 0.42", "observed_loss": "{'loss': 2.31, 'grad_norm': 3.36}"}
    answer = ask(page, "loss-scaled", P="4", K="8", **logs)
    expect(answer.locator("[data-verdict]")).to_contain_text("K")
    assert page.locator("#loss-scaled-0 [name=observed_norm]").input_value() == "3.36"


def test_a_log_line_pasted_into_a_panel_goes_to_its_fields(open_page: Open) -> None:
    page = open_page("/zh/calculators/ratio_fingerprint")
    field = page.locator("#ratio_fingerprint-observed_loss")
    field.fill("loss: 2.07 grad_norm: 2.52")
    field.press("Tab")
    expect(page.locator("#ratio_fingerprint-observed_norm")).to_have_value("2.52")
    expect(field).to_have_value("2.07")
    until(page, lambda: query_of(page).get("observed_norm") == "2.52")
    expect(page.locator("[data-read]")).to_contain_text("2.52")


def test_a_csv_of_counts_alone_is_weighed(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger")
    with page.expect_navigation():
        drop(page.locator("[data-panel]"), "counts.csv", "rank,microstep,n\n0,0,100\n1,0,900\n")
    expect(page.locator("[data-verdict]")).to_contain_text("a token of A counts as much as 9 of B")
    expect(page.locator("small.assumed").first).to_have_text("assumed")


def test_counts_pasted_as_a_program_prints_them_fill_the_table(open_page: Open) -> None:
    page = open_page("/en/calculators/replica_ledger?counts=1,1;1,1")
    paste(cell(page, "counts", 0, 0), "tensor([[ 2.,  3.],\n        [ 8.,  0.]])")
    expect(page.locator("#replica_ledger-counts")).to_have_value("2.,3.;8.,0.")
    expect(page.locator("[data-status]")).to_have_text(re.compile("^$|belong"))
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_number_field_takes_letters_and_keeps_its_arrow_keys(open_page: Open) -> None:
    page = open_page(OWN)
    field = page.locator("#replica_ledger-a")
    field.fill("2k")
    expect(value(page, "rows.0.n")).to_have_attribute("data-value", "2000.0")
    assert float(slider(page, "a").input_value()) == 2000
    field.press("ArrowUp")
    expect(field).to_have_value("2001")
    expect(value(page, "rows.0.n")).to_have_attribute("data-value", "2001.0")
