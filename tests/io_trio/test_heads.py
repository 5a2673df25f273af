"""Who is head: votes on disk, and what an owner asks of a node and of `sealring head`."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
import trio
from sealring.cli import head as commands
from sealring.dialects.errors import from_refusal
from sealring.files.config import load_config
from sealring.generation.generation import Generator
from sealring.generation.status import describe_election
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring.service.head_api import head_fault
from sealring.service.requests import Requests
from sealring_model import tiny
from sealring_protocol.control.election import Ballot
from sealring_protocol.control.requests import NoMajority
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.mandate import Mandate
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.engine.supervisor import NoEngine
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.rosters import RosterStore
from sealring_trio.node import runtime as runtime_module
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import format_address, wall_ms

from tests.io_trio.helpers import Outcome, sealring, until
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
        with pytest.raises(UserError, match="no other machine that may be the head is there"):
            await node.ask("move")
        with pytest.raises(UserError, match="the head is not moved to den: only the head"):
            await node.ask("move", to="den")
        await node.ask("take")
        with pytest.raises(UserError, match="not moved to desk: that machine is the head already"):
            await node.ask("move", to="desk")


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
        "head          desk, by the roster\n"
        "here          desk is the head, and answers\n"
        "may be head   desk, den\n"
        "votes needed  2 of 3\n"
        "away          shelf\n",
    ),
    "a follower": (
        {"name": "den", "term": 2, "state": "following", "leads": False},
        0,
        "head          den, elected in term 2\n"
        "here          desk follows den\n"
        "may be head   desk, den\n"
        "votes needed  2 of 3\n"
        "away          only den knows: sealring head, there\n",
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
        "head          desk, by the roster\n"
        "here          desk is the head, and does not answer: too few machines are there\n"
        "may be head   desk, den\n"
        "votes needed  2 of 3\n"
        "away          den, shelf\n\n"
        "Too few machines are there to elect a head: start those that are away. If they stay "
        "away, and no other machine is the head: sealring head take\n",
    ),
    "one that asks": (
        {"name": "den", "taken": True, "term": 4, "state": "asking", "leads": False},
        3,
        "head          den, made head by its owner in term 4\n"
        "here          desk does not see den, and asks the others for their votes\n"
        "may be head   desk, den\n"
        "votes needed  2 of 3\n",
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


def test_a_node_that_stands_for_head_reads_its_tokenizer_once(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.path(), model)
    (config,) = write_cluster(tmp_path, 1, model, api="127.0.0.1:7480")
    settings = load_config(config).model_copy(update={"api": ("0.0.0.0", 7480)})
    fault = head_fault(settings, model)
    (model / "tokenizer.json").unlink()
    assert "there are no API keys" in fault()
    assert sealring("apikey", "new", "ann", "--config", config).code == 0
    assert fault() == ""
    assert "no tokenizer" in head_fault(settings, model)()


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        ({"state": "lost", "leads": False, "name": "den", "absent": ["den", "shelf"]}, True),
        ({"leads": False, "absent": ["den", "shelf"]}, True),  # who may have elected another
        ({"state": "following", "leads": False, "name": "den"}, False),
        (
            {"state": "lost", "leads": False, "name": "den", "may_be": ["den"], "absent": ["den"]},
            False,
        ),
        ({"absent": ["shelf"]}, False),
    ],
    ids=["one that lost its head", "a head alone", "a follower", "one that may not be", "the head"],
)
def test_an_owner_is_asked_where_there_may_be_a_second_head(
    change: dict[str, Any],
    asks: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = {**HEAD, **change}
    asked_for: list[str] = []

    def answer(_: Path, name: str) -> dict[str, Any]:
        asked_for.append(name)
        return {"head": head} if name == "status" else head

    monkeypatch.setattr(
        commands, "own_config", lambda _: attrs.make_class("C", ["control_socket"])(Path("x"))
    )
    monkeypatch.setattr(commands, "answer_of", answer)
    if asks:
        with pytest.raises(UserError, match=r"a second head .*: den, shelf") as caught:
            commands.take(json=True)
        assert "sealring head take --yes" in caught.value.advice
        assert asked_for == ["status"]
        commands.take(yes=True, json=True)
    else:
        commands.take(json=True)  # the node says why not
    assert asked_for[-1] == "take"
    assert json.loads(capsys.readouterr().out) == head


# ------------------------------------------------------------------ a ring of three, as owners run


def asked(config: Path, seconds: float = PATIENCE) -> httpx2.Response:
    """What the machine of *config* answers at its API to a client that has *seconds*."""
    settings = load_config(config)
    assert settings.api is not None
    return httpx2.post(
        f"http://{format_address(*settings.api)}/v1/completions",
        json={"model": "tiny", "prompt": "Count to ten.", "max_tokens": 16, "temperature": 0},
        timeout=seconds,
    )


def at_once(config: Path) -> httpx2.Response | None:
    """The same to a client that does not wait; None if that hears nothing."""
    with contextlib.suppress(httpx2.ReadTimeout):
        return asked(config, 1.0)
    return None


def told(config: Path) -> dict[str, Any]:
    """What `sealring head` says at *config*; nothing while no node runs there."""
    done = sealring("head", "--config", config, "--json")
    head = done.json() if done.code in (0, 3) else {}
    assert done.code in (1, 3 if head and not head["leads"] and head["state"] != "following" else 0)
    return head


def leads(config: Path) -> Callable[[], bool]:
    return lambda: told(config).get("leads", False)


def follows(config: Path, name: str) -> Callable[[], bool]:
    wanted = name, "following"
    return lambda: (told(config).get("name"), told(config).get("state")) == wanted


@pytest.mark.slow
def test_the_others_go_on_whichever_machine_is_gone() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        api = f"127.0.0.1:{free_ports(1)[0]}"
        options = {"min_ranks": 1}
        configs = write_cluster(folder, 3, tiny.path(), api=api, options=options, elects=True)
        nodes = [stack.enter_context(running_node(configs[0]))]
        wait_until_up(nodes[0])  # the others would elect one of them without it
        nodes += [stack.enter_context(running_node(config)) for config in configs[1:]]
        logs = lambda: "\n\n".join(node.log.read_text() for node in nodes)  # noqa: E731
        first, second, third = configs

        def answers(config: Path) -> str:
            """The answer there, once there is one."""
            found = until(lambda: (it := asked(config)).status_code == 200 and it, logs)
            return str(found.json()["choices"][0]["text"])

        for node in nodes[1:]:
            wait_until_up(node)
        text = answers(third)

        nodes[0].process.kill()  # nobody is told
        until(leads(second), logs)
        assert answers(third) == text
        assert told(third)["term"] == 1
        refused = sealring("head", "take", "--yes", "--config", third)
        assert (refused.code, "sees the head" in refused.err) == (2, True)

        nodes[0] = stack.enter_context(running_node(first))
        until(follows(first, "rank1"), logs)  # what it had stored was older
        assert answers(first) == text

        moved = sealring("head", "move", "rank0", "--config", second)
        assert moved.code == 0, moved.err
        assert moved.out == "rank0, elected in term 2, is the head now\n"
        assert leads(first)()
        assert answers(second) == text

        nodes[0].process.send_signal(signal.SIGTERM)
        nodes[0].process.wait(PATIENCE)
        assert "stopping: rank1 is to be the head" in nodes[0].log.read_text()
        assert leads(second)()  # without a loss that somebody would have to notice
        assert answers(third) == text

        nodes[2].process.send_signal(signal.SIGSTOP)  # of three there is one
        alone = until(lambda: at_once(second), logs)
        assert (alone.status_code, alone.json()["error"]["code"]) == (503, "no_majority")
        assert "1 of 3 machines here, and it takes 2" in alone.json()["error"]["message"]
        nodes[2].process.send_signal(signal.SIGCONT)
        assert answers(second) == text

        nodes[1].process.kill()
        until(lambda: told(third).get("may_take", False), logs)
        unled = asked(third)
        assert unled.status_code == 503
        assert "no majority to elect one" in unled.json()["error"]["message"]
        assert "sealring head take" in unled.json()["error"]["message"]
        unsure = sealring("head", "take", "--config", third)
        assert (unsure.code, "sealring head take --yes" in unsure.err) == (2, True)
        taken = until(lambda: (it := take(third)).code == 0 and it, logs)
        assert taken.out == "rank2, made head by its owner in term 4, is the head now\n"
        assert answers(third) == text


def take(config: Path) -> Outcome:
    return sealring("head", "take", "--yes", "--config", config)
