"""A real Chromium, in front of real rings.

Every page is watched: a message on the console or a fault of a script fails the test, and the
browser reports there whatever breaks the page's policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

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

DESKTOP = {"width": 1280, "height": 900}

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
    page, faults = opened(browser, **settings)
    page.goto(url)
    yield page
    page.context.close()
    check(faults, expected)


class Tab:
    """A window that many tests look through, one after the other. It has forgotten all that was
    before; a new one costs Chromium a second of a processor, and to forget costs half of that."""

    def __init__(self, browser: Browser) -> None:
        self._page, self._faults = opened(browser)
        self._inside = self._page.context.new_cdp_session(self._page)

    @contextmanager
    def at(self, url: str, expected: str = "", size: Any = DESKTOP, **media: Any) -> Iterator[Page]:
        """As `window`, of a *size*, and with *media* of its own."""
        page = self._page
        page.set_viewport_size(size)
        page.emulate_media(**{"color_scheme": "light", "reduced_motion": "no-preference"} | media)
        page.goto(url)
        try:
            yield page
        finally:
            page.unroute_all(behavior="ignoreErrors")
            page.evaluate("sessionStorage.clear()")
            page.goto("about:blank")  # where nothing of it runs any more
            place = urlsplit(url)
            everything = {"origin": f"{place.scheme}://{place.netloc}", "storageTypes": "all"}
            self._inside.send("Storage.clearDataForOrigin", everything)
            page.context.clear_permissions()
            faults = self._faults[:]
            self._faults.clear()
        check(faults, expected)


def opened(browser: Browser, **settings: object) -> tuple[Page, list[str]]:
    """A window, and what its console says, as it says it."""
    context = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(written(message)))
    page.on("pageerror", lambda error: faults.append(f"{error}, {error.stack or 'no stack'}"))
    return page, faults


def check(faults: list[str], expected: str) -> None:
    """Fail if there are *faults* without *expected*."""
    if news := [fault for fault in faults if not expected or expected not in fault]:
        pytest.fail("the page's console:\n" + "\n".join(news))


def written(message: ConsoleMessage) -> str:
    """*message* with its kind and where it is from: some have no text."""
    at = message.location
    return f"{message.type} {message.text!r} at {at['url']}:{at['lineNumber']}"
