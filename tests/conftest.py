"""The ring that many tests look at from outside.

Tests run in as many processes as there are cores, file by file, so that what a file has made is
made once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Served, serving

# Engines of tests are modules of tests, which an engine process does not find where it is started.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Two ranks of the model that ships with sealring, with their API and dashboard."""
    with serving() as running:
        yield running


def pytest_collection_finish() -> None:
    """What stands now stands to the end: no collection of garbage needs to look at it again."""
    gc.collect()
    gc.freeze()
