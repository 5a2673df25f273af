"""Who is head: votes on disk, and what an owner asks of a node and of `sealring head`."""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from sealring.cli import head as commands
from sealring.dialects.errors import from_refusal
from sealring.generation.generation import Generator
from sealring.generation.status import describe_election
from sealring.service.requests import Requests
from sealring_model import tiny
from sealring_protocol.control.election import Ballot
from sealring_protocol.control.requests import NoMajority
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.mandate import Mandate
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster
from sealring_trio.engine.supervisor import NoEngine
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.rosters import RosterStore
from sealring_trio.node import runtime as runtime_module
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import wall_ms

from tests.serving import PATIENCE
from tests.sim.rosters import COORDINATOR, signer

NAMES = ("desk", "den", "shelf")


def three(*, fixed_head: bool = False) -> SignedRoster:
    """A roster of three members who do not dial each other."""
    now = wall_ms()
    members = tuple(Member(signer(n).public_key, name, ()) for n, name in enumerate(NAMES))
    roster = Roster(b"c" * 32, "home", 1, now, now + 10**8, True, members, fixed_head=fixed_head)
    return sign_roster(roster, COORDINATOR)


@attrs.frozen
class Alone:
    """A node of three whose others are away, and its *store*."""

    runtime: Runtime
    store: RosterStore

    async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        """What the node answers to its owner in the end."""
        told: list[dict[str, Any]] = []

        async def reply(line: dict[str, Any]) -> None:
            told.append(line)

        requests = Requests(Generator(self.runtime, tiny.path()))
        with trio.fail_after(PATIENCE):
            await requests.answer(name, json.dumps(fields).encode(), reply)
        return told[-1]


Keep = Callable[[bytes, bytes, Ballot], None]


