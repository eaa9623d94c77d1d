"""One symbol is lit wherever it stands: by pointer, by focus, by the arrows in a formula."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

Open = Callable[..., Page]


def test_a_symbol_lights_in_formula_field_figure_table_and_code(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness")
    page.locator("#replica_ledger-a").focus()
    for place in ("math .lit", ".field.lit", ".figure .lit", "td.lit"):
        assert page.locator(place).count() > 0, place
    names = page.locator("math .lit").evaluate_all("(all) => [...new Set(all.map((one) => one.textContent))]")
    assert {"nr", "nrk"} >= {name.replace(",", "") for name in names} != set()
    assert page.evaluate("CSS.highlights.get('symbol').size") > 0
    page.locator("#replica_ledger-a").fill("7")  # what is drawn anew is lit anew
    expect(page.locator("[data-field='rows.0.n']")).to_have_text("7")
    expect(page.locator("td.lit").first).to_be_visible()
    page.locator("#replica_ledger-a").blur()
    expect(page.locator(".lit")).to_have_count(0)


def test_the_arrows_walk_through_a_formula_and_light_each_symbol(open_page: Open) -> None:
    page = open_page("/en/parallel-correctness")
    formula = page.locator(".eq", has_text="κ").first
    formula.focus()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
        if formula.locator(".lit").first.text_content() == "κ":
            break
    coefficient = page.locator("[data-panel=clip_ownership] td.lit > [data-field$=coefficient]")
    expect(coefficient.first).to_be_attached()
    page.keyboard.press("ArrowLeft")
    expect(coefficient).to_have_count(0)
