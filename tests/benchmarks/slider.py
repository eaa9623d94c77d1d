"""From a slider's input to the frame that shows its result: the live panel against the same panel computed purely in
the browser (the same page and script, its requests answered inside the page by arithmetic in JavaScript); and the live
panel with a window of 64 ranks × 32 microsteps, whose requests are forms of 20 kB."""

import shutil
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from serving import free_port, process

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
STEPS = 60
VALUES = 32
LABELS = {"server": "server", "browser": "pure browser", "window": "server, 64 × 32 window"}
RANKS, MICROSTEPS = 64, 32
A, ETA = "[data-twin=replica_ledger-a]", "[data-twin=replica_ledger-lr]"

CLOCK = """
(() => {
  const waiting = [];
  const number = (field) => Number(document.querySelector(`[data-field="${field}"]`)?.dataset.value);
  const sliders = {
    "replica_ledger-a": () => number("rows.0.n"),
    "replica_ledger-lr": () => Math.round(-100 * number("reference.theta_after_sgd") / number("reference.grad")) / 100,
  };
  window.shown = [];
  window.painted = [];
  addEventListener("input", (event) => {
    const {type, value, dataset} = event.target;
    if (type === "range") waiting.push([Number(value), performance.now(), sliders[dataset.twin]]);
  }, true);
  new MutationObserver(() => {
    const seen = waiting.map(([, , shown]) => shown());
    requestAnimationFrame(() => setTimeout(() => {
      const now = performance.now();
      window.painted.push(now);
      const at = waiting.findLastIndex(([wanted], i) => wanted === seen[i]);
      if (at >= 0) window.shown.push(now - waiting.splice(0, at + 1)[at][1]);
    }));
  }).observe(document, {subtree: true, childList: true});
})();
"""

IN_THE_BROWSER = """
(() => {
  const real = window.fetch;
  let template = null;
  const shown = (x) => String(Number(x.toPrecision(6))).replace("-", "\\u2212");
  window.fetch = async (address, options) => {
    const url = new URL(address, location.href);
    if (!url.pathname.endsWith("/result")) return real(address, options);
    template ??= document.querySelector("[data-body]").innerHTML;
    const a = Number(url.searchParams.get("a")), b = Number(url.searchParams.get("b"));
    const n = a + b, right = (-2 * a + b) / n, current = (-2 + 1) / 2;
    const values = {
      "reference.grad": right, "current.grad": current, "rows.0.n": a, "rows.1.n": b, N: n,
      "rows.0.gradient_sum": -2 * a, "rows.1.gradient_sum": b, "rows.0.weight": a / n, "rows.1.weight": b / n,
      "current.theta_after_sgd": -0.1 * current, "reference.theta_after_sgd": -0.1 * right,
    };
    const html = template.replace(/data-field="([^"]+)" data-value="[^"]*" value="[^"]*">[^<]*</g, (all, field) =>
      !(field in values) ? all
        : `data-field="${field}" data-value="${values[field]}" value="${values[field]}">${shown(values[field])}<`);
    return new Response(html, {status: 200, headers: {"content-type": "text/html"}});
  };
})();
"""


def keys(page: Page, slider: str) -> None:
    """Arrow presses, as fast as a held key repeats."""
    page.focus(slider)
    for step in range(STEPS):
        page.keyboard.press("ArrowRight" if step % 60 < 30 else "ArrowLeft")
        time.sleep(0.033)


def drag(page: Page, slider: str) -> None:
    """Drags to the end and back: every move leads to the next value, as fast as the browser takes them."""
    handle = page.locator(slider)
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 4, y)
    page.mouse.down()
    for i in range(4 * VALUES):
        part = (i % (2 * VALUES)) / VALUES
        page.mouse.move(box["x"] + 4 + (part if part <= 1 else 2 - part) * (box["width"] - 8), y)
    page.mouse.up()


Figure = tuple[list[float], float]
"""Latencies in ms, and painted updates a second while it lasted."""


def measure(page: Page, act: Callable[[Page, str], None], slider: str) -> Figure:
    page.evaluate("window.shown.length = window.painted.length = 0")
    act(page, slider)
    page.wait_for_timeout(400)
    painted = page.evaluate("window.painted")
    return page.evaluate("window.shown"), (len(painted) - 1) / (painted[-1] - painted[0]) * 1000


def open_window(page: Page) -> None:
    """Counts and gradients of a large window, as a reader would paste them."""
    rows = [[(i * 7 + k * 3) % 97 + 1 for k in range(MICROSTEPS)] for i in range(RANKS)]
    texts = {
        "counts": ";".join(",".join(map(str, row)) for row in rows),
        "gradients": ";".join(",".join(str(n % 13 / 8 - 0.5) for n in row) for row in rows),
    }
    page.evaluate(
        """texts => {
            for (const details of document.querySelectorAll("form details")) details.open = true;
            for (const [name, text] of Object.entries(texts)) {
                const area = document.getElementById(`replica_ledger-${name}`);
                area.value = text;
                area.dispatchEvent(new Event("input", {bubbles: true}));
            }
        }""",
        texts,
    )
    page.wait_for_selector(f'[data-field="N"][data-value="{float(sum(map(sum, rows)))}"]')


def launched(playwright: Playwright) -> Browser:
    """A Chromium; headless where there is one, for the windows of others take part in the race."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        sys.exit("this benchmark needs a Chromium (apt-get install chromium-headless-shell)")
    return playwright.chromium.launch(executable_path=found, args=FLAGS)


def main() -> None:
    port = free_port()
    with process("-m", "app", "--port", str(port), port=port), sync_playwright() as playwright:
        browser = launched(playwright)
        figures: dict[tuple[str, str], Figure] = {}
        for name, scripts in (("server", [CLOCK]), ("browser", [CLOCK, IN_THE_BROWSER])):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            for script in scripts:
                page.add_init_script(script)
            page.goto(f"http://127.0.0.1:{port}/en/calculators/replica_ledger?a=1", wait_until="networkidle")
            for act in (keys, drag):
                measure(page, act, A)
                figures[name, act.__name__] = measure(page, act, A)
            page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(CLOCK)
        page.goto(f"http://127.0.0.1:{port}/en/calculators/replica_ledger", wait_until="networkidle")
        open_window(page)
        for act in (keys, drag):
            measure(page, act, ETA)
            figures["window", act.__name__] = measure(page, act, ETA)
        browser.close()
    for name_of_act in ("keys", "drag"):
        p50, p95 = {}, {}
        for name in ("server", "browser", "window"):
            latencies, rate = figures[name, name_of_act]
            p50[name], p95[name] = median(latencies), quantiles(latencies, n=20)[18]
            figure = f"p50 {p50[name]:.1f} ms, p95 {p95[name]:.1f} ms, {rate:.0f} painted updates/s"
            print(f"{name_of_act}, {LABELS[name]}: {figure}")
        for name, per in (("p50", p50), ("p95", p95)):
            ratio, more = per["server"] / per["browser"], per["server"] - per["browser"]
            print(f"{name_of_act}, server ÷ pure browser, {name}: {ratio:.2f} ({more:+.1f} ms)")


if __name__ == "__main__":
    main()
