"""A node that other members ask for files of its model: what it takes, and what ends the link."""

from __future__ import annotations

from random import Random

import attrs
import pytest
from sealring_protocol import events
from sealring_protocol.codec.messages import Get, Piece, Progress
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import CloseCode, LocalProtocolError
from sealring_protocol.limits import MAX_GETS, MAX_PIECE
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.roles import Purpose

from tests.driver import End, drive
from tests.link.pair import config
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import COORDINATOR, WALL, make_roster, signer

HEADER = Get("model.safetensors", 0, 8)


@attrs.define
class Holder:
    """A node, and what it asks of its runtime. It has no clock: everything happens at 1 s."""

    node: Node
    index: int
    told: list[events.NodeEvent] = attrs.field(factory=list)
    links: dict[int, End] = attrs.field(factory=dict)

    @classmethod
    def of(cls, world: int = 3, index: int = 0, *, relays: bool = False) -> Holder:
        key, roster = signer(index).public_key, make_roster(world)
        about = NodeConfig(key, roster, COORDINATOR.public_key, 9, relays=relays)
        return cls(Node(about, 1.0), index)

    def asked_by(self, index: int, instance: int = 0, purpose: Purpose = Purpose.WEIGHTS) -> End:
        """Member *index*, with a link of *purpose* that it has dialed."""
        peer = node_id(signer(self.index).public_key)
        roster = self.node.roster
        about = config(index, roster, instance=instance)
        entropy = Random(len(self.links)).randbytes(96)  # the same twice would be a replay
        link = Link.dial(about, peer, purpose, 1.0, WALL, entropy)
        number = self.node.accepted("a host", entropy[:32], 1.0, WALL)
        end = self.links[number] = End(link, signer(index))
        self.run()
        return end

    def run(self) -> None:
        """Carry bytes both ways until there are none."""
        moved = True
        while moved:
            moved = False
            for number, end in self.links.items():
                if data := bytes(end.link.data_to_send()):
                    moved = True
                    self.node.receive_data(number, data, 1.0)
            for event in drive(self.node, signer(self.index), 1.0):
                moved = True
                self.told.append(event)
                if isinstance(event, events.Hangup) and event.link in self.links:
                    self._feed(self.links[event.link], event.last)
            for number in self.node.links_to_flush():
                moved = True
                self._feed(self.links[number], bytes(self.node.data_to_send(number)))

    def _feed(self, end: End, data: bytes) -> None:
        if data:
            end.receive(data, 1.0)

    def asked(self) -> list[events.WeightsAsked]:
        """What was asked since this was last called."""
        found = [event for event in self.told if isinstance(event, events.WeightsAsked)]
        self.told = [event for event in self.told if not isinstance(event, events.WeightsAsked)]
        return found

    def give(self, link: int, piece: Piece) -> None:
        self.node.give_piece(link, piece, 1.0)
        self.run()


def send(holder: Holder, end: End, *messages: object) -> None:
    for message in messages:
        end.link.send(message)
    holder.run()


def closed(end: End) -> int | None:
    """The code with which the node closed the link of *end*, if it did."""
    return next((event.code for event in end.events if isinstance(event, LinkClosed)), None)


def test_what_is_asked_is_told_and_what_is_given_arrives_in_order():
    holder = Holder.of()
    end = holder.asked_by(2)
    send(holder, end, HEADER, Get("", 5, 7))
    first, second = holder.asked()
    assert (first.rank, first.get, second.get) == (2, HEADER, Get("", 5, 7))
    assert first.link == second.link
    holder.give(first.link, Piece(100, b"12345678"))
    holder.give(first.link, Piece(0, b"", "no"))
    given = [event for event in end.events if isinstance(event, Piece)]
    assert [(p.size, bytes(p.data), p.reason) for p in given] == [
        (100, b"12345678", ""),
        (0, b"", "no"),
    ]


