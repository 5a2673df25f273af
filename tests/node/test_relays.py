"""Requests that members pass on to the head: their links, their streams, and how both end."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.errors import CloseCode
from sealring_protocol.events import Dial, RelayDown, RelayEventCame, RelayUp
from sealring_protocol.limits import MAX_STREAMS, STREAM_WINDOW
from sealring_protocol.link import LinkClosed
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.relay import (
    AskCame,
    BodyCame,
    DropCame,
    Relay,
    RelayEvent,
    ReplyCame,
    RoomCame,
)
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Rights, Roster, sign_roster

from tests.driver import drive
from tests.node.test_giving import Holder, closed, send
from tests.sim.cluster import Cluster
from tests.sim.hosts import Host
from tests.sim.rosters import COORDINATOR, make_roster, signer

QUESTION = Question("POST", b"/v1/completions", False, "10.0.0.9", ((b"host", b"desk:8000"),))
BODY = bytes(range(256)) * 1200  # more than two windows


@attrs.define
class Door:
    """What the daemon of *host* does: it reads the events of its API links, and sends and consumes
    bodies as there is room, unless it *stalls*. The head echoes what it is asked."""

    cluster: Cluster
    host: Host
    stalls: bool = False
    sending: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    came: dict[tuple[int, int], list[RelayEvent]] = attrs.field(factory=dict)
    ups: list[int] = attrs.field(factory=list)
    downs: list[RelayDown] = attrs.field(factory=list)

    def ask(self, body: bytes = BODY, rank: int = 0) -> tuple[int, int]:
        key = rank, self.relay(rank).ask(QUESTION)
        self.sending[key] = body
        self.pump(*key)
        return key

    def relay(self, rank: int) -> Relay:
        relay = self.host.node.relay(rank)
        assert relay is not None
        return relay

    def pump(self, rank: int, stream: int) -> None:
        relay = self.relay(rank)
        if (body := self.sending.get((rank, stream))) is not None and relay.is_live(stream):
            size = relay.room(stream)
            if size or not body:
                relay.send(stream, body[:size], last=size >= len(body))
                self.sending[rank, stream] = body[size:]
                if size >= len(body):
                    del self.sending[rank, stream]
        self.host.node.relay_flush(rank, self.cluster.now)
        self.cluster.settle(self.host)

    def look(self) -> None:
        news, self.host.relayed = self.host.relayed, []
        for event in news:
            match event:
                case RelayUp(rank):
                    self.ups.append(rank)
                case RelayDown():
                    self.downs.append(event)
                case RelayEventCame(rank, what):
                    self.came.setdefault((rank, what.stream), []).append(what)
                    if self.host.node.relay(rank) is not None:
                        self._on(rank, what)

    def _on(self, rank: int, event: RelayEvent) -> None:
        relay = self.relay(rank)
        match event:
            case BodyCame(stream, data, last) if not self.stalls:
                relay.took(stream, len(data))
                if relay.is_live(stream) and self.host.node.rank == 0 and last:
                    relay.reply(stream, 200, ((b"x-rank", b"%d" % rank),))
                    came = self.came[rank, stream]
                    parts = [each.data for each in came if isinstance(each, BodyCame)]
                    self.sending[rank, stream] = b"".join(parts)
            case DropCame(stream):
                relay.drop(stream)
        self.pump(rank, event.stream)

    def answer(self, key: tuple[int, int]) -> tuple[int, bytes, bool]:
        """The status and the body that came for *key*, and whether that is whole."""
        parts = [each for each in self.came.get(key, []) if isinstance(each, BodyCame)]
        status = next((e.status for e in self.came.get(key, []) if isinstance(e, ReplyCame)), 0)
        return status, b"".join(each.data for each in parts), any(each.last for each in parts)

    def ends(self) -> list[str]:
        """Why streams were dropped."""
        return [e.reason for came in self.came.values() for e in came if isinstance(e, DropCame)]


def doors(cluster: Cluster) -> list[Door]:
    return [Door(cluster, host) for host in cluster.hosts.values()]


def run(doors: list[Door], seconds: float = 3.0) -> None:
    """Let virtual time pass, and have each door do its part."""
    cluster = doors[0].cluster
    until = cluster.now + seconds
    while cluster.step(until):
        for door in doors:
            if door.host.alive and door.host.relayed:
                door.look()


def api_links(cluster: Cluster, index: int) -> list[int]:
    links = cluster.hosts[f"host{index}"].node.links()
    return sorted(rank for rank, purpose, _ in links if purpose is Purpose.API)


def test_every_member_with_clients_asks_the_head_and_has_its_answers_whole():
    cluster = Cluster(3, 1, relays=range(3))
    head, *others = all_doors = doors(cluster)
    run(all_doors)
    assert sorted(head.ups) == [1, 2]
    keys = [(door, door.ask(BODY[: 1000 + 99_000 * n])) for door in others for n in range(4)]
    assert {key for _, key in keys} == {(0, stream) for stream in range(1, 5)}
    run(all_doors)
    for n, (door, key) in enumerate(keys):
        assert door.answer(key) == (200, BODY[: 1000 + 99_000 * (n % 4)], True)
    for rank in (1, 2):
        assert head.relay(rank).streams == others[rank - 1].relay(0).streams == 0
        assert head.came[rank, 1][0] == AskCame(1, QUESTION)


@pytest.mark.parametrize(
    ("relays", "links", "tries"),
    [((), [], 0), ((0,), [], 4), ((1, 2), [], 4), ((0, 2), [2], 2)],
)
def test_there_are_links_only_where_both_ends_have_said_so(relays, links, tries):
    cluster = Cluster(3, 1, relays=relays)
    run(doors(cluster), 20.0)
    assert api_links(cluster, 0) == links
    refused = [text for _, _, text in cluster.notes if "passes no requests on" in text]
    assert len(refused) == tries, "each end of each link says so once, and nobody tries again"
    assert not [text for _, text in cluster.warnings if "api" in text]
    assert cluster.ready


def test_a_client_that_reads_nothing_stops_its_own_stream_alone():
    cluster = Cluster(2, 1, relays=range(2))
    head, other = all_doors = doors(cluster)
    run(all_doors)
    other.stalls = True
    slow = other.ask()
    run(all_doors)
    assert len(other.answer(slow)[1]) == STREAM_WINDOW
    assert head.relay(1).room(1) == 0
    other.stalls = False
    quick = other.ask(b"quick")
    run(all_doors)
    assert other.answer(quick) == (200, b"quick", True)
    other.relay(0).took(slow[1], STREAM_WINDOW)
    other.pump(*slow)
    run(all_doors)
    assert other.answer(slow)[1:] == (BODY, True)


def test_a_client_that_leaves_ends_the_work_at_the_head():
    cluster = Cluster(2, 1, relays=range(2))
    head, other = all_doors = doors(cluster)
    run(all_doors)
    key = other.ask()
    other.relay(0).drop(key[1], "the client has gone")
    other.pump(*key)
    run(all_doors)
    assert head.ends() == ["the client has gone"]
    assert other.ends() == []
    assert head.relay(1).streams == other.relay(0).streams == 0


def test_a_head_that_dies_ends_every_stream_and_has_them_again_once_it_is_back():
    cluster = Cluster(3, 1, relays=range(3))
    _, *others = all_doors = doors(cluster)
    run(all_doors)
    for door in others:
        door.stalls = True
        door.ask()
    cluster.crash(cluster.head)
    run(all_doors, 1.0)
    for door in others:
        assert door.host.node.relay(0) is None
        assert door.ends() == [door.downs[0].reason]
        assert [down.rank for down in door.downs] == [0]
    back = Door(cluster, cluster.boot(0))
    run([back, *others], 8.0)
    assert sorted(back.ups) == [1, 2]
    for door in others:
        door.stalls = False
    keys = [door.ask(b"again") for door in others]
    assert keys == [(0, 1)] * 2, "a new link counts its own streams"
    run([back, *others])
    assert [door.answer(key)[1:] for door, key in zip(others, keys, strict=True)] == [
        (b"again", True)
    ] * 2


def test_a_member_that_dies_ends_its_streams_and_no_others():
    cluster = Cluster(3, 1, relays=range(3))
    head, one, two = all_doors = doors(cluster)
    run(all_doors)
    one.ask(b"one")
    kept = two.ask(BODY)
    run(all_doors, 0.01)
    cluster.crash(one.host)
    run(all_doors, 1.0)
    assert [down.rank for down in head.downs] == [1]
    assert head.host.node.relay(1) is None
    assert two.answer(kept) == (200, BODY, True)


def test_a_roster_with_another_head_turns_the_links_around():
    old, new = make_roster(3, serial=1), make_roster(3, serial=2, order=(1, 0, 2))
    cluster = Cluster(3, 1, rosters=[old] * 3, relays=range(3))
    all_doors = doors(cluster)
    run(all_doors)
    for door in all_doors[1:]:
        door.stalls = True
        door.ask()
    run(all_doors, 0.2)
    cluster.hosts["host0"].node.bring_roster(
        new.encode(), cluster.now, int((cluster.now + 1) * 1000)
    )
    cluster.settle(cluster.head)
    run(all_doors, 10.0)
    assert [door.host.node.rank for door in all_doors] == [1, 0, 2]
    assert [len(door.ends()) for door in all_doors] == [2, 1, 1]
    assert api_links(cluster, 1) == [1, 2]
    key = all_doors[0].ask(b"to the new head")
    all_doors[1].stalls = False
    run(all_doors)
    assert all_doors[0].answer(key) == (200, b"to the new head", True)


@pytest.mark.parametrize("hidden", [0, 1])
def test_one_of_the_two_may_be_where_nobody_can_dial_it(hidden):
    """As behind a NAT."""
    usual = make_roster(2).roster
    members = [attrs.evolve(m, addresses=()) if n == hidden else m for n, m in numbered(usual)]
    roster = sign_roster(attrs.evolve(usual, members=tuple(members)), COORDINATOR)
    cluster = Cluster(2, 1, rosters=[roster] * 2, relays=range(2))
    head, other = all_doors = doors(cluster)
    run(all_doors, 5.0)
    key = other.ask()
    run(all_doors)
    assert other.answer(key) == (200, BODY, True)
    assert len(head.ups) == 1


def numbered(roster: Roster) -> list[tuple[int, Member]]:
    return list(enumerate(roster.members))


def test_a_member_that_may_see_no_texts_passes_nothing_on():
    blind = make_roster(3, serial=1, rights={1: Rights(0)})
    cluster = Cluster(3, 1, rosters=[blind] * 3, relays=range(3))
    all_doors = doors(cluster)
    run(all_doors, 20.0)
    assert api_links(cluster, 0) == [2]
    key = all_doors[2].ask()
    usual = make_roster(3, serial=2)
    cluster.head.node.bring_roster(usual.encode(), cluster.now, int((cluster.now + 1) * 1000))
    cluster.settle(cluster.head)
    run(all_doors, 10.0)
    assert all_doors[2].downs
    assert all_doors[2].answer(key)[2] or all_doors[2].ends()
    assert api_links(cluster, 0) == [1, 2]
    cluster.head.node.bring_roster(
        make_roster(3, serial=3, rights={1: Rights(0), 2: Rights.TEXT | Rights.WITNESS}).encode(),
        cluster.now,
        int((cluster.now + 1) * 1000),
    )
    cluster.settle(cluster.head)
    run(all_doors, 10.0)
    assert api_links(cluster, 0) == [2], "a witness has clients, too"


def test_a_member_that_may_see_no_texts_is_refused():
    holder = Holder(Node(config_of(rights={1: Rights(0)}), 1.0), 0)
    blind = holder.asked_by(1, purpose=Purpose.API)
    assert closed(blind) == CloseCode.REFUSED
    reason = next(event.reason for event in blind.events if isinstance(event, LinkClosed))
    assert reason == "the roster lets node1 see no texts"


def config_of(rights: dict[int, Rights]) -> NodeConfig:
    roster, key = make_roster(3, rights=rights), signer(0).public_key
    return NodeConfig(key, roster, COORDINATOR.public_key, 9, relays=True)


def test_a_node_that_stops_tells_its_caller_of_every_stream():
    cluster = Cluster(2, 1, relays=range(2))
    head, other = all_doors = doors(cluster)
    run(all_doors)
    other.stalls = True
    other.ask()
    run(all_doors, 0.1)
    head.host.relayed.clear()
    head.host.node.stop(cluster.now)
    cluster.settle(head.host)
    assert head.host.relayed[-1] == RelayDown(1, "the node shuts down")
    run(all_doors, 1.0)
    assert other.ends() == [other.downs[0].reason]


# ------------------------------------------------------------------ hostile members

ASK = Ask(1, QUESTION)
FAULTS = {
    "a stream that is not the next": ([Ask(2, QUESTION)], CloseCode.PROTOCOL_ERROR),
    "the same stream twice": ([ASK, ASK], CloseCode.PROTOCOL_ERROR),
    "too many streams": (
        [Ask(n, QUESTION) for n in range(1, MAX_STREAMS + 2)],
        CloseCode.LIMIT_EXCEEDED,
    ),
    "a body of no stream": ([BodyPart(1, b"x")], CloseCode.PROTOCOL_ERROR),
    "more after the last": (
        [ASK, BodyPart(1, b"", last=True), BodyPart(1, b"x")],
        CloseCode.PROTOCOL_ERROR,
    ),
    "more than its credit": ([ASK, *[BodyPart(1, bytes(65536))] * 3], CloseCode.LIMIT_EXCEEDED),
    "credit for what was not sent": ([ASK, Credit(1, 1)], CloseCode.LIMIT_EXCEEDED),
    "credit of no stream": ([Credit(1, 1)], CloseCode.PROTOCOL_ERROR),
    "a drop of no stream": ([Drop(1)], CloseCode.PROTOCOL_ERROR),
    "two drops": ([ASK, Drop(1), Drop(1)], CloseCode.PROTOCOL_ERROR),
    "more after its drop": ([ASK, Drop(1), BodyPart(1, b"x")], CloseCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("messages", "code"), FAULTS.values(), ids=[*FAULTS])
def test_a_member_that_does_what_it_may_not_loses_its_link_alone(messages, code):
    holder = Holder.of(relays=True)
    hostile, honest = (holder.asked_by(index, purpose=Purpose.API) for index in (1, 2))
    send(holder, honest, ASK)
    send(holder, hostile, *messages)
    assert closed(hostile) == code
    assert closed(honest) is None
    assert holder.node.relay(1) is None
    assert holder.node.relay(2).streams == 1
    assert [event.rank for event in holder.told if isinstance(event, RelayDown)] == [1]


def test_a_member_may_not_answer():
    holder = Holder.of(relays=True)
    hostile = holder.asked_by(1, purpose=Purpose.API)
    hostile.link._may_send |= {Reply}
    send(holder, hostile, Reply(1, 200))
    assert closed(hostile) == CloseCode.ROLE_VIOLATION


@pytest.mark.parametrize("index", [1, 2])
def test_only_the_head_is_asked_and_it_asks_nobody(index):
    holder = Holder.of(index=index, relays=True)
    other = holder.asked_by(3 - index, purpose=Purpose.API)
    assert closed(other) == CloseCode.REFUSED
    reason = next(event.reason for event in other.events if isinstance(event, LinkClosed))
    assert reason == "only the head answers requests of other members"
    head = holder.asked_by(0, purpose=Purpose.API)
    assert holder.node.relay(0) is not None
    head.link._may_send |= {Ask}
    send(holder, head, ASK)
    assert closed(head) == CloseCode.ROLE_VIOLATION


@pytest.mark.parametrize(("purpose", "again"), [(Purpose.API, 0), (Purpose.CONTROL, 1)])
def test_who_is_refused_gives_an_api_link_up_and_no_other(purpose, again):
    holder = Holder.of(2, index=1, relays=True)
    holder.node.start(1.0)
    heads = {each: holder.asked_by(0, purpose=each) for each in (Purpose.CONTROL, Purpose.API)}
    heads[purpose].link.close(CloseCode.REFUSED, "not you")
    holder.run()
    holder.node.handle_timeout(9.0)
    dialed = [each for each in drive(holder.node, signer(1), 9.0) if isinstance(each, Dial)]
    assert len(dialed) == again


def test_room_grows_with_credit_and_an_owner_that_takes_by_halves_gives_it():
    holder = Holder.of(relays=True)
    member = holder.asked_by(1, purpose=Purpose.API)
    send(holder, member, ASK, *[BodyPart(1, bytes(65536))] * 2)
    relay = holder.node.relay(1)
    relay.took(1, STREAM_WINDOW // 2 - 1)
    holder.node.relay_flush(1, 1.0)
    holder.run()
    assert not [event for event in member.events if isinstance(event, Credit)]
    relay.took(1, 1)
    holder.node.relay_flush(1, 1.0)
    holder.run()
    assert [e for e in member.events if isinstance(e, Credit)] == [Credit(1, STREAM_WINDOW // 2)]
    relay.reply(1, 200, ())
    relay.send(1, bytes(STREAM_WINDOW), last=False)
    holder.node.relay_flush(1, 1.0)
    holder.run()
    send(holder, member, Credit(1, 7))
    came = [event.event for event in holder.told if isinstance(event, RelayEventCame)]
    assert came[-1] == RoomCame(1)
    assert relay.room(1) == 7
