"""How tests are dealt to workers, and the ring that many of them look at from outside.

Tests run in as many processes as there are cores, file by file, so that what a file has made is
made once. All tests of the ring that `sealring serve` runs are one share: there is one such ring.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving import Served, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests belong on one worker."""
    for item in items:
        served = "served" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("served" if served else str(item.path)))


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Two ranks of the model that ships with sealring, with their API and dashboard."""
    with serving() as running:
        yield running