def test_every_member_may_ask_every_other():
    for index in (0, 1, 2):
        holder = Holder.of(4, 3)
        end = holder.asked_by(index)
        assert end.up is not None
        send(holder, end, HEADER)
        assert [asked.rank for asked in holder.asked()] == [index]


def test_the_ninth_question_without_an_answer_ends_the_link():
    holder = Holder.of()
    end = holder.asked_by(1)
    send(holder, end, *[HEADER] * MAX_GETS)
    assert len(holder.asked()) == MAX_GETS
    assert closed(end) is None
    send(holder, end, HEADER)
    assert closed(end) == CloseCode.LIMIT_EXCEEDED


def test_an_answer_makes_room_for_a_question():
    holder = Holder.of()
    end = holder.asked_by(1)
    for _ in range(5 * MAX_GETS):
        send(holder, end, HEADER)
        (asked,) = holder.asked()
        holder.give(asked.link, Piece(100, b"12345678"))
    assert closed(end) is None


def test_who_asks_gives_nothing():
    holder = Holder.of()
    end = holder.asked_by(1)
    send(holder, end, Piece(3, b"abc"))
    assert closed(end) == CloseCode.ROLE_VIOLATION
    assert holder.asked() == []


def test_the_answers_of_a_link_that_is_gone_go_nowhere():
    holder = Holder.of()
    end = holder.asked_by(1)
    send(holder, end, HEADER)
    (asked,) = holder.asked()
    again = holder.asked_by(1, instance=55)  # its process has restarted
    assert closed(end) == CloseCode.REPLACED
    holder.give(asked.link, Piece(100, b"12345678"))
    assert [event for event in again.events if isinstance(event, Piece)] == []
    send(holder, again, HEADER)
    (asked,) = holder.asked()
    holder.give(asked.link, Piece(100, b"87654321"))
    assert len([event for event in again.events if isinstance(event, Piece)]) == 1


def test_a_member_has_one_link_for_its_questions():
    holder = Holder.of()
    holder.asked_by(1)
    again = holder.asked_by(1)
    assert closed(again) == CloseCode.DUPLICATE_LINK


def test_a_piece_beyond_its_limit_is_the_givers_fault_and_ends_the_link_alone():
    holder = Holder.of()
    end, other = holder.asked_by(1), holder.asked_by(2)
    send(holder, end, HEADER)
    (asked,) = holder.asked()
    holder.give(asked.link, Piece(1 << 30, bytes(MAX_PIECE + 1)))
    assert [event for event in end.events if isinstance(event, Piece)] == []
    send(holder, other, HEADER)
    assert len(holder.asked()) == 1


@pytest.mark.parametrize("message", [HEADER, Piece(0)])
def test_links_of_other_purposes_carry_no_files(message):
    holder = Holder.of()
    peer = node_id(signer(0).public_key)
    link = Link.dial(config(1), peer, Purpose.CONTROL, 1.0, WALL, bytes(range(96)))
    number = holder.node.accepted("a host", bytes(range(32)), 1.0, WALL)
    end = holder.links[number] = End(link, signer(1))
    holder.run()
    with pytest.raises(LocalProtocolError):
        end.link.send(message)


def test_the_ring_serves_while_members_ask_and_when_the_roster_changes():
    cluster = Cluster(2, 5)
    cluster.run_until(lambda: cluster.ready)
    node = cluster.head.node
    number = node.accepted("a host", bytes(range(32)), cluster.now, WALL)
    peer = node_id(signer(0).public_key)
    about = config(1, node.roster, instance=77)
    asker = End(
        Link.dial(about, peer, Purpose.WEIGHTS, cluster.now, WALL, bytes(range(96))), signer(1)
    )
    for _ in range(8):
        node.receive_data(number, bytes(asker.link.data_to_send()), cluster.now)
        for event in drive(node, signer(0), cluster.now):
            cluster._on(cluster.head, event)
        asker.receive(bytes(node.data_to_send(number)), cluster.now)
    assert asker.up is not None
    asker.link.keepalive.progress = Progress()
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.LENGTH
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)
