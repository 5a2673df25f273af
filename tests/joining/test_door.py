"""The newcomers' door over real sockets: what each side is told, and who becomes a member."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from sealring.cli.doorway import describe_newcomer
from sealring.cli.join import ask_until_signal
from sealring.files.cluster import sign_next
from sealring.joining.asking import MAX_SEARCHED, JoinRequest
from sealring.joining.door import Door
from sealring.joining.fingerprint import fingerprint
from sealring.joining.line import JoinLine
from sealring.joining.machine import free_name, look_alike
from sealring.service.requests import answer_at_door
from sealring_protocol.codec.messages import NEWEST_STEPS, OLDEST_STEPS
from sealring_protocol.joining.exchange import Admitted, InviterProved
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.limits import MAX_JOINS
from sealring_protocol.security.roster import Member, SignedRoster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import read_key
from sealring_trio.units import wall_ms

from tests.joining.doors import Home, Machine, asked, hold_stored, home

SECONDS = 6.0
"""Within which a mistake is told."""


async def test_a_machine_joins(tmp_path: Path) -> None:
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        facts = knock.facts()
        assert facts["fingerprint"] == fingerprint(den.signer.public_key)
        assert (facts["name"], facts["system"], facts["memory"]) == ("den", "macOS 26", 64 << 30)
        assert facts["source"] == "127.0.0.1"
        assert den.inviter == "desk"
        assert made.names == ["desk"]
        await made.accept()
        await den.over.wait()
        assert den.ended is True
        assert made.names == ["desk", "den"]
        assert made.installed == [2]
        assert den.stored is not None
        assert den.stored.roster.roster == made.signed.roster
        assert json.loads(den.stored.settings) == {"cluster": "home", "model": "tiny"}


async def test_a_key_elsewhere_signs(tmp_path: Path) -> None:
    den = Machine()
    async with home(tmp_path, signs=False) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        with pytest.raises(UserError, match="not on this machine") as refused:
            await made.accept("den")
        assert f"sealring machines accept {knock.fingerprint} --key" in refused.value.advice
        signer = read_key(made.files.coordinator_key)
        members = made.signed.roster.members
        without = sign_next(made.signed, members, signer, wall_ms())
        with pytest.raises(UserError, match="does not hold"):
            await made.accept("den", without.encode())
        signed = sign_next(made.signed, (*members, knock.member), signer, wall_ms())
        await made.accept("den", signed.encode())
        await den.over.wait()
    assert den.ended is True
    assert made.names == ["desk", "den"]


async def test_a_person_says_no(tmp_path: Path) -> None:
    den, other = Machine(), Machine("other")
    async with home(tmp_path) as made:
        async with trio.open_nursery() as nursery:
            knock = await asked(made, den, nursery)
            made.door.refuse(made.door.find("den"))
        assert "desk does not let this machine join: a person there has said no" in den.told
        await other.join(knock.invitation)
        assert "a machine was refused that brought this invitation" in other.told
        with pytest.raises(UserError, match="nobody waits to join"):
            await made.accept("den")
    assert made.names == ["desk"]


async def test_an_invitation_is_used_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    den, other = Machine(), Machine("other", ("127.0.0.1:7998",))
    async with home(tmp_path) as made:
        async with trio.open_nursery() as nursery:
            knock = await asked(made, den, nursery)
            await made.accept()
        with trio.fail_after(SECONDS):
            await other.join(knock.invitation)
    assert "this invitation was used" in other.told
    assert other.waited == []
    assert "sealring machines invite" in other.told
    assert "cannot join: this invitation was used (from 127.0.0.1)" in caplog.text
    assert made.names == ["desk", "den"]


async def test_a_second_machine_with_an_invitation_that_is_taken(tmp_path: Path) -> None:
    den, other = Machine(), Machine("other")
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        await other.join(knock.invitation)
        assert "another machine is joining with this invitation just now" in other.told
        assert made.door.waiting() == [knock]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("change", "told", "logged"),
    [
        ({"secret": b"w" * 16}, "It has given no such invitation", "given no such invitation"),
        ({"expires_s": 1000}, "this invitation expired", "given no such invitation"),
    ],
)
async def test_an_invitation_that_is_not_ours(
    tmp_path: Path,
    change: dict[str, object],
    told: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    den = Machine()
    async with home(tmp_path) as made:
        invitation = await made.door.invite()
        wrong = attrs.evolve(invitation, **change)
        if "expires_s" in change:
            wrong = attrs.evolve(wrong, secret=b"w" * 16)
        with trio.fail_after(SECONDS):
            await den.join(wrong)
    assert told in den.told
    assert logged in caplog.text


async def test_an_invitation_that_has_expired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    den = Machine()
    async with home(tmp_path) as made:
        invitation = await made.door.invite(seconds=0)
        with trio.fail_after(SECONDS):
            await den.join(invitation)
    assert "desk does not let this machine join: this invitation has expired" in den.told
    assert "cannot join: this invitation has expired" in caplog.text


async def test_clocks_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    den = Machine()
    monkeypatch.setattr("sealring.joining.asking.wall_ms", lambda: wall_ms() + 3_600_000)
    async with home(tmp_path) as made:
        with trio.fail_after(SECONDS):
            await den.join(await made.door.invite())
    said = "the clock of the machine that joins is"
    assert said in den.told
    assert "set the one that is wrong; the invitation is still good" in den.told
    assert "Ask for another invitation" not in den.told
    assert said in caplog.text


async def test_nobody_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address, and what came of it."""
    monkeypatch.setattr("sealring_protocol.joining.session.HANDSHAKE_TIMEOUT", 1.0)
    den = Machine()
    async with home(tmp_path) as made:
        invitation = await made.door.invite()
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quiet = f"127.0.0.1:{silent.getsockname()[1]}"
        elsewhere = attrs.evolve(invitation, addresses=(closed, "no.such.invalid:7471", quiet))
        with trio.fail_after(2 * SECONDS):
            await den.join(elsewhere)
    assert f"{closed}: Connection refused" in den.told
    assert "no.such.invalid:7471: " in den.told
    assert f"{quiet}: no answer within 1 s" in den.told
    assert "firewall" in den.told


