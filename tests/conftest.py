"""One ring that `sealring serve` runs, for all tests that only look at one from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving import Served, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Two ranks of the model that ships with sealring, with their API and dashboard."""
    with serving() as running:
        yield running
