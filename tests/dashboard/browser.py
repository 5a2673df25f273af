"""A real Chromium, in front of real rings.

Every page is watched: a message on the console or a fault of a script fails the test, and the
browser reports there whatever breaks the page's policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.serving import PATIENCE

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium: install it (apt-get install chromium), or name one in CHROMIUM",
)

FLAGS = [
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=PATIENCE * 1000)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def window(browser: Browser, url: str, expected: str = "", **settings: object) -> Iterator[Page]:
    """The page at *url* in a window of its own; messages with *expected* are no news."""
    context = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(written(message)))
    page.on("pageerror", lambda error: faults.append(f"{error}, {error.stack or 'no stack'}"))
    page.goto(url)
    yield page
    context.close()
    if news := [fault for fault in faults if not expected or expected not in fault]:
        pytest.fail("the page's console:\n" + "\n".join(news))


def written(message: ConsoleMessage) -> str:
    """*message* with its kind and where it is from: some have no text."""
    at = message.location
    return f"{message.type} {message.text!r} at {at['url']}:{at['lineNumber']}"
