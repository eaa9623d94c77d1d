"""One Chromium and one server for all browser tests; a page of its own, and an eye on its console, for each.

Playwright keeps an event loop running in the main thread while it is open, so it is closed with the last test of this
folder: fixtures here have the scope of the package.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

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


@pytest.fixture
def open_page(browser: Browser, server: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages, each in a browser without history; at the end their consoles must be free of errors.

    `watch` of a page is reachable as `page.watch`; `base_url` may name another server.
    """
    opened: list[tuple[BrowserContext, Watch]] = []

    def open_one(path: str = "", *, base_url: str = "", **options: Any) -> Page:
        settings = {"viewport": {"width": 1280, "height": 900}, "locale": "zh-CN", "base_url": base_url or server.url}
        context = browser.new_context(**{**settings, **options})
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.watch = Watch(page)  # type: ignore[attr-defined]
        opened.append((context, page.watch))  # type: ignore[attr-defined]
        if path:
            page.goto(path)
        return page

    yield open_one
    complaints = [text for _, watch in opened for text in watch.complaints]
    for context, _ in opened:
        context.close()
    assert complaints == []
