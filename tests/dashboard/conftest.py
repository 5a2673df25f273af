"""One browser for all of the page's tests, and one window for most."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import Tab, chromium


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Tab:
    return Tab(browser)
