"""Chapter 20 in a new browser against a plain page that tells the same, with two of its panels computed in the browser
(`plain.html`) above the chapter's words and formulas: first contentful paint, results on the page; and what the first
view weighs without fonts. Two lesser pages, without formulas and with the panels alone, say what the content costs.
Keys are `slider.py`'s matter."""

import os
import re
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


def words(html: str) -> str:
    """The text alone: headings, paragraphs, lists, tables."""
    return re.sub(r"<(?!/?(?:h1|h2|h3|p|ul|ol|li|table|tr|th|td)\b)[^>]*>", "", html)


def words_and_formulas(html: str) -> str:
    """The text with its MathML."""
    parts = re.split(r"(<math.*?</math>)", html, flags=re.DOTALL)
    return "".join(part if part.startswith("<math") else words(part) for part in parts)


@contextmanager
def plain(html: str) -> Iterator[str]:
    """The address of a page that is sent as a chapter is, compressed."""
    port = free_port()
    with tempfile.NamedTemporaryFile(suffix=".html") as body:
        body.write(brotli.compress(html.encode()))
        body.flush()
        os.environ |= {"BENCHMARK_BODY": body.name, "BENCHMARK_ANSWER": "{}"}
        with process("-m", "baselines", "pages", str(port), port=port, path="/"):
            yield f"http://127.0.0.1:{port}/"


def main() -> None:
    port = free_port()
    chapter, panels = f"http://127.0.0.1:{port}{CHAPTER}", PLAIN.read_text("utf-8")
    with process("-m", "app", "--port", str(port), port=port), ExitStack() as stack:
        html = urllib.request.urlopen(chapter).read().decode()
        main = html[html.index("<main") :]
        bodies = {
            "plain page": panels + words_and_formulas(main),
            "the same without formulas": panels + words(main),
            "its panels alone": panels,
        }
        addresses = {"chapter": chapter} | {name: stack.enter_context(plain(body)) for name, body in bodies.items()}
        browser = launched(stack.enter_context(sync_playwright()))
        times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in addresses}
        for _ in range(ROUNDS):  # in turn, so that all meet the same noise
            for name, address in addresses.items():
                for what, milliseconds in opened(browser, address).items():
                    times[name][what].append(milliseconds)
        size = weight(browser, chapter)
        browser.close()
    for what, goal in GOALS.items():
        ours, *others = (median(times[name][what]) for name in addresses)
        print(f"{what}: {ours:.1f} ms (goal {goal} × a plain page)")
        for name, other in zip(list(addresses)[1:], others, strict=True):
            print(f"  ÷ {name} {other:.1f} ms = {ours / other:.2f}")
    print(f"first view without fonts: {size / 1000:.0f} kB (goal {FIRST_VIEW / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