@asynccontextmanager
async def alone(
    folder: Path, rank: int = 0, roster: SignedRoster | None = None, keep_vote: Keep | None = None
) -> AsyncIterator[Alone]:
    roster = roster or three()
    store = RosterStore(folder, COORDINATOR.public_key)
    store.begin(roster)
    config = NodeConfig(
        signer(rank).public_key,
        roster,
        COORDINATOR.public_key,
        5,
        ballot=store.ballot(roster.roster),
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    runtime = Runtime(
        Node(config, trio.current_time()),
        signer=signer(rank),
        engine=partial(NoEngine, ""),
        listen=address,
        keep=store.keep,
        keep_vote=keep_vote or store.keep_ballot,
        model=tiny.path(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        yield Alone(runtime, store)
        nursery.cancel_scope.cancel()


async def test_a_head_that_is_alone_is_made_it_by_its_owner(tmp_path: Path) -> None:
    roster = three()
    async with alone(tmp_path, roster=roster) as node:
        before = describe_election(node.runtime)
        assert (before["name"], before["state"], before["leads"]) == ("desk", "leading", False)
        assert (before["absent"], before["may_take"]) == (["den", "shelf"], True)
        done = await node.ask("take")
        assert done == {
            "event": "done",
            "name": "desk",
            "term": 1,
            "taken": True,
            "fixed_head": False,
            "here": "desk",
            "state": "leading",
            "leads": True,
            "may_take": False,
            "may_be": ["desk", "den", "shelf"],
            "members": 3,
            "majority": 2,
            "absent": ["den", "shelf"],
        }
        with pytest.raises(UserError, match="this machine is the head, and answers"):
            await node.ask("take")
        (tmp_path / "config.roster").write_bytes(roster.encode())
        begun = node.store.newest(tmp_path / "config.roster", wall_ms())
        assert begun.roster.mandate == Mandate(1, 0, True)
        assert node.store.ballot(begun.roster) == Ballot(1, 0)
    async with alone(tmp_path, roster=begun) as node:
        assert node.runtime.node.leads(trio.current_time())


async def test_a_vote_that_cannot_be_stored_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_module, "STORE_SECONDS", 0.2)
    caplog.set_level(logging.INFO)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with alone(tmp_path, keep_vote=full) as node:
        with pytest.raises(OperationError, match="nobody was elected") as caught:
            await node.ask("take")
        assert "a full disk, say" in caught.value.advice
        assert node.runtime.node.roster.roster.mandate == Mandate()
        assert not node.runtime.node.leads(trio.current_time())
    assert "cannot keep a vote for a head: No space left on device" in caplog.text


async def test_a_vote_is_on_disk_before_it_is_signed(tmp_path: Path) -> None:
    said: list[str] = []

    class Signer:
        public_key = signer(0).public_key

        def sign(self, payload: bytes) -> bytes:
            said.append("signed")
            return signer(0).sign(payload)

    async with alone(tmp_path, keep_vote=lambda *_: said.append("stored")) as node:
        node.runtime._signer = Signer()
        await node.ask("take")
    assert said == ["stored", "signed"]


async def test_what_cannot_be_is_said_to_the_owner(tmp_path: Path) -> None:
    async with alone(tmp_path, rank=1) as node:
        assert describe_election(node.runtime)["state"] == "lost"
        with pytest.raises(UserError, match="this machine sees the head, or did a moment ago"):
            await node.ask("take")
        with pytest.raises(UserError, match="this machine is not the head, desk is") as caught:
            await node.ask("move", to="den")
        assert "Type it on the machine of desk" in caught.value.advice
    async with alone(tmp_path) as node:
        assert node.runtime.next_head() is None
        with pytest.raises(UserError, match="there is no machine called 'attic'") as caught:
            await node.ask("move", to="attic")
        assert caught.value.advice == "There are: desk, den, shelf."
        with pytest.raises(UserError, match="no machine that may be the head is there"):
            await node.ask("move")
        with pytest.raises(UserError, match="the head is not moved to den: only the head"):
            await node.ask("move", to="den")


async def test_a_head_that_is_fixed_needs_nobody(tmp_path: Path) -> None:
    async with alone(tmp_path, roster=three(fixed_head=True)) as node:
        told = describe_election(node.runtime)
        assert (told["leads"], told["may_be"], told["may_take"]) == (True, ["desk"], False)
    async with alone(tmp_path / "den", rank=1, roster=three(fixed_head=True)) as node:
        with pytest.raises(UserError, match="does not let this machine be head"):
            await node.ask("take")


def test_a_client_hears_that_the_head_has_no_majority() -> None:
    refused = from_refusal(NoMajority("this node is the head, and another may be"), "prompt", 1)
    assert (refused.status, refused.code) == (503, "no_majority")
    assert refused.message.startswith("The ring cannot serve: this node is the head, and another")


# ------------------------------------------------------------------ what people read


HEAD = {
    "name": "desk",
    "term": 0,
    "taken": False,
    "fixed_head": False,
    "here": "desk",
    "state": "leading",
    "leads": True,
    "may_take": False,
    "may_be": ["desk", "den"],
    "members": 3,
    "majority": 2,
    "absent": [],
}

SHOWN: dict[str, tuple[dict[str, Any], int, str]] = {
    "a head": (
        {"absent": ["shelf"]},
        0,
        "head         desk, by the roster\n"
        "here         desk is the head, and answers\n"
        "may be head  desk, den\n"
        "elected by   2 of 3 machines\n"
        "away         shelf\n",
    ),
    "a follower": (
        {"name": "den", "term": 2, "state": "following", "leads": False},
        0,
        "head         den, elected in term 2\n"
        "here         desk follows den\n"
        "may be head  desk, den\n"
        "elected by   2 of 3 machines\n",
    ),
    "one that is fixed": (
        {"fixed_head": True, "may_be": ["desk"]},
        0,
        "head         desk, and never another (fixed)\n"
        "here         desk is the head, and answers\n"
        "may be head  desk\n",
    ),
    "a head that is alone": (
        {"leads": False, "may_take": True, "absent": ["den", "shelf"]},
        3,
        "head         desk, by the roster\n"
        "here         desk is the head, and does not answer: too few machines are there\n"
        "may be head  desk, den\n"
        "elected by   2 of 3 machines\n"
        "away         den, shelf\n\n"
        "2 of 3 machines would elect a head, and fewer are there: start those that are away. If "
        "they stay away, and no other machine is the head: sealring head take\n",
    ),
    "one that asks": (
        {"name": "den", "taken": True, "term": 4, "state": "asking", "leads": False},
        3,
        "head         den, made it by its owner in term 4\n"
        "here         desk does not see den, and asks the others for their votes\n"
        "may be head  desk, den\n"
        "elected by   2 of 3 machines\n",
    ),
}


@pytest.mark.parametrize(("change", "code", "shown"), SHOWN.values(), ids=SHOWN)
def test_the_head_as_people_read_it(
    change: dict[str, Any],
    code: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = {**HEAD, **change}
    monkeypatch.setattr(
        commands, "own_config", lambda _: attrs.make_class("C", ["control_socket"])(Path("x"))
    )
    monkeypatch.setattr(commands, "answer_of", lambda *_: {"head": head})
    assert commands.show() == code
    assert capsys.readouterr().out == shown
    assert commands.show(json=True) == code
    assert json.loads(capsys.readouterr().out) == head