async def test_the_first_address_that_answers_is_taken(tmp_path: Path) -> None:
    """Something else listens at the best one, and ends the connection."""
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.receive_some()

        nursery.start_soon(trio.serve_listeners, hang_up, listeners)
        other = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        invitation = await made.door.invite()
        nursery.start_soon(
            den.join, attrs.evolve(invitation, addresses=(other, *invitation.addresses))
        )
        await made.knocked()
        await made.accept()
        await den.over.wait()
        nursery.cancel_scope.cancel()
    assert den.ended is True


async def test_an_inviter_whose_address_has_changed_is_found(tmp_path: Path) -> None:
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        invitation = await made.door.invite()

        async def search(found: Callable[[str], None]) -> None:
            for address in (*elsewhere.addresses, *invitation.addresses, *invitation.addresses):
                found(address)
            await trio.sleep_forever()

        closed = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        elsewhere = attrs.evolve(invitation, addresses=closed)
        den = Machine(search=search)
        nursery.start_soon(den.join, elsewhere)
        await made.knocked()
        await made.accept()
        await den.over.wait()
    assert den.ended is True


async def test_a_search_that_finds_strangers_or_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over in time, and few of what it finds are dialed, each of which is told."""
    monkeypatch.setattr("sealring.joining.asking.SEARCH_SECONDS", 0.5)
    async with home(tmp_path) as made:
        invitation = await made.door.invite()
    ports = free_ports(MAX_SEARCHED + 3)
    first, *others = (f"127.0.0.1:{port}" for port in ports)
    for finds in (others, []):

        async def search(found: Callable[[str], None], finds: list[str] = finds) -> None:
            for address in finds:
                found(address)
            await trio.sleep_forever()

        den = Machine(search=search)
        with trio.fail_after(SECONDS):
            await den.join(attrs.evolve(invitation, addresses=(first,)))
        assert "at any of its addresses or by multicast DNS" in den.told
        assert den.told.count("Connection refused") == 1 + len(finds[:MAX_SEARCHED])


async def test_a_door_says_whether_somebody_may_come(tmp_path: Path) -> None:
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        assert not made.door.invites
        await made.door.invite(seconds=0)
        assert not made.door.invites  # it is open, for those that are to be told
        den = Machine()
        await asked(made, den, nursery)
        assert made.door.invites
        await made.accept()
        await den.over.wait()
        assert not made.door.invites


async def test_the_inviter_stops(tmp_path: Path) -> None:
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        with trio.fail_after(SECONDS):
            await made.door.close("sealring is stopped there")
            await den.over.wait()
    assert "desk stopped before this machine was let in: sealring is stopped there" in den.told


async def test_a_signal_comes_when_the_newcomer_was_just_let_in(tmp_path: Path) -> None:
    class Interrupted(Machine):
        def store(self, cluster: InviterProved, admitted: Admitted) -> None:
            super().store(cluster, admitted)
            signal.raise_signal(signal.SIGINT)

    den = Interrupted()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        invitation = await made.door.invite()
        request = JoinRequest(invitation, den.signer, lambda _: den.newcomer, den)
        joined: list[bool] = []

        async def ask() -> None:
            joined.append(await ask_until_signal(request))

        nursery.start_soon(ask)
        await made.knocked()
        await made.accept()
    assert joined == [True]
    assert request.stopped  # so that the command ends, and does not run the node
    assert made.names == ["desk", "den"]


async def test_the_newcomer_stops(tmp_path: Path) -> None:
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        with made.door.news() as news:
            assert den.request is not None
            den.request.stop()
            with trio.fail_after(SECONDS):
                told = await anext(news)
        assert (told.kind, told.text) == (
            "left",
            "den has left before it joined: it was stopped there",
        )
        await den.over.wait()
        assert den.ended is False
        assert made.door.waiting() == []


async def test_a_newcomer_that_cannot_store_is_no_member(tmp_path: Path) -> None:
    """Whoever joins next is in a roster of a greater serial than the one that it was sent."""
    den = Machine(fault=UserError("the disk is full", "Make room."))
    attic = Machine("attic", ("127.0.0.1:7998",))
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        with pytest.raises(OperationError, match=r"has not joined: .*the disk is full"):
            await made.accept()
        await den.over.wait()
        assert den.told.startswith("the disk is full")
        assert made.names == ["desk"]
        await asked(made, attic, nursery)
        await made.accept()
        await attic.over.wait()
    assert made.names == ["desk", "attic"]
    assert made.installed == [3]


async def test_a_roster_that_a_key_elsewhere_signs_has_a_serial_that_nobody_was_sent(
    tmp_path: Path,
) -> None:
    den = Machine(fault=UserError("the disk is full", "Make room."))
    attic = Machine("attic", ("127.0.0.1:7998",))
    async with home(tmp_path, signs=False) as made, trio.open_nursery() as nursery:
        signer = read_key(made.files.coordinator_key)

        def signed(member: Member, spent: int) -> bytes:
            members = (*made.signed.roster.members, member)
            return sign_next(made.signed, members, signer, wall_ms(), spent).encode()

        knock = await asked(made, den, nursery)
        with pytest.raises(OperationError, match="the disk is full"):
            await made.accept("den", signed(knock.member, made.door.spent))
        knock = await asked(made, attic, nursery)
        with pytest.raises(UserError, match="serial 2 was sent to a machine that left"):
            await made.accept("attic", signed(knock.member, 0))
        await made.accept("attic", signed(knock.member, made.door.spent))
        await attic.over.wait()
    assert made.names == ["desk", "attic"]
    assert made.installed == [3]


async def test_a_person_is_waited_for_until_the_machine_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealring.joining.asking.SAY_SECONDS", 0.0)
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        await den.is_waiting.wait()
        await made.accept()
        await den.over.wait()
    assert den.waited[0] == (0.0, False)
    assert not any(stored for _, stored in den.waited)


async def test_a_machine_that_is_called_as_the_id_of_another_is_not_meant_by_it(
    tmp_path: Path,
) -> None:
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        who = knock.newcomer.id.hex()
        await asked(made, Machine(who, ("127.0.0.1:7998",)), nursery)
        assert made.door.waiting(who) == [knock]
        assert den.request is not None
        den.request.stop()
        await den.over.wait()
        await knock.over.wait()
        with pytest.raises(UserError, match="waits to join"):
            await made.accept(who)
        nursery.cancel_scope.cancel()


async def test_two_that_are_accepted_at_once_follow_each_other(tmp_path: Path) -> None:
    den, attic = Machine(), Machine("attic", ("127.0.0.1:7998",))
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        first = await asked(made, den, nursery)
        second = await asked(made, attic, nursery)
        async with trio.open_nursery() as people:
            people.start_soon(made.accept, first.name)
            people.start_soon(made.accept, second.name)
        await den.over.wait()
        await attic.over.wait()
    assert (den.ended, attic.ended) == (True, True)
    assert sorted(made.names) == ["attic", "den", "desk"]
    assert made.installed == [2, 3]


async def test_who_signs_a_roster_waits_for_a_machine_that_is_being_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, say = hold_stored(monkeypatch)
    told = list[Any]()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, Machine(), nursery)

        async def read_members(body: bytes, lines: list[Any]) -> None:
            async def reply(line: Any) -> None:
                lines.append(line)

            await answer_at_door(made.door, "members", body, reply)

        async with trio.open_nursery() as people:
            people.start_soon(made.accept)
            await stored.wait()
            people.start_soon(read_members, b"{}", told)
            await trio.testing.wait_all_tasks_blocked()
            text = "den is being let in: this waits for it, at most 15 s"
            assert told == [{"event": "waiting", "text": text}]

            # Whoever only looks does not wait, and sees how far it is.
            seen = list[Any]()
            await read_members(b'{"settled": false}', seen)
            assert names_of(seen[0]) == ["desk"]
            assert [knock.facts()["state"] for knock in made.door.waiting()] == ["admitted"]
            say()
    assert names_of(told[1]) == ["desk", "den"]


def names_of(line: Any) -> list[str]:
    roster = SignedRoster.decode(bytes.fromhex(line["roster"])).roster
    return [member.name for member in roster.members]


@pytest.mark.parametrize("signs", [True, False])
async def test_another_roster_comes_in_force_while_a_machine_stores_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is signed for again, so that nothing of that roster is undone."""
    den, attic = Machine(), Machine("attic", ("127.0.0.1:7998",))
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, attic, nursery)
        await made.accept()
        signer = read_key(made.files.coordinator_key)
        if not signs:
            made.files.coordinator_key.unlink()
        stored, say = hold_stored(monkeypatch)
        knock = await asked(made, den, nursery)
        members = (*made.signed.roster.members, knock.member)
        own = None if signs else sign_next(made.signed, members, signer, wall_ms()).encode()
        async with trio.open_nursery() as people:
            people.start_soon(made.accept, "", own)
            await stored.wait()
            # On another member, which has the key too, a person renames a machine.
            desk, other = made.signed.roster.members
            renamed = (desk, attrs.evolve(other, name="loft"))
            await made.install(sign_next(made.signed, renamed, signer, wall_ms(), 3).encode())
            say()
    assert den.ended is True
    if signs:
        assert made.names == ["desk", "loft", "den"]
        assert made.installed == [2, 4, 5]
        assert knock.installed
    else:
        assert made.names == ["desk", "loft"]
        assert not knock.installed
        assert "den has stored roster 3, which could not be installed here" in caplog.text


