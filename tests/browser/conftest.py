"""One Chromium and one server for all browser tests; a page as good as new, and an eye on its console, for each.

Playwright keeps an event loop running in the main thread while it is open, so it is closed with the last test of this
folder: fixtures here have the scope of the package.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.chromium import launched


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


class Watch:
    """What the console of a page complained of, and what its requests were."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def forget(self) -> None:
        self.complaints.clear()
        self.requests.clear()

    def forget_refusals(self) -> None:
        """A refused input is an answer of 422, which Chromium reports in the console whatever the page does."""
        self.complaints = [text for text in self.complaints if "status of 422" not in text]


@pytest.fixture(scope="module")
def kept_page(browser: Browser, server: Any) -> Iterator[Callable[..., Page]]:
    """Pages that the tests of a file share, each loaded once: for tests that only look, and leave nothing behind."""
    kept: dict[str, Page] = {}
    watches: list[Watch] = []

    def get(path: str, **options: Any) -> Page:
        key = f"{path} {options}"
        if key not in kept:
            settings = {"viewport": {"width": 1280, "height": 900}, "locale": "zh-CN", "base_url": server.url}
            kept[key] = browser.new_context(**{**settings, **options}).new_page()
            watches.append(Watch(kept[key]))
            kept[key].goto(path)
        return kept[key]

    yield get
    for page in kept.values():
        page.context.close()
    assert [text for watch in watches for text in watch.complaints] == []


LOOK: dict[str, Any] = {
    "viewport": {"width": 1280, "height": 900},
    "color_scheme": "light",
    "reduced_motion": "no-preference",
    "forced_colors": "none",
}
"""What a page may change while it is open, and how it is if a test does not say."""

EMPTY = "/en/calculators/replica_ledger/values"
"""The smallest document of the wiki: two bytes of JSON."""


@pytest.fixture(scope="package")
def left_pages() -> list[Page]:
    """Pages that no test looks at any more: a new one has a process of its own, which costs as much as a chapter."""
    return []


def leave(page: Page) -> None:
    """Nothing of a test stays for the next one but fonts, styles and scripts.

    A page of another origin, or none, would end the process that is to be used again.
    """
    for other in page.context.pages:
        if other != page:
            other.close()
    page.unroute_all()
    page.context.clear_permissions()
    page.goto(EMPTY)
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    vars(page)["watch"].forget()


@pytest.fixture
def open_page(
    browser: Browser, server: Any, left_pages: list[Page], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Page]]:
    """Opens pages, each as in a browser without history; at the end their consoles must be free of errors.

    `watch` of a page is reachable as `page.watch`; `base_url` may name another server. A page that an earlier test has
    left is taken again, but with other options than looks, when it is to be `cold`, and after a failure.
    """
    opened: list[tuple[Page, bool]] = []
    failures = request.session.testsfailed

    def open_one(path: str = "", *, base_url: str = "", cold: bool = False, **options: Any) -> Page:
        look = {**LOOK, **options}
        usual = look.keys() == LOOK.keys() and not base_url and not cold
        if usual and left_pages:
            page = left_pages.pop()
            page.set_viewport_size(look.pop("viewport"))
            page.emulate_media(media="null", **look)
        else:
            page = browser.new_context(**look, locale="zh-CN", base_url=base_url or server.url).new_page()
            page.set_default_timeout(15_000)
            vars(page)["watch"] = Watch(page)
        opened.append((page, usual))
        if path:
            page.goto(path)
        return page

    yield open_one
    complaints = [text for page, _ in opened for text in vars(page)["watch"].complaints]
    for page, usual in opened:
        if usual and request.session.testsfailed == failures:
            leave(page)
            left_pages.append(page)
        else:
            page.context.close()
    assert complaints == []
