"""`machines accept` where the coordinator's key lies elsewhere, over a node's real socket."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from sealring.files.cluster import sign_next
from sealring.files.config import load_config
from sealring.local.node_socket import listening
from sealring.service.owner_api import OwnerApi, serve_owner
from sealring.service.requests import answer_at_door
from sealring.service.verification import Reply
from sealring_protocol.security.roster import Rights
from sealring_trio.files.key_files import read_key
from sealring_trio.units import wall_ms

from tests.io_trio.helpers import Outcome, sealring
from tests.joining.doors import Home, Machine, asked, hold_stored, home


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one, for the socket's sake."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as made:
        yield Path(made)


async def serve_node(made: Home, task_status: trio.TaskStatus[None]) -> None:
    """Answer the owner of the node of *made*."""

    async def answer(name: str, body: bytes, reply: Reply) -> None:
        if name == "roster":
            await made.install(bytes.fromhex(json.loads(body)["roster"]))
            await reply({"event": "done"})
        else:
            await answer_at_door(made.door, name, body, reply)

    config = load_config(made.files.config)
    config.state.mkdir(mode=0o700)
    with listening(config.control_socket) as listener:
        task_status.started()
        await serve_owner(listener, OwnerApi(answer, lambda: None))


async def test_a_roster_comes_in_force_meanwhile_and_is_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command signs again: the rename stays, and the newcomer is a member."""
    stored, say = hold_stored(monkeypatch)
    den, outcomes = Machine(), list[Outcome]()
    async with home(folder, signs=False) as made, trio.open_nursery() as nursery:
        await nursery.start(serve_node, made)
        await asked(made, den, nursery)

        async def accept() -> None:
            words = ("machines", "accept", "den", "--config", made.files.config)
            key = ("--key", made.files.coordinator_key)
            rights = ("--witness", "--no-text")
            outcomes.append(await trio.to_thread.run_sync(sealring, *words, *key, *rights))

        async with trio.open_nursery() as people:
            people.start_soon(accept)
            await stored.wait()
            signer, (desk,) = read_key(made.files.coordinator_key), made.signed.roster.members
            renamed = (attrs.evolve(desk, name="loft"),)
            await made.install(sign_next(made.signed, renamed, signer, wall_ms()).encode())
            say()
        nursery.cancel_scope.cancel()
    assert (outcomes[0].code, outcomes[0].err) == (0, "")
    assert outcomes[0].out == "den is a member now, of roster 3\n"
    assert made.names == ["loft", "den"]
    assert made.signed.roster.members[1].rights == Rights.WITNESS
