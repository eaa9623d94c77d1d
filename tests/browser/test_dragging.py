"""Figures are inputs: their handles move the fields, by pointer and by keyboard."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

Open = Callable[..., Page]


def pull(page: Page, handle: str, right: float, down: float) -> None:
    page.locator(handle).first.scroll_into_view_if_needed()
    box = page.locator(handle).first.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for part in (0.3, 0.6, 1):
        page.mouse.move(x + part * right, y + part * down)
    page.mouse.up()


HANDLES = [
    ("clip_order", "", "microstep_grads", "3,4;-3,0"),
    ("clip_order", "", "max_norm", "1"),
    ("clip_ownership", "", "gradients", "24;32"),
    ("direction_map", "", "a", "2"),
    ("replica_ledger", "", "a", "2"),
    ("framework_recipe", "?counts=100;900", "counts", "100;900"),
    ("rl_weights", "", "lengths", "10+10;100+300"),
    ("objective_weights", "", "sequences", "4+2;8"),
    ("batch_noise", "", "lengths", "16,64,256"),
    ("pipeline_schedule", "?parts=3,5&counts=8,8", "counts", "8,8"),
    ("collectives", "", "values", "1,2;3,5"),
    ("no_sync_timeline", "", "gradients", "1,2,4;3,6,12"),
    ("local_updates", "", "theta0", "0"),
    ("schedule_clock", "", "update", "13"),
    ("update_rounding", "", "weight", "1"),
    ("update_rounding", "", "amax", "12,3,5,2"),
    ("ratio_fingerprint", "", "observed_norm", "1.26"),
    ("metric_ledger", "", "counts", "2;1"),
    ("loss_terms", "", "coefficient", "0.1"),
    ("loss_terms", "?penalty=6", "penalty", "6"),
    ("token_budget", "", "lengths", "900,350,1200,80,640,2300,410,150,760,520,300"),
    ("token_budget", "?prompts=200", "prompts", "200"),
    ("token_budget", "", "max_length", "1024"),
    ("mesh_ledger", "", "tp", "4"),
    ("info_nce", "", "q", "1;2"),
    ("info_nce", "?q=1,0.2;-0.5,1&d=0.8,0.4;0.3,0.9", "d", "0.8,0.4;0.3,0.9"),
    ("matrix_update", "", "gradient", "3,1;1,2;2,-1;0,1"),
    ("label_count", "", "lengths", "6 4,9;5+3,8"),
    ("label_count", "", "prompts", "0 0,3;0+0,2"),
    ("label_count", "", "max_length", "8"),
]
"""Instruments, the state, the field that a handle of a figure moves, and what it holds before."""


def test_every_handle_of_a_figure_moves_its_field_by_pointer_and_by_keys(open_page: Open) -> None:
    page = open_page()
    for name, state, field, before in HANDLES:
        page.goto(f"/en/calculators/{name}{state}")
        ways = f"[data-drag-x^='{field}'], [data-drag-x*='|{field} '], [data-drag-y^='{field}']"
        handle = f"#{name}-result .fig-grab:is({ways})"
        typed = page.locator(f"#{name}-{field}")
        expect(typed).to_have_value(before)
        pull(page, handle, 60, -40)
        dragged = typed.input_value()
        assert dragged != before, name
        expect(page.locator("[data-state=invalid]")).to_have_count(0)
        if field == "microstep_grads":  # the table that stands for the field shows the same
            cells = page.locator(f"#{name} .grid input")
            assert [cells.nth(i).input_value() for i in range(4)] == dragged.replace(";", ",").split(",")
        page.locator(handle).first.focus()
        page.keyboard.press("ArrowLeft")
        expect(typed).not_to_have_value(dragged)
        expect(page.locator(f"{handle}:focus")).to_have_count(1)  # drawn anew, and still in hand
        if field != "observed_norm":  # on a logarithmic axis a step back is rounded
            page.keyboard.press("ArrowRight")
            expect(typed).to_have_value(dragged)


def test_a_click_in_the_map_says_which_cell(open_page: Open) -> None:
    page = open_page("/en/calculators/direction_map")
    plane = page.locator("svg.plane")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    assert box
    unit = box["width"] / 360
    page.mouse.click(box["x"] + (40 + 312 * 20.5 / 33) * unit, box["y"] + (316 - 312 * 10.5 / 33) * unit)
    expect(page.locator("#direction_map-a")).to_have_value("20")
    expect(page.locator("#direction_map-b")).to_have_value("10")
    expect(page.locator("[data-verdict]")).to_contain_text("(20, 10)")


def test_a_finger_keeps_hold_while_the_figure_is_drawn_anew(open_page: Open) -> None:
    page = open_page("/en/calculators/direction_map", viewport={"width": 390, "height": 844}, has_touch=True)
    handle = page.locator("[data-drag-x]")
    handle.evaluate("(handle) => handle.scrollIntoView({ block: 'center' })")
    box = handle.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    finger = page.context.new_cdp_session(page)
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for a in ("4", "6", "8"):
        point = {"x": x + (int(a) - 2) * box["width"] / 26 * 312 / 33, "y": y}
        finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
        expect(page.locator("#direction_map-a")).to_have_value(a)
        expect(page.locator("[data-verdict]")).to_contain_text(f"({a}, 8)")
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