async def test_who_was_looked_at_is_let_in_and_no_later_machine(tmp_path: Path) -> None:
    """The same machine knocks again: it is another visit."""
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        assert den.request is not None
        den.request.stop()
        await knock.over.wait()
        again = Machine(signer=den.signer)
        later = await asked(made, again, nursery)
        assert later.id != knock.id
        with pytest.raises(UserError, match="den has left before it joined"):
            made.door.refuse(knock)
        with pytest.raises(UserError, match="den has left before it joined"):
            await made.door.accept(knock)
        assert made.door.waiting() == [later]
        assert made.door.waiting(knock.id) == []
        assert made.door.waiting(later.id) == [later]
        assert [each.state for each in made.door.shown()] == ["left", "waiting"]
        made.door.refuse(later)
        with pytest.raises(UserError, match="den was refused already"):
            await made.door.accept(later)
        await later.over.wait()
    assert made.names == ["desk"]


async def test_a_knock_is_not_lost_among_those_that_cannot_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the news late still hears of it."""
    monkeypatch.setattr("sealring.joining.door._STRANGE_NEWS", 2)
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        invitation = await made.door.invite()
        with made.door.news() as news:
            for _ in range(4):
                await Machine("d\u0435n").join(await made.door.invite())
            nursery.start_soon(Machine().join, invitation)
            await made.knocked()
            kinds = [(await anext(news)).kind for _ in range(3)]
        assert kinds == ["failed", "failed", "knock"]
        nursery.cancel_scope.cancel()


async def test_a_newcomer_that_is_called_as_another_is_not_taken_for_it(tmp_path: Path) -> None:
    den = Machine()
    same = Machine(fingerprint(den.signer.public_key), ("127.0.0.1:7998",))
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, same, nursery)
        knock = await asked(made, den, nursery)
        with pytest.raises(UserError, match="several wait to join"):
            await made.accept(knock.fingerprint)
        assert made.door.waiting(knock.newcomer.id.hex()[:8].upper()) == [knock]
        assert made.door.waiting(knock.newcomer.id.hex()[:7]) == []
        await made.accept("den")
        await den.over.wait()
        nursery.cancel_scope.cancel()
    assert made.names == ["desk", "den"]


async def test_names_keys_and_addresses_that_a_member_has(tmp_path: Path) -> None:
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        (own,) = made.signed.roster.members[0].addresses
        twin = Machine("desk", (own, "127.0.0.1:7997"))
        knock = await asked(made, twin, nursery)
        assert (knock.name, knock.addresses) == ("desk-2", ("127.0.0.1:7997",))
        await made.accept("desk-2")
        await twin.over.wait()

        same = Machine("den", (own,))
        await same.join(await made.door.invite())
        assert f"'desk' has the address {own}" in same.told
        assert "--listen HOST:PORT" in same.told

        copied = Machine("den", ("127.0.0.1:7996",), signer=twin.signer)
        await copied.join(await made.door.invite())
        assert "its key is that of 'desk-2', which is a member" in copied.told
        assert "sealring up" in copied.told
        assert "Ask for another invitation" not in copied.told
    assert made.names == ["desk", "desk-2"]


@pytest.mark.parametrize(
    ("oldest", "newest", "told"),
    [
        (NEWEST_STEPS + 1, NEWEST_STEPS + 2, "upgrade sealring on desk"),
        (0, OLDEST_STEPS - 1, "upgrade sealring on den"),
        (1, NEWEST_STEPS, ""),
        (NEWEST_STEPS, NEWEST_STEPS + 1, ""),
    ],
)
async def test_a_program_that_the_ring_would_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, oldest: int, newest: int, told: str
) -> None:
    # One bit that no step version is: else all zeros are a program that says nothing.
    den = Machine(build=1 << 32 | oldest << 16 | newest)
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        if not told:
            assert await asked(made, den, nursery)
            nursery.cancel_scope.cancel()
            return
        await den.join(await made.door.invite())
        assert made.door.waiting() == []
    assert told in den.told
    assert "its sealring knows the step versions" in den.told
    assert "cannot join: its sealring knows the step versions" in caplog.text


async def test_a_key_that_was_a_member_s_may_come_back(tmp_path: Path) -> None:
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        await made.accept("den")
        await den.over.wait()
        signer = read_key(made.files.coordinator_key)
        fewer = sign_next(made.signed, made.signed.roster.members[:1], signer, wall_ms())
        await made.install(fewer.encode())
        assert made.names == ["desk"]
        again = Machine(signer=den.signer)
        await asked(made, again, nursery)
        await made.accept("den")
        await again.over.wait()
        assert again.ended is True
    assert made.names == ["desk", "den"]


async def test_strangers_take_no_place_of_whoever_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty connections that say nothing; one that says something else."""
    caplog.set_level(logging.INFO)
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, den, nursery)
        host, port = made.door.address
        silent = [await trio.open_tcp_stream(host, port) for _ in range(20)]
        loud = await trio.open_tcp_stream(host, port)
        await loud.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with trio.fail_after(SECONDS):
            assert await loud.receive_some() == b""
        assert made.door.waiting() == [knock]
        await made.accept()
        await den.over.wait()
        for stream in (*silent, loud):
            await stream.aclose()
    assert den.ended is True
    assert "somebody knocked who cannot join" in caplog.text


