"""Chapter 20 in a new browser against a plain page with two of its panels computed in the browser (`plain.html`): first
contentful paint, results on the page; and what the first view weighs without fonts. Keys are `slider.py`'s matter."""

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import brotli
from playwright.sync_api import Browser, Response, sync_playwright
from serving import CHAPTER, free_port, process
from slider import launched

PLAIN = Path(__file__).parent / "plain.html"
ROUNDS = int(os.environ.get("ROUNDS", "9"))
GOALS = {"first contentful paint": 1.25, "results on the page": 1.5}
FIRST_VIEW = 120_000
"""Bytes of the chapter with its styles and scripts, as sent, without fonts."""

SEEN = """
new MutationObserver((_, observer) => {
  if (document.querySelector('[data-field="reference.grad"]')?.textContent.trim()) {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.seen = performance.now(); }));
  }
}).observe(document, {subtree: true, childList: true});
"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def opened(browser: Browser, address: str) -> dict[str, float]:
    """Milliseconds, in a browser context that has nothing cached."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(SEEN)
    page.goto(address, wait_until="load")
    page.wait_for_function(f"window.seen && {PAINTED}")
    paint, seen = page.evaluate(f"[{PAINTED}, window.seen]")
    context.close()
    return {"first contentful paint": paint, "results on the page": seen}


def weight(browser: Browser, address: str) -> int:
    """Bytes that a first visit is sent, without fonts."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(address, wait_until="networkidle")
    sizes = [one.request.sizes()["responseBodySize"] for one in answers if "/fonts/" not in one.url]
    context.close()
    return sum(sizes)


def main() -> None:
    ours, plain = free_port(), free_port()
    with tempfile.NamedTemporaryFile(suffix=".html") as body:
        body.write(brotli.compress(PLAIN.read_bytes()))
        body.flush()
        os.environ |= {"BENCHMARK_BODY": body.name, "BENCHMARK_ANSWER": "{}"}
        with (
            process("-m", "app", "--port", str(ours), port=ours),
            process("-m", "baselines", "pages", str(plain), port=plain, path="/"),
            sync_playwright() as playwright,
        ):
            browser = launched(playwright)
            addresses = {"chapter": f"http://127.0.0.1:{ours}{CHAPTER}", "plain": f"http://127.0.0.1:{plain}/"}
            times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in addresses}
            for _ in range(ROUNDS):  # in turn, so that both meet the same noise
                for name, address in addresses.items():
                    for what, milliseconds in opened(browser, address).items():
                        times[name][what].append(milliseconds)
            size = weight(browser, addresses["chapter"])
            browser.close()
    for what, goal in GOALS.items():
        chapter, baseline = median(times["chapter"][what]), median(times["plain"][what])
        print(f"{what}: {chapter:.1f} ms ÷ plain page {baseline:.1f} ms = {chapter / baseline:.2f} (goal {goal})")
    print(f"first view without fonts: {size / 1000:.0f} kB (goal {FIRST_VIEW / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
