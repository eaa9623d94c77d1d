"""The answer on the shelf: drag or type, read one sentence, choose a framework, send the link."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_live import drag, follows, query_of, until

Open = Callable[..., Page]


def radii(page: Page) -> list[float]:
    found: list[float] = page.locator(".fig-disc").evaluate_all(
        "dots => dots.map(dot => Number(dot.getAttribute('r')))"
    )
    return found


def test_dragging_the_boundary_swells_the_dots_and_says_how_much_a_token_counts(open_page: Open) -> None:
    page = open_page("/en/")
    expect(page.locator("[data-verdict]")).to_have_text("A token on card A counts as much as 9 on card B.")
    before = radii(page)
    drag(page, page.locator("[data-boundary]"), 0.1, 0.75)
    until(page, lambda: radii(page) != before)
    a, b = (int(page.locator(f"#first-{card}").input_value()) for card in "ab")
    assert a + b == 1000
    assert 700 < a < 800
    expect(page.locator("[data-verdict]")).to_contain_text("A token on card B counts as much as")
    follows(page, "a", str(a))
    page.reload()
    assert page.locator("#first-b").input_value() == str(b)
    expect(page.locator("[data-verdict]")).to_contain_text("A token on card B")
    page.locator("a[data-alternate]").click()
    page.wait_for_url("**/zh/?**")
    assert page.locator("#first-a").input_value() == str(a)


def test_typed_counts_and_a_framework_say_which_line_to_change(open_page: Open) -> None:
    page = open_page("/en/")
    page.locator("#first-a").fill("300")
    expect(page.locator("[data-verdict]")).to_have_text("A token on card A counts as much as 3 on card B.")
    assert float(page.locator("[data-boundary]").input_value()) == 25
    expect(page.locator(".first-fix code")).to_have_text("loss = loss * n * P / N")
    page.locator("#first-framework").select_option("transformers/default")
    expect(page.locator("[data-verdict]")).to_contain_text("Every token counts the same")
    expect(page.locator(".first-fix")).to_contain_text("no line to change")
    assert page.locator(".first-fix code").count() == 0
    follows(page, "framework", "transformers/default")


def test_a_wrong_count_is_explained_and_the_figure_stays(open_page: Open) -> None:
    page = open_page("/zh/")
    page.locator("#first-a").fill("-3")
    expect(page.locator("#first-a-error")).not_to_be_empty()
    assert page.locator(".fig-disc").count() > 100
    page.locator("#first-a").fill("900")
    expect(page.locator("[data-verdict]")).to_contain_text("每个 token 算得一样多")
    page.watch.forget_refusals()  # type: ignore[attr-defined]


@pytest.mark.parametrize("typed", ["900", "x"])
def test_without_a_script_it_is_a_form(open_page: Open, typed: str) -> None:
    page = open_page("/en/", java_script_enabled=False)
    assert not page.locator("[data-boundary]").is_visible()
    page.locator("#first-b").fill(typed) if typed != "x" else page.goto("/en/?a=x")
    if typed == "x":
        assert "is not a number" in page.locator("#first-a-error").inner_text()
        page.locator("#first-a").fill("450")
    page.locator("#first button[type=submit]").click()
    expect(page.locator("[data-verdict]")).to_contain_text(re.compile("as much as (9|2) on card B"))
    assert query_of(page)["framework"] == "torch_ddp/default"
    page.watch.complaints = []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_answer_is_within_the_first_screen(open_page: Open, lang: str, width: int, height: int) -> None:
    page = open_page(f"/{lang}/", viewport={"width": width, "height": height})
    for part in ("#first-a", "#first-b", "[data-boundary]", "[data-verdict]", ".fig-disc >> nth=0"):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < height, part


def test_the_first_view_of_the_shelf_is_small(open_page: Open) -> None:
    page = open_page(cold=True)
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto("/en/", wait_until="networkidle")
    assert 5_000 < sum(sizes) <= 120_000