async def test_the_door_is_closed_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealring.joining.door.TOLD_SECONDS", 0.0)
    async with home(tmp_path) as made:
        await until_closed(made)
        await made.door.invite(seconds=0)
        await until_closed(made)
        first = await made.door.invite()
        stream = await trio.open_tcp_stream(*made.door.address)
        await stream.aclose()
        assert made.door.fault(first) == ""


async def until_closed(made: Home) -> None:
    """Nobody listens at the door, or soon nobody does."""
    try:
        while True:
            await (await trio.open_tcp_stream(*made.door.address)).aclose()
    except OSError:
        pass


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async with home(tmp_path) as made:
        with (
            socket.create_server(made.door.address),
            pytest.raises(OperationError, match="the door for newcomers cannot open") as failed,
        ):
            await made.door.invite()
        assert "'door' in" in failed.value.advice
        assert isinstance(await made.door.invite(), Invitation)


def test_a_free_name_has_a_number() -> None:
    assert free_name("den", set()) == "den"
    assert free_name("den", {"den", "den-2"}) == "den-3"
    assert free_name("Den", {"den"}) == "Den-2"
    long = "\u00e9" * 32
    assert len(free_name(long, {long}).encode()) <= 64


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Den", "den"),
        ("den ", "den"),
        ("my desk", "my_desk"),
        ("macl", "mac1"),
        ("mac|", "macI"),
        ("n0de", "node"),
        ("farm", "farrn"),
        ("vveb", "web"),
        ("Buro", "B\u00fcro"),
        ("file", "\ufb01le"),
        ("Ian", "ian"),
    ],
)
def test_names_that_look_alike(name: str, other: str) -> None:
    assert look_alike(name, other)
    assert look_alike(other, name)


