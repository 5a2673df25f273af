"""A real ring whose second engine gets a thousandth of a processor, and one whose engine hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sealring.local.ring import LocalNode

from tests.io_trio.conftest import Ring

pytestmark = pytest.mark.long

LONG = "Tell me a story about a fox named Pip. " * 30
SILENT = 22.0
"""Seconds without an answer: more than the 15 that an engine has for a step."""

GROUPS = {
    Path("/sys/fs/cgroup/cpu"): {"cpu.cfs_period_us": "1000000", "cpu.cfs_quota_us": "1000"},
    Path("/sys/fs/cgroup"): {"cpu.max": "1000 1000000"},
}


@pytest.fixture
def crumbs() -> Iterator[tuple[Path, Path]]:
    """A control group whose processes get a thousandth of a processor, and the one above."""
    for top, limits in GROUPS.items():
        folder = top / f"sealring_test_{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                for name, value in limits.items():
                    (folder / name).write_text(value)
            except OSError:
                folder.rmdir()
                continue
            yield folder, top
            folder.rmdir()
            return
    pytest.skip("no control group can be made here: it takes root, and a file system for them")


def until(what: str, seconds: float, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def starved(node: LocalNode) -> str:
    """The engines that starve, in words; a busy machine may have others do so, too."""
    return "; ".join(each["what"] for each in node.status()["starved"])


def summary(ring: Ring, prompt: str) -> dict[str, object]:
    *_, last = ring.nodes[0].ask("generate", {"prompt": prompt, "max_tokens": 8})
    return last


def test_a_starved_engine_is_waited_for_and_its_request_is_answered(
    ring: Ring, crumbs: tuple[Path, Path]
) -> None:
    poor, rich = crumbs
    head, rank = ring.nodes
    expected = summary(ring, LONG)
    for n in range(3):
        summary(ring, f"{n} to know how long steps take")
    before = rank.status()
    answers: list[dict[str, object]] = []
    (poor / "cgroup.procs").write_text(str(before["engine_pid"]))
    try:
        asked = threading.Thread(target=lambda: answers.append(summary(ring, f"Once. {LONG}")))
        asked.start()
        began = time.monotonic()
        until("nobody says so", SILENT, lambda: "of rank 1 (rank1) starves" in starved(head))
        until("", SILENT + 1, lambda: time.monotonic() > began + SILENT)
        assert not answers
    finally:
        (rich / "cgroup.procs").write_text(str(before["engine_pid"]))
    asked.join(60)
    (done,) = answers
    assert done["reason"] == expected["reason"] == "length"
    after = rank.status()
    assert (after["engine_pid"], after["engine_restarts"]) == (before["engine_pid"], 0)
    assert after["epoch"] == before["epoch"]
    assert rank.log.read_text().count("this node's engine starves") == 1


def test_an_engine_that_hangs_is_killed_whatever_else_the_machine_does(ring: Ring) -> None:
    rank = ring.nodes[1]
    pid = rank.status()["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    until("it was left", 10, lambda: not psutil.pid_exists(pid))
    assert summary(ring, LONG)["reason"] == "length"
    assert rank.status()["engine_pid"] != pid
