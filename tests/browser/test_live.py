"""Panels alive in a browser: dragging, typing, keys, addresses, slow and dead servers, and no script at all."""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

CHAPTER = "/zh/parallel-correctness"
OWN = "/en/calculators/replica_ledger"
Open = Callable[..., Page]


def value(page: Page, path: str, panel: str = "replica_ledger") -> Locator:
    """The output with that dotted path."""
    return page.locator(f"#{panel}-result [data-field='{path}']").first


def exact(page: Page, path: str, panel: str = "replica_ledger") -> float:
    return float(value(page, path, panel).get_attribute("data-value") or "nan")


def has_value(page: Page, path: str, expected: str, panel: str = "replica_ledger") -> None:
    expect(value(page, path, panel)).to_have_attribute("data-value", expected)


def slider(page: Page, field: str, panel: str = "replica_ledger") -> Locator:
    return page.locator(f"[data-twin='{panel}-{field}']")


def drag(page: Page, handle: Locator, start: float, end: float, steps: int = 12, release: bool = True) -> None:
    """Take a slider at a fraction of its length and move it to another."""
    handle.scroll_into_view_if_needed()
    box = None
    while box != (box := handle.bounding_box()):  # what lies above is laid out when it comes near
        page.wait_for_timeout(50)
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=steps)
    if release:
        page.mouse.up()


