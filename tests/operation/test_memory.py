"""One request beyond a rank's memory, in a ring whose rank has a limit that the kernel enforces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operation.machines import Machine, machines
from tests.operation.test_rosters import Stream, whole

pytestmark = pytest.mark.long

TOPS = (  # of control groups, with the files of a group's limit and of what it uses
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
)
TOKENS = 60
MORE = 5 << 20
"""Bytes that the rank may use besides what it has after a short request. The long prompt's caches
and attention take some 30 MiB there."""


class Group:
    """A control group for all processes of a machine."""

    def __init__(self, folder: Path, limit: str, used: str) -> None:
        self.folder = folder
        self._limit, self._used = folder / limit, folder / used

    def take(self, machine: Machine) -> None:
        """Have the node of *machine*, which has just been started, and its engines in here."""
        self.folder.joinpath("cgroup.procs").write_text(str(machine.node.process.pid))

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.folder.joinpath("cgroup.procs").read_text().split()]

    def allow(self, more: int) -> None:
        """Let it use *more* bytes than it does now."""
        self._limit.write_text(str(int(self._used.read_text()) + more))


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """A group, gone with the block, at the end of which its processes must have ended."""
    for top, limit, used in TOPS:
        folder = top / f"sealring_test_{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists() and os.access(folder / limit, os.W_OK):
                try:
                    yield Group(folder, limit, used)
                finally:
                    folder.rmdir()
                return
            folder.rmdir()
    pytest.skip(
        "no control group that limits memory can be made here: it takes root, and a file "
        "system of them (v1 or v2) that may be written to"
    )


def test_a_request_beyond_a_ranks_memory_ends_alone() -> None:
    with group() as limited, machines(2) as (desk, shelf):
        shelf.start()
        limited.take(shelf)
        desk.start()
        desk.wait_for_health()
        expected = whole(desk, TOKENS)
        first = shelf.status()["engine_pid"]
        assert {shelf.node.process.pid, first} <= set(limited.pids)
        limited.allow(MORE)
        neighbours = [Stream(desk, TOKENS) for _ in range(2)]
        for neighbour in neighbours:
            assert neighbour.begun.wait(60)
        answer = desk.ask("fox " * 1900, max_tokens=4)
        assert [neighbour.end() for neighbour in neighbours] == [expected] * 2
        assert answer.status_code == 500
        assert "memory" in answer.json()["error"]["message"]
        assert "the system killed it, for memory ran out" in shelf.log
        assert shelf.node.process.poll() is None
        assert shelf.status()["engine_pid"] != first
        assert desk.ask("Hello.", max_tokens=4).status_code == 200