@pytest.mark.parametrize(("name", "other"), [("den", "dan"), ("node-1", "node-2"), ("a1", "a-1")])
def test_names_that_do_not(name: str, other: str) -> None:
    assert not look_alike(name, other)


async def test_a_name_that_looks_like_a_member_s(tmp_path: Path) -> None:
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, Machine("Desk"), nursery)
        assert (knock.name, knock.like) == ("Desk-2", "desk")
        told = describe_newcomer(knock.facts())
        assert ": Desk-2 (it calls itself Desk, which looks like desk), macOS 26" in told
        nursery.cancel_scope.cancel()


async def test_a_name_in_other_letters_is_no_newcomer_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused on both sides, and may come again by another."""
    den = Machine("d\u0435n")  # with a Cyrillic letter
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        invitation = await made.door.invite()
        await den.join(invitation)
        assert r"its name, d\u0435n, has letters beyond ASCII" in den.told
        assert "sealring join INVITATION --name NAME" in den.told
        assert r"d\u0435n (" in caplog.text
        assert made.door.waiting() == []
        nursery.start_soon(Machine("den", signer=den.signer).join, invitation)
        assert [knock.name for knock in await made.knocked()] == ["den"]
        nursery.cancel_scope.cancel()


async def test_what_a_machine_says_of_its_system_is_shown_as_ascii(tmp_path: Path) -> None:
    """Letters of other scripts could show what follows them before them."""
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        knock = await asked(made, Machine(system="\u05d0" * 64), nursery)
        assert knock.facts()["system"] == ("\\u05d0" * 64)[:128]
        nursery.cancel_scope.cancel()


def test_a_fingerprint_is_four_words() -> None:
    """Of SHA-256 of 65 bytes x: 0x9410... by 11 bits."""
    assert fingerprint(b"x" * 65) == "news-sail-legal-time"


async def test_a_machine_that_never_says_it_joined_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealring.joining.door.JOINED_SECONDS", 1.0)
    monkeypatch.setattr(JoinLine, "stored", lambda _: None)
    den, other = Machine(), Machine("other", ("127.0.0.1:7998",))
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        with pytest.raises(OperationError, match="has not joined: it is too slow"):
            await made.accept()
        await den.over.wait()
        assert made.door.waiting() == []
        monkeypatch.undo()
        await asked(made, other, nursery)
        await made.accept()
        assert made.names == ["desk", "other"]
        # What the first one was sent is older than what is in force now.
        assert made.installed == [3]


async def test_an_inviter_that_never_ends_the_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealring.joining.asking.JOIN_PATIENCE", 0.5)
    monkeypatch.setattr("sealring.joining.asking.SAY_SECONDS", 0.5)

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Door, "_joined", never)
    den = Machine()
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        await asked(made, den, nursery)
        nursery.start_soon(_accepted, made)
        with trio.fail_after(SECONDS):
            await den.over.wait()
        assert den.ended is True
        nursery.cancel_scope.cancel()


async def _accepted(made: Home) -> None:
    with contextlib.suppress(OperationError):
        await made.accept()


async def test_strangers_take_neither_descriptors_nor_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that show no invitation: closed at once, and not in the place of who has shown one."""
    den, signing, slow = Machine(), trio.Event(), trio.Event()
    sign = JoinLine._sign

    async def slowly(line: JoinLine, payload: bytes) -> None:
        if line._signer is den.signer:
            signing.set()
            await slow.wait()
        await sign(line, payload)

    monkeypatch.setattr(JoinLine, "_sign", slowly)
    async with home(tmp_path) as made, trio.open_nursery() as nursery:
        invitation = await made.door.invite()
        nursery.start_soon(den.join, invitation)
        await signing.wait()
        before = len(os.listdir("/dev/fd"))
        strangers = [await trio.open_tcp_stream(*made.door.address) for _ in range(5 * MAX_JOINS)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(os.listdir("/dev/fd")) < before + len(strangers) + MAX_JOINS
        slow.set()
        assert [knock.name for knock in await made.knocked()] == ["den"]
        for stranger in strangers:
            await stranger.aclose()
        nursery.cancel_scope.cancel()
