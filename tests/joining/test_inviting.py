"""`machines invite` at a terminal, over a real door: what it asks, and what becomes of it."""

from __future__ import annotations

import json
import queue
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.cli.machines import Inviting
from sealring.joining.fingerprint import fingerprint
from sealring.service import requests
from sealring.service.requests import answer_at_door
from sealring_protocol.joining.invitation import Invitation
from sealring_trio.errors import OperationError

from tests.joining.doors import Home, Machine, home
from tests.joining.terminals import OwnTerminal, own_terminal

ASKED = r"Let it in\? \[y/n\] "


class Node:
    """The node's side: what `ask` would give of the door of *made*."""

    def __init__(self, made: Home) -> None:
        self._made = made
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.invitation = ""

    async def reply(self, line: Any) -> None:
        self._lines.put(line)

    def events(self) -> Iterator[dict[str, Any]]:
        while (line := self._lines.get()) is not None:
            yield line
        raise OperationError("the node went away in the middle of its answer", "")

    def gone(self) -> None:
        self._lines.put(None)

    async def invite(self) -> None:
        await answer_at_door(self._made.door, "invite", b"{}", self.reply)

    def show(self, event: dict[str, Any]) -> None:
        self.invitation = event["invitation"]
        print("invited", flush=True)

    def decide(self, who: str, accepted: bool) -> None:
        name = "accept" if accepted else "refuse"
        body = json.dumps({"who": who}).encode()
        trio.from_thread.run(answer_at_door, self._made.door, name, body, unheard)


async def unheard(_: Any) -> None:
    """An answer that nobody reads."""


class Invited:
    """A terminal that invites, and whoever joins."""

    def __init__(self, node: Node, terminal: OwnTerminal, nursery: trio.Nursery) -> None:
        self.node, self.terminal, self._nursery = node, terminal, nursery
        self.inviting = Inviting(
            node.decide, node.show, hints=("", " --key FILE"), yes=False, json=False
        )
        self.over = trio.Event()

    async def run(self) -> None:
        await self.inviting.run(self.node.events())
        self.over.set()

    async def asked(self, machine: Machine) -> None:
        """*machine* joins; its question is on the screen, with its own words."""
        self._nursery.start_soon(machine.join, Invitation.decode(self.node.invitation))
        words = fingerprint(machine.signer.public_key)
        text = await self.terminal.until(ASKED)
        assert f"fingerprint {words} from 127.0.0.1 wants to join: {machine.name}" in text


@asynccontextmanager
async def invited(
    made: Home, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Invited, OwnTerminal]]:
    with own_terminal(monkeypatch) as terminal:
        async with trio.open_nursery() as nursery:
            node = Node(made)
            at = Invited(node, terminal, nursery)
            nursery.start_soon(node.invite)
            nursery.start_soon(at.run)
            await terminal.until("invited")
            yield at, terminal
            node.gone()
            with trio.fail_after(10):
                await at.over.wait()
            nursery.cancel_scope.cancel()


async def test_the_next_machine_gets_a_question_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A yes to the first, which has left, lets nobody in."""
    den, attic = Machine("den"), Machine("attic", ("127.0.0.1:7998",))
    async with home(tmp_path) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(den)
        terminal.type("ye")
        assert den.request is not None
        den.request.stop()
        await terminal.until("den has left before it joined: it was stopped there")
        await at.asked(attic)
        terminal.type("s\n")
        await terminal.until("Type yes or no.*" + ASKED)
        assert made.names == ["desk"]
        terminal.type("yes\n")
        await terminal.until("attic is a member now")
        await at.over.wait()
    assert made.names == ["desk", "attic"]
    assert at.inviting.fault is None


async def test_no_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attic = Machine("attic")
    async with home(tmp_path) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(attic)
        terminal.type("no\n")
        await at.over.wait()
        rest = await terminal.until("For another invitation: sealring machines invite\r\n")
        await attic.over.wait()
    assert rest.split("\r\n")[1:-1] == [
        "sealring: attic was refused. For another invitation: sealring machines invite"
    ]
    assert terminal.seen == ""
    assert made.names == ["desk"]


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ("accept", "den is a member now, let in at another terminal"),
        ("refuse", "den was refused at another terminal"),
    ],
)
async def test_another_terminal_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: str, told: str
) -> None:
    den = Machine()
    async with home(tmp_path) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(den)
        await answer_at_door(made.door, decision, b"{}", unheard)
        await terminal.until(told)
        await den.over.wait()


async def test_a_key_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    den = Machine()
    async with home(tmp_path) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(den)
        await made.door.accept(made.door.find("den"), by="the API key 'alice'")
        await terminal.until("den is a member now, let in by the API key 'alice'")
        await den.over.wait()


async def test_the_node_stops_while_a_machine_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    den = Machine()
    async with home(tmp_path) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(den)
        await made.door.close("sealring is stopped there")
        await terminal.until("den has left before it joined: this node was stopped")
    assert at.inviting.fault is not None
    assert "sealring up. Then: sealring machines invite" in at.inviting.fault.advice


async def test_a_node_that_cannot_sign_leaves_the_machine_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    den = Machine()
    async with home(tmp_path, signs=False) as made, invited(made, monkeypatch) as (at, terminal):
        await at.asked(den)
        terminal.type("yes\n")
        await terminal.until("not on this machine.*?sealring machines accept [a-z-]+ --key FILE")
        await terminal.until("den still waits: sealring machines accept [a-z-]+ --key FILE")
        assert [knock.name for knock in made.door.waiting()] == ["den"]
        await made.door.close("over")


async def test_a_reader_of_the_news_may_be_slow(tmp_path: Path) -> None:
    """The node looks again and again at whether the invitation is over. A report that this
    would cut off is lost."""
    events: list[dict[str, Any]] = []
    patience: list[float] = []

    async def reply(line: dict[str, Any]) -> None:
        events.append(line)
        patience.append(trio.current_effective_deadline() - trio.current_time())

    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        nursery.start_soon(answer_at_door, made.door, "invite", b"{}", reply)
        while not events:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(Machine().join, Invitation.decode(events[0]["invitation"]))
        await made.knocked()
        made.door.refuse(made.door.find())
        while len(events) < 4:
            await trio.lowlevel.checkpoint()
    assert [event["event"] for event in events] == ["invitation", "knock", "refused", "over"]
    assert min(patience) > 10 * requests._OVER_SECONDS
