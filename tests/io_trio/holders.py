"""Members of a roster that hold models and are asked for them, in this process, over loopback."""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from sealring_model import tiny
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster
from sealring_trio.fetching.members import Members
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import wall_ms

from tests.sim.rosters import COORDINATOR, signer


class NoEngine:
    """In place of an engine: nothing comes of what is given to it."""

    next_start = None
    out_of_memory = False

    async def run(self) -> None:
        await trio.sleep_forever()

    def send(self, message: LocalMessage) -> None:
        pass


@attrs.define
class Ring:
    """The *roster* of members 0 to n - 1, and those of them that run."""

    roster: SignedRoster
    runtimes: dict[int, Runtime]

    def members(self, index: int, instance: int = 77) -> Members:
        """The others, as member *index* asks them."""

        def keep(_: SignedRoster) -> None:
            raise AssertionError("no roster is newer")

        return Members(lambda: self.roster, COORDINATOR.public_key, signer(index), instance, keep)


@asynccontextmanager
async def holding(folders: Mapping[int, Path | None]) -> AsyncIterator[Ring]:
    """A ring of as many members as there are *folders*; each runs that has one."""
    addresses = {}
    for index in folders:
        with socket.create_server(("127.0.0.1", 0)) as free:
            addresses[index] = free.getsockname()
    now = wall_ms()
    listed = tuple(
        Member(signer(i).public_key, f"node{i}", (f"127.0.0.1:{port}",))
        for i, (_, port) in addresses.items()
    )
    roster = sign_roster(Roster(b"c" * 32, "test", 1, now, now + 10**8, True, listed), COORDINATOR)
    ring = Ring(roster, {})
    engine: Any = lambda _: NoEngine()  # noqa: E731
    async with trio.open_nursery() as nursery:
        for index, folder in folders.items():
            if folder is not None:
                about = NodeConfig(signer(index).public_key, roster, COORDINATOR.public_key, 5)
                ring.runtimes[index] = runtime = Runtime(
                    Node(about, trio.current_time()),
                    signer=signer(index),
                    engine=engine,
                    listen=addresses[index],
                    keep=lambda _: None,
                    keep_vote=lambda *_: None,
                    model=folder,
                )
                await nursery.start(runtime.run)
        yield ring
        nursery.cancel_scope.cancel()


def copy_of_tiny(folder: Path) -> Path:
    """A copy of the tiny model in *folder*, without a manifest."""
    shutil.copytree(tiny.path(), folder)
    (folder / "sealring.json").unlink(missing_ok=True)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of models."""
    folder = tmp_path / "store"
    monkeypatch.setenv("SEALRING_MODELS", str(folder))
    return folder
