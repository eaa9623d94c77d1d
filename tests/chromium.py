"""The Chromium of the tests: a headless one, which opens a page for a third of the work of one with a window, if it is
there."""

import shutil

import pytest
from playwright.sync_api import Browser, Playwright

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--js-flags=--no-opt",  # pages live too short to earn back what the last of the compilers costs
)


def launched(playwright: Playwright) -> Browser:
    """A browser, which the caller closes; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        pytest.skip("no Chromium in PATH: `apt-get install chromium-headless-shell` gets one")
    return playwright.chromium.launch(executable_path=found, args=_ARGUMENTS)
