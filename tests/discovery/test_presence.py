"""Whether a node is present in its network at all, as its config says."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from sealring.discovery.discovery import Presence
from sealring.files.config import load_config
from sealring.joining.door import Door
from sealring.joining.founding import MemberFiles, Settings, found
from sealring_protocol.security.keys import Suite
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.node.service import OwnIdentity


@pytest.mark.parametrize(
    ("host", "discover", "present"),
    [
        ("10.255.255.254", True, True),  # no address of this machine: nothing is sent
        ("10.255.255.254", False, False),
        ("127.0.0.1", True, False),
        ("desk.example", True, False),
    ],
)
async def test_a_node_is_present_where_it_may_and_should(
    tmp_path: Path, host: str, discover: bool, present: bool, autojump_clock: trio.abc.Clock
) -> None:
    files = MemberFiles.at(tmp_path / "desk")
    found(files, Settings("desk", (host, 7470), "off", "tiny", discover=discover))
    config = load_config(files.config)
    assert config.discover is discover
    assert ("discover = false" in files.config.read_text()) is not discover
    signer, coordinator = read_key(files.key), read_public_key(str(files.coordinator))
    identity = OwnIdentity(signer, coordinator, 1, tuple(Suite))
    presence = Presence(config, identity, Door(config, signer, coordinator))
    up = trio.Event()
    with trio.move_on_after(0.1) as waiting:
        await presence.run(up)
    assert waiting.cancelled_caught  # it is not up yet
    up.set()
    with trio.move_on_after(2) as running:
        await presence.run(up)
    assert running.cancelled_caught is present