def query_of(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    return found


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Waits for a fact; Playwright's own wait_for_function needs eval, which the policy of the pages forbids."""
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, f"still not so at {page.url}"
        page.wait_for_timeout(30)


def follows(page: Page, name: str, expected: str) -> None:
    """The address is written a moment after the change."""
    until(page, lambda: query_of(page).get(name) == expected)


# ---- dragging, typing, keys


def test_dragging_a_slider_moves_number_result_figure_and_address(open_page: Open) -> None:
    page = open_page(CHAPTER)
    figure = page.locator("#replica_ledger-result svg.figure").first
    before = figure.inner_html()
    has_value(page, "reference.grad", "0.4")
    drag(page, slider(page, "a"), 2 / 32, 0.5, release=False)
    number = page.locator("#replica_ledger-a")
    assert number.input_value() == slider(page, "a").input_value()  # mirrored while the hand is still down
    page.mouse.up()
    n = float(number.input_value())
    assert 12 <= n <= 20
    has_value(page, "rows.0.n", str(n))
    assert exact(page, "reference.grad") == pytest.approx((-2 * n + 8) / (n + 8), rel=1e-12)
    assert figure.inner_html() != before
    follows(page, "replica_ledger.a", number.input_value())


def test_an_address_is_restored_on_reload_and_on_the_way_back(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger-a").fill("5")
    follows(page, "a", "5")
    for come_again in (page.reload, lambda: (page.goto("/en/"), page.go_back())):
        come_again()
        assert page.locator("#replica_ledger-a").input_value() == "5"
        assert slider(page, "a").input_value() == "5"
        has_value(page, "rows.0.n", "5.0")
        assert query_of(page)["a"] == "5"


def test_the_way_back_across_an_anchor_restores_the_state_of_its_time(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.locator("#replica_ledger-a").fill("5")
    follows(page, "replica_ledger.a", "5")
    page.locator(".contents-side a").nth(2).click()
    page.locator("#replica_ledger-a").fill("9")
    follows(page, "replica_ledger.a", "9")
    page.go_back()
    expect(page.locator("#replica_ledger-a")).to_have_value("5")
    has_value(page, "rows.0.n", "5.0")


def test_typing_a_number_moves_the_slider_and_a_fraction_stays_as_typed(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger-a").fill("7")
    expect(slider(page, "a")).to_have_value("7")
    has_value(page, "rows.0.n", "7.0")
    page.goto(f"{OWN}?a=1%2F3")
    assert page.locator("#replica_ledger-a").input_value() == "1/3"
    page.locator("#replica_ledger-b").fill("4")
    follows(page, "b", "4")
    assert query_of(page)["a"] == "1/3"
    assert exact(page, "rows.0.n") == pytest.approx(1 / 3)


def test_a_switch_adds_the_replicated_gradient_and_takes_it_away_again(open_page: Open) -> None:
    page = open_page("/en/calculators/clip_ownership")
    switch, field = slider(page, "replicated", "clip_ownership"), page.locator("#clip_ownership-replicated")
    has_value(page, "global_norm", "5.0", "clip_ownership")
    switch.check()
    has_value(page, "global_norm", "13.0", "clip_ownership")
    field.fill("0")
    expect(switch).to_be_checked()
    switch.uncheck()
    has_value(page, "global_norm", "5.0", "clip_ownership")
    assert field.input_value() == ""
    switch.check()
    assert field.input_value() == "0"
    for shown, expected in (("loss_scale", "8.0"), ("lr", "0.1"), ("rows.0.param", "1.0")):
        has_value(page, shown, expected, "clip_ownership")  # beside the parameters that the step leads to


def test_a_logarithmic_slider_says_its_value_and_moves_its_number(open_page: Open) -> None:
    page = open_page("/zh/calculators/info_nce")
    handle, number = slider(page, "tau", "info_nce"), page.locator("#info_nce-tau")
    assert handle.get_attribute("aria-valuetext") == number.input_value() == "1"
    handle.focus()
    page.keyboard.press("ArrowRight")
    larger = number.input_value()
    assert float(larger) > 1
    assert handle.get_attribute("aria-valuetext") == larger
    follows(page, "tau", larger)
    page.keyboard.press("End")
    assert float(number.input_value()) == 100
    number.fill("0.01")
    expect(handle).to_have_value("0")
    assert handle.get_attribute("aria-valuetext") == "0.01"


def test_keys_step_a_slider_choose_a_scheme_and_open_details(open_page: Open) -> None:
    page = open_page(OWN)
    slider(page, "a").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    has_value(page, "rows.0.n", "5.0")
    page.keyboard.press("Home")
    expect(value(page, "current.grad")).to_contain_text("undefined")
    page.locator("#replica_ledger-scheme").focus()
    page.keyboard.press("Home")
    has_value(page, "current.grad", "1.0")
    page.locator("#replica_ledger details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#replica_ledger-lr").is_visible()
    page.keyboard.press("Tab")
    page.goto("/en/calculators/clip_ownership")
    page.locator("#clip_ownership-scheme input >> nth=0").focus()
    page.keyboard.press("ArrowDown")
    follows(page, "scheme", "per_rank")
    assert exact(page, "current.clipped_norm", "clip_ownership") == pytest.approx(2**0.5)


def test_enter_in_a_number_computes_without_leaving_the_page(open_page: Open) -> None:
    page = open_page(OWN)
    page.evaluate("window.same = true")
    page.locator("#replica_ledger-a").fill("6")
    page.locator("#replica_ledger-a").press("Enter")
    has_value(page, "rows.0.n", "6.0")
    assert page.evaluate("window.same")


def test_the_verdict_is_spoken_once_after_a_drag_and_not_at_every_step(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.evaluate(
        """() => {
            window.said = [];
            const spoken = document.querySelector("#replica_ledger-result [data-spoken]");
            const watch = new MutationObserver(() => said.push(spoken.textContent));
            watch.observe(spoken, {childList: true, characterData: true, subtree: true});
        }"""
    )
    drag(page, slider(page, "a"), 0.1, 0.9, steps=20)
    until(page, lambda: any(page.evaluate("said")))
    page.wait_for_timeout(500)
    said = [text for text in page.evaluate("said") if text]
    assert len(said) == 1
    assert said[0] == page.locator("#replica_ledger-result [data-verdict]").inner_text().strip()


def test_a_verdict_stands_on_the_page_once_also_after_a_change(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger-a").fill("5")
    page.locator("#replica_ledger-a").press("Tab")
    spoken = page.locator("#replica_ledger-result [data-spoken]")
    verdict = page.locator("#replica_ledger-result [data-verdict]")
    until(page, lambda: spoken.inner_text() == verdict.inner_text().strip() != "")
    assert page.locator("[data-status]").inner_text() == ""
    box = spoken.bounding_box()
    assert box is not None
    assert box["width"] <= 1


def test_an_emptied_number_leaves_its_slider_where_it_was(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger-a").fill("")
    expect(page.locator("#replica_ledger-a-error")).not_to_be_empty()
    assert slider(page, "a").input_value() == "2"
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_sliders_range_follows_what_was_typed_and_keys_step_on_from_there(open_page: Open) -> None:
    page = open_page(OWN)
    handle, number = slider(page, "a"), page.locator("#replica_ledger-a")
    number.fill("100")
    expect(handle).to_have_value("100")
    handle.press("ArrowLeft")
    expect(number).to_have_value("99")
    page.goto(f"{OWN}?a=1000")
    assert handle.input_value() == "1000"
    handle.press("ArrowRight")
    expect(number).to_have_value("1001")
    page.goto("/en/calculators/info_nce?tau=500")
    handle, number = slider(page, "tau", "info_nce"), page.locator("#info_nce-tau")
    handle.press("ArrowLeft")
    expect(number).to_have_value("400")
    page.goto("/en/calculators/info_nce")
    number.fill("500")
    handle.press("ArrowRight")
    expect(number).to_have_value("600")


def test_what_was_opened_inside_a_result_stays_open(open_page: Open) -> None:
    page = open_page(OWN)
    details = page.locator("#replica_ledger-result details")
    details.locator("summary").click()
    page.locator("#replica_ledger-a").fill("5")
    has_value(page, "rows.0.n", "5.0")
    assert details.get_attribute("open") is not None


# ---- several panels, links, languages, tabs


def test_panels_of_a_chapter_keep_each_others_state(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.locator("#replica_ledger-a").fill("5")
    page.locator("#info_nce-tau").fill("0.5")
    page.locator("#clip_ownership-max_norm").fill("2")
    for name, expected in (("replica_ledger.a", "5"), ("info_nce.tau", "0.5"), ("clip_ownership.max_norm", "2")):
        follows(page, name, expected)
    page.reload()
    has_value(page, "rows.0.n", "5.0")
    assert page.locator("#info_nce-tau").input_value() == "0.5"
    assert exact(page, "coefficient", "clip_ownership") == pytest.approx(0.4)


def test_the_links_below_a_panel_follow_its_state(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.locator("#replica_ledger-a").fill("5")
    has_value(page, "rows.0.n", "5.0")
    foot = page.locator("[data-panel=replica_ledger] .panel-foot")
    shown = page.request.get(foot.get_by_text("JSON").get_attribute("href") or "").json()
    assert shown["rows"][0]["n"] == 5
    table = page.request.get(foot.get_by_text("CSV").get_attribute("href") or "")
    assert table.headers["content-type"].startswith("text/csv")
    foot.locator("a[data-state]").last.click()
    page.wait_for_url("**/zh/calculators/replica_ledger?**")
    has_value(page, "rows.0.n", "5.0")


def test_a_copied_link_opens_the_same_state_at_the_same_panel(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#replica_ledger-a").fill("5")
    page.locator("[data-panel=replica_ledger] [data-copy]").click()
    status = page.locator("#replica_ledger-result [data-status]")
    expect(status).to_have_text("已复制。")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.endswith("#replica_ledger")
    other = open_page(link, reduced_motion="reduce")
    assert other.locator("#replica_ledger-a").input_value() == "5"
    assert other.locator("#replica_ledger").bounding_box()["y"] < 900  # type: ignore[index]


def test_without_a_clipboard_the_link_is_shown(open_page: Open) -> None:
    page = open_page(OWN)
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new DOMException('no')); }")
    page.locator("[data-copy]").click()
    expect(page.locator("[data-status]")).to_have_text(
        re.compile(r"^http://127\.0\.0\.1:\d+/en/calculators/replica_ledger")
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_the_language_switch_keeps_state_and_section(open_page: Open, width: int) -> None:
    """From the middle of a chapter, where the head of the page stays at hand."""
    page = open_page(CHAPTER, reduced_motion="reduce", viewport={"width": width, "height": 844})
    page.locator("#replica_ledger-a").fill("5")
    follows(page, "replica_ledger.a", "5")
    heading = page.locator(".prose h2[id]").nth(3)
    section = heading.get_attribute("id") or ""
    heading.evaluate("heading => heading.scrollIntoView()")
    page.wait_for_timeout(300)
    box = page.locator("a[data-alternate]:visible").last.bounding_box()
    assert box
    assert 0 <= box["y"] < 100  # at hand without scrolling, so the mouse goes there as a reader's would
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url("**/en/parallel-correctness?**")
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#replica_ledger-a").input_value() == "5"
    assert page.url.endswith(f"#{section}")
    assert abs(page.locator(f"#{section}").bounding_box()["y"]) < 300  # type: ignore[index]


def test_two_tabs_do_not_disturb_each_other(open_page: Open) -> None:
    first = open_page(OWN)
    second = first.context.new_page()
    second.goto(OWN)
    first.locator("#replica_ledger-a").fill("5")
    second.locator("#replica_ledger-a").fill("6")
    follows(first, "a", "5")
    follows(second, "a", "6")
    has_value(first, "rows.0.n", "5.0")
    has_value(second, "rows.0.n", "6.0")
    first.reload()
    has_value(first, "rows.0.n", "5.0")


# ---- wrong inputs


def test_a_wrong_number_is_explained_beside_its_field_and_nothing_is_lost(open_page: Open) -> None:
    page = open_page(CHAPTER)
    page.locator("#replica_ledger-b").fill("6")
    has_value(page, "rows.1.n", "6.0")
    page.locator("#replica_ledger-a").fill("-1")
    message = page.locator("#replica_ledger-a-error")
    expect(message).to_have_text("不能小于 0")
    assert message.is_visible()
    field = page.locator("#replica_ledger-a")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert "replica_ledger-a-error" in (field.get_attribute("aria-describedby") or "")
    expect(page.locator("#replica_ledger-result")).to_have_attribute("data-state", "invalid")
    assert (field.input_value(), page.locator("#replica_ledger-b").input_value()) == ("-1", "6")
    has_value(page, "rows.1.n", "6.0")  # the last valid state is still there
    field.fill("3")
    has_value(page, "rows.0.n", "3.0")
    expect(message).to_have_text("")
    assert field.get_attribute("aria-invalid") is None
    assert page.locator("#replica_ledger-result").get_attribute("data-state") is None
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_wrong_matrix_says_which_row_and_recovers(open_page: Open) -> None:
    page = open_page("/en/calculators/clip_ownership")
    rows = page.locator("#clip_ownership-gradients")
    page.get_by_role("button", name="As text: Scaled gradients").click()
    rows.fill("3;4;x")
    message = page.locator("#clip_ownership-gradients-error")
    expect(message).to_contain_text("row 3")
    expect(message).to_contain_text("x")
    rows.fill("24;32;0")
    has_value(page, "global_norm", "5.0", "clip_ownership")
    expect(message).to_have_text("")
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_an_error_in_a_folded_part_of_the_form_opens_it(open_page: Open) -> None:
    page = open_page(OWN)
    summary = page.locator("#replica_ledger details summary").first
    summary.click()
    page.locator("#replica_ledger-lr").fill("")
    summary.click()
    page.locator("#replica_ledger-a").fill("4")
    expect(page.locator("#replica_ledger-lr-error")).to_be_visible()
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_page_that_was_opened_with_a_wrong_state_comes_alive_when_it_is_put_right(open_page: Open) -> None:
    page = open_page(f"{OWN}?a=-1")
    assert page.locator("#replica_ledger-a").get_attribute("aria-invalid") == "true"
    page.locator("#replica_ledger-a").fill("2")
    has_value(page, "reference.grad", "0.4")
    expect(page.locator("#replica_ledger-a-error")).to_have_text("")
    expect(page.locator("[data-errors]")).to_be_empty()
    page.watch.forget_refusals()  # type: ignore[attr-defined]


def test_a_matrix_too_long_for_an_address_is_computed_all_the_same(open_page: Open) -> None:
    page = open_page(OWN)
    page.locator("#replica_ledger details summary").nth(1).click()
    rows = "\n".join(["1,2,3,4,5,6,7,8"] * 200)
    page.locator("#replica_ledger-gradients").fill(rows)
    page.locator("#replica_ledger-counts").fill(rows)
    has_value(page, "N", "7200.0")
    expect(page.locator("[data-status]")).to_contain_text("too long")
    assert len(page.url) < 8000
    page.watch.forget_refusals()  # type: ignore[attr-defined]


# ---- slow and dead servers


def test_a_slow_server_has_one_request_at_a_time_and_ends_on_the_newest_state(open_page: Open) -> None:
    page = open_page(OWN)
    held: list[Route] = []
    page.route("**/result?**", lambda route: held.append(route))
    number = page.locator("#replica_ledger-a")
    for n in ("3", "4", "5", "6", "7"):
        number.fill(n)
    page.wait_for_timeout(600)
    assert len(held) == 1
    assert "a=3" in held[0].request.url
    expect(page.locator("[data-status]")).to_have_text("Waiting for the server …")
    held[0].continue_()
    until(page, lambda: len(held) == 2)  # the states between were passed over
    assert "a=7" in held[1].request.url
    number.fill("8")
    held[1].continue_()
    until(page, lambda: len(held) == 3)
    held[2].continue_()
    has_value(page, "rows.0.n", "8.0")
    follows(page, "a", "8")
    expect(page.locator("[data-status]")).not_to_have_text("Waiting for the server …")


def test_dragging_never_has_two_requests_on_their_way(open_page: Open) -> None:
    page = open_page(OWN)
    flying = {"now": 0, "most": 0, "all": 0}

    def begun(request: Any) -> None:
        if "/result?" in request.url:
            flying["now"] += 1
            flying["all"] += 1
            flying["most"] = max(flying["most"], flying["now"])

    def ended(request: Any) -> None:
        if "/result?" in request.url:
            flying["now"] -= 1

    page.on("request", begun)
    page.on("requestfinished", ended)
    page.on("requestfailed", ended)
    drag(page, slider(page, "a"), 0.05, 0.95, steps=40)
    n = page.locator("#replica_ledger-a").input_value()
    has_value(page, "rows.0.n", f"{float(n)}")
    assert flying["most"] == 1
    assert flying["all"] > 2


def test_an_answer_that_comes_too_late_never_replaces_a_newer_one(open_page: Open) -> None:
    page = open_page(OWN)
    number = page.locator("#replica_ledger-a")
    number.fill("3")
    has_value(page, "rows.0.n", "3.0")
    held: list[Route] = []
    page.route("**/result?**a=4&**", lambda route: held.append(route))
    number.fill("4")
    until(page, lambda: len(held) == 1)
    number.fill("3")  # at hand already
    has_value(page, "rows.0.n", "3.0")
    held[0].continue_()
    page.wait_for_timeout(400)
    has_value(page, "rows.0.n", "3.0")
    follows(page, "a", "3")


@pytest.mark.parametrize("failure", ["abort", "500", "garbage"])
def test_a_failing_answer_is_said_and_overcome(open_page: Open, failure: str) -> None:
    page = open_page(OWN)

    def fail(route: Route) -> None:
        if failure == "abort":
            route.abort()
        else:
            route.fulfill(status=500 if failure == "500" else 404, body="<h1>proxy</h1>")

    page.route("**/result?**", fail)
    page.locator("#replica_ledger-a").fill("5")
    expect(page.locator("[data-status]")).to_contain_text("does not answer")
    has_value(page, "rows.0.n", "2.0")
    assert page.locator("h1").all_inner_texts() != ["proxy"]
    page.unroute("**/result?**")
    page.locator("#replica_ledger-a").fill("6")
    has_value(page, "rows.0.n", "6.0")
    expect(page.locator("[data-status]")).not_to_contain_text("does not answer")
    page.watch.complaints = [c for c in page.watch.complaints if "Failed to load resource" not in c]  # type: ignore[attr-defined]


def test_a_stopped_server_is_waited_for_and_a_dead_one_is_said_until_it_is_back(
    open_page: Open, start_server: Callable[..., Any]
) -> None:
    running = start_server()
    port = running.url.rpartition(":")[2]
    page = open_page(OWN, base_url=running.url)
    status = page.locator("[data-status]")
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        page.locator("#replica_ledger-a").fill("5")
        expect(status).to_have_text("Waiting for the server …")
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    has_value(page, "rows.0.n", "5.0")
    expect(status).not_to_have_text("Waiting for the server …")

    running.process.kill()
    running.process.wait(10)
    page.locator("#replica_ledger-a").fill("6")
    expect(status).to_contain_text("does not answer")
    has_value(page, "rows.0.n", "5.0")
    assert page.locator("#replica_ledger-a").input_value() == "6"

    start_server("--port", port)
    has_value(page, "rows.0.n", "6.0")  # asked again by itself
    page.locator("#replica_ledger-a").fill("7")
    has_value(page, "rows.0.n", "7.0")
    expect(status).not_to_contain_text("does not answer")
    page.watch.complaints = [c for c in page.watch.complaints if "Failed to load resource" not in c]  # type: ignore[attr-defined]


# ---- without a script


def test_without_a_script_a_chapters_form_works_and_keeps_the_other_panels(open_page: Open) -> None:
    page = open_page(f"{CHAPTER}?info_nce.tau=0.5", java_script_enabled=False)
    assert not slider(page, "a").is_visible()
    assert not page.locator("[data-panel=replica_ledger] [data-copy]").is_visible()
    page.locator("#replica_ledger-a").fill("5")
    page.locator("#replica_ledger button[type=submit]").first.click()
    assert page.url.endswith("#replica_ledger")
    has_value(page, "rows.0.n", "5.0")
    assert page.locator("#info_nce-tau").input_value() == "0.5"
    page.locator("#info_nce-tau").fill("2")
    page.locator("#info_nce button[type=submit]").first.click()
    assert page.locator("#replica_ledger-a").input_value() == "5"
    assert page.locator("#info_nce-tau").input_value() == "2"


@pytest.mark.parametrize("button", [0, 1], ids=["GET", "POST"])
def test_without_a_script_a_calculators_own_page_works(open_page: Open, button: int) -> None:
    page = open_page(OWN, java_script_enabled=False)
    page.locator("#replica_ledger-a").fill("5")
    page.locator("#replica_ledger-scheme").select_option("P_over_N_then_ddp_mean")
    page.locator("#replica_ledger details summary").nth(1).click()  # where there is something long to send
    page.locator("#replica_ledger button[type=submit]").nth(button).click()
    has_value(page, "rows.0.n", "5.0")
    assert page.locator("#replica_ledger-scheme").input_value() == "P_over_N_then_ddp_mean"
    assert exact(page, "current.grad") == exact(page, "reference.grad")
    assert ("a=5" in page.url) == (button == 0)


def test_without_a_script_a_wrong_input_is_explained_and_put_right(open_page: Open) -> None:
    page = open_page(OWN, java_script_enabled=False)
    page.locator("#replica_ledger-b").fill("6")
    page.locator("#replica_ledger-a").fill("-1")
    page.locator("#replica_ledger button[type=submit]").first.click()
    assert page.locator("#replica_ledger-a-error").inner_text() == "must be 0 or more"
    assert page.locator("#replica_ledger-a").input_value() == "-1"
    assert page.locator("#replica_ledger-b").input_value() == "6"
    page.locator("#replica_ledger-a").fill("1")
    page.locator("#replica_ledger button[type=submit]").first.click()
    has_value(page, "rows.0.n", "1.0")
    has_value(page, "rows.1.n", "6.0")
    page.watch.complaints = []  # type: ignore[attr-defined]


# ---- what a first view costs


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_first_view_of_chapter_20_is_small_and_all_from_one_host(open_page: Open, server: Any, lang: str) -> None:
    page = open_page(cold=True)
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: dict[str, float] = {}
    addresses: dict[str, str] = {}
    session.on("Network.responseReceived", lambda e: addresses.update({e["requestId"]: e["response"]["url"]}))
    session.on("Network.loadingFinished", lambda e: sizes.update({e["requestId"]: e["encodedDataLength"]}))
    page.goto(f"/{lang}/parallel-correctness", wait_until="networkidle")
    page.evaluate("document.fonts.ready")
    received = {addresses[key]: sizes.get(key, 0.0) for key in addresses}
    assert all(address.startswith((server.url, "data:")) for address in page.watch.requests)  # type: ignore[attr-defined]
    assert len([a for a in page.watch.requests if not a.startswith("data:")]) <= 12  # type: ignore[attr-defined]
    without_fonts = sum(size for address, size in received.items() if "/fonts/" not in address)
    assert without_fonts <= 120_000, received
    assert sum(received.values()) <= 350_000, received
    assert any("/fonts/" in address for address in received)  # formulas have their font
