"""The ring that many tests look at from outside.

Tests run in as many processes as there are cores, file by file, so that what a file has made is
made once. Files that look at the same rings run in one process, for to start a ring costs ten
seconds of a core.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.serving import Served, serving

# Engines of tests are modules of tests, which an engine process does not find where it is started.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

# Hundreds of processes start. Without compiled files each compiles all that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("sealring", deadline=None)
hypothesis.settings.load_profile("sealring")

SHARED = {
    "the rings of tests/api": ("tests/api/",),
    "served": (
        "tests/attacks/test_http_floods.py",
        "tests/dashboard/",
        "tests/io_trio/test_bench_beside.py",
        "tests/io_trio/test_bench_serve.py",
        "tests/io_trio/test_cli_chat.py",
        "tests/io_trio/test_cli_run.py",
        "tests/io_trio/test_cli_serve.py",
    ),
    "the ring of tests/fetching": (
        "tests/fetching/test_members_ring.py",
        "tests/fetching/test_ring.py",
    ),
    "the ring of tests/io_trio": (
        "tests/io_trio/test_priority.py",
        "tests/io_trio/test_profile.py",
        "tests/io_trio/test_ring.py",
    ),
}
"""Files that look at the same rings."""


class ByRings(LoadFileScheduling):
    """Gives files that share rings to one process, and every other file to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        for rings, files in SHARED.items():
            if nodeid.startswith(files):
                return rings
        return super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return ByRings(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: no collection of garbage needs to look at it, which took
    a sixth of the time to collect 15,000 tests. Each process collects them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def freeze() -> None:
    """What stands now stands to the end: no collection of garbage needs to look at it again. Each
    part of a model that is loaded collects some, which took a seventh of the time of such tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Two ranks of the model that ships with sealring, with their API and page."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def quick_paces() -> Iterator[None]:
    """A plan runs some layers just once: the figures are no good, and the rest is as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sealring_model.loading.structure.PACE_SECONDS", 1e-6)
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is long by one parameter and slow by another is long."""
    if item.get_closest_marker("long"):
        item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
