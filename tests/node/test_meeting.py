"""How nodes find each other: duplicates, crossing dials, spreading rosters, who is turned away."""

from __future__ import annotations

import pytest
from sealring_protocol import limits
from sealring_protocol.control.head.plan import Strategy
from sealring_protocol.control.scheduler.requests import FinishReason, Request
from sealring_protocol.diagnosis.peers import SAME_KEY
from sealring_protocol.diagnosis.why import Cause
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import Hangup
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roles import Purpose

from tests.driver import events_of
from tests.sim.cluster import COORDINATOR, WALL, Cluster, make_roster, signer
from tests.sim.fake_engine import reference


def links_of(cluster: Cluster, index: int) -> list[tuple[int, Purpose]]:
    node = cluster.hosts[f"host{index}"].node
    return sorted((rank, purpose) for rank, purpose, _ in node.links())


def ring_links(rank: int, world: int) -> list[tuple[int, Purpose]]:
    peers = {(rank + 1) % world, (rank - 1) % world} - {rank}
    steps = {(peer, Purpose.STEP) for peer in peers}
    others = range(1, world) if rank == 0 else [0]
    return sorted(steps | {(peer, Purpose.CONTROL) for peer in others})


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_between_two_nodes_there_is_one_link_of_each_purpose(world, seed):
    # Head and ranks dial each other's control links at about the same time: some of these cross.
    cluster = Cluster(world, seed, delay=0.02)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(3.0)
    for rank in range(world):
        assert links_of(cluster, rank) == ring_links(rank, world)


def test_dials_that_cross_leave_one_link_and_no_error():
    crossed = 0
    for seed in range(40):
        cluster = Cluster(2, seed, delay=0.05, at_once=True)
        cluster.run_until(lambda cluster=cluster: cluster.ready)
        cluster.run_for(1.0)
        assert links_of(cluster, 0) == ring_links(0, 2)
        assert links_of(cluster, 1) == ring_links(1, 2)
        crossed += any("already" in text for _, _, text in cluster.notes)
    assert crossed > 5


ONE_WAY = {
    "nobody reaches the last": {("host0", "host2"), ("host1", "host2")},
    "nobody reaches the head": {("host1", "host0"), ("host2", "host0")},
    "each reaches the one before": {("host0", "host1"), ("host1", "host2"), ("host2", "host0")},
    "each reaches the one after": {("host1", "host0"), ("host2", "host1"), ("host0", "host2")},
}


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("closed", ONE_WAY)
def test_a_link_comes_up_in_whichever_direction_it_can_be_opened(closed, strategy):
    cluster = Cluster(3, 4, strategy=strategy, splits=3)
    cluster.closed = ONE_WAY[closed]
    cluster.run_until(lambda: cluster.ready, 10.0)
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)


def test_two_neighbours_that_cannot_reach_each_other_are_named_to_the_head():
    cluster = Cluster(3, 4, strategy=Strategy.PIPELINE)
    cluster.closed = {("host1", "host2"), ("host2", "host1")}
    cluster.run_for(40.0)
    assert not cluster.ready
    told = [text for _, who, text in cluster.notes if who == "host0" and "cannot serve" in text]
    why = "node1 cannot reach node2 at host2:1 (no answer within 5 s), nor node2 node1"
    assert told[0] == f"rank 1 (node1) cannot serve: {why}"
    cluster.closed.clear()
    cluster.run_until(lambda: cluster.ready, 20.0)


def test_the_end_that_yields_dials_nothing_in_an_ordinary_start():
    for seed in range(10):
        cluster = Cluster(3, seed)
        dials = []
        real = cluster._connect

        def count(host, link, address, real=real, dials=dials):
            dials.append((host.name, address))
            real(host, link, address)

        cluster._connect = count
        cluster.run_until(lambda cluster=cluster: cluster.ready)
        cluster.run_for(3.0)
        # Control links are dialed from both ends, and every member is greeted; a step link once.
        both = 2 * 3
        assert len(dials) <= both + 3 + 1, dials


def test_a_newer_roster_spreads_to_all_and_is_stored():
    old, new = make_roster(3, serial=1), make_roster(3, serial=2)
    cluster = Cluster(3, 1, rosters=[old, old, new])
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(5.0)
    for index in range(3):
        host = cluster.hosts[f"host{index}"]
        assert host.node.roster.roster.serial == 2
        assert [len(data) for data in host.stored] == ([] if index == 2 else [len(new.encode())])


def test_a_roster_with_other_ranks_begins_the_ring_anew():
    cluster = Cluster(
        3,
        3,
        rosters=[make_roster(3, serial=1, order=(0, 1))] * 2
        + [make_roster(3, serial=2, order=(0, 2, 1))],
    )
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(6.0)
    assert [cluster.hosts[f"host{i}"].node.rank for i in range(3)] == [0, 2, 1]
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)
    assert cluster.hosts["host0"].node.world == 3


CHANGES = {
    "a member joins": ((0, 1), (0, 1, 2), 2),
    "a member joins before others": ((0, 1), (0, 2, 1), 2),
    "a member goes": ((0, 1, 2), (0, 1), 1),
    "members change places": ((0, 1, 2), (0, 2, 1), 1),
    "the machine that is waited for": ((0, 1), (0, 2), 2),
}
"""The members before and after, in rank order; who brings the newer roster."""


@pytest.mark.parametrize("splits", [0, 6], ids=["pipeline", "tensor"])
@pytest.mark.parametrize(("before", "after", "bringer"), CHANGES.values(), ids=CHANGES)
def test_requests_go_on_in_the_ring_of_a_newer_roster(before, after, bringer, splits):
    old, new = (make_roster(3, n, order=order) for n, order in ((1, before), (2, after)))
    cluster = Cluster(len(before), 3, rosters=[old] * len(before), splits=splits)
    cluster.run_until(lambda: cluster.ready)
    lengths = {cluster.submit(Request((4, 5, 6 + n), 400 + n)): n for n in range(9)}  # some wait
    cluster.run_for(0.3)
    epoch = cluster.head.node.brain.membership.epoch
    if bringer == 2 and 1 not in after:
        cluster.crash(cluster.hosts["host1"])
        cluster.run_for(3.0)
    cluster.rosters = [*cluster.rosters[:bringer], new]
    cluster.models = [b"m" * 32] * 3
    if f"host{bringer}" in cluster.hosts:
        cluster.crash(cluster.hosts[f"host{bringer}"])
        cluster.run_for(0.2)
    assert not cluster.done
    cluster.boot(bringer)
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.head.node.world == len(after)
    assert cluster.head.node.brain.membership.epoch > epoch  # none is used twice
    for uid, n in lengths.items():
        assert cluster.done[uid].reason is FinishReason.LENGTH
        assert cluster.tokens[uid] == reference((4, 5, 6 + n), 400 + n, 6)


def test_requests_end_with_the_reason_when_another_is_made_the_head():
    old, new = make_roster(2, serial=1), make_roster(2, serial=2, order=(1, 0))
    cluster = Cluster(2, 3, rosters=[old, old])
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((4, 5, 6), 3000))
    cluster.run_for(0.5)
    cluster.rosters[1] = new
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(0.5)
    cluster.boot(1)
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.FAILED
    assert cluster.done[uid].message == "roster 2 makes node1 the head; ask there"


def test_a_head_that_was_not_for_a_while_repeats_no_epoch():
    orders = ((0, 1), (1, 0), (0, 1))
    rosters = [make_roster(2, n, order=order) for n, order in enumerate(orders, start=1)]
    cluster = Cluster(2, 3, rosters=[rosters[0]] * 2)
    cluster.run_until(lambda: cluster.ready)
    epoch = cluster.head.node.brain.membership.epoch
    for roster in rosters[1:]:
        cluster.crash(cluster.hosts["host1"])
        cluster.rosters[1] = roster
        cluster.notes.clear()
        cluster.run_for(0.5)
        cluster.boot(1)
        cluster.run_until(lambda: cluster.ready)
    again = cluster.head.node.brain.membership.epoch
    assert again.instance == epoch.instance
    assert again.counter > epoch.counter


def test_two_rosters_with_one_serial_never_meet():
    cluster = Cluster(2, 1, rosters=[make_roster(2), make_roster(2, inner_seal=False)])
    cluster.run_for(5.0)
    assert not cluster.ready
    assert any("same serial" in text for _, _, text in cluster.notes)


def test_a_member_that_was_put_out_is_put_off():
    old, new = make_roster(3, serial=1), make_roster(3, serial=2, order=(0, 1))
    cluster = Cluster(3, 2, rosters=[old, old, old])
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.rosters[1] = new
    cluster.run_for(0.3)
    cluster.notes.clear()
    cluster.boot(1)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(2.0)
    assert cluster.head.node.world == 2
    assert links_of(cluster, 0) == ring_links(0, 2)
    assert links_of(cluster, 2) == []


def test_a_node_that_is_no_member_does_not_start():
    stranger = SoftwareSigner.from_scalar(5)
    config = NodeConfig(stranger.public_key, make_roster(2), COORDINATOR.public_key, 1)
    with pytest.raises(LocalProtocolError, match="does not hold this node"):
        Node(config, 0.0)


def connect(node: Node, source: str, now: float = 0.0) -> tuple[int, list[Hangup]]:
    number = node.accepted(source, bytes(32), now, WALL)
    return number, hangups_of(node)


def hangups_of(node: Node) -> list[Hangup]:
    return [event for event in events_of(node) if isinstance(event, Hangup)]


def test_strangers_are_capped_by_source_and_in_all_and_forgotten_in_time():
    config = NodeConfig(signer(0).public_key, make_roster(2), COORDINATOR.public_key, 1)
    node = Node(config, 0.0)
    for _ in range(limits.MAX_HANDSHAKES_PER_SOURCE):
        assert connect(node, "10.0.0.1")[1] == []
    first = connect(node, "10.0.0.1")[1]  # takes the place of the oldest
    assert [hangup.link for hangup in first] == [1]
    general = limits.MAX_HANDSHAKES - limits.RESERVED_HANDSHAKES
    sources = general // limits.MAX_HANDSHAKES_PER_SOURCE
    for source in range(1, sources):
        for _ in range(limits.MAX_HANDSHAKES_PER_SOURCE):
            assert connect(node, f"10.0.1.{source}")[1] == []
    assert len(connect(node, "10.0.2.1")[1]) == 1
    node.handle_timeout(limits.INIT_TIMEOUT)
    hangups = hangups_of(node)
    assert len(hangups) == general
    assert not any(hangup.last for hangup in hangups)
    assert connect(node, "10.0.0.1", limits.INIT_TIMEOUT)[1] == []


def test_bytes_for_a_connection_that_is_gone_are_ignored():
    config = NodeConfig(signer(0).public_key, make_roster(2), COORDINATOR.public_key, 1)
    node = Node(config, 0.0)
    number, _ = connect(node, "x")
    node.receive_eof(number, 0.0)
    node.receive_data(number, b"late", 0.0)
    node.receive_eof(number, 0.0)
    node.provide_signature(number, bytes(64), 0.0)
    node.provide_encapsulation(number, b"", b"", 0.0)
    node.roster_stored(number, 0.0)
    node.connected(number, bytes(96), 0.0, WALL)
    node.dial_failed(number, "late", 0.0)
    assert node.data_to_send(number) == b""


def test_stopping_closes_every_link_and_says_so():
    cluster = Cluster(3, 1)
    cluster.run_until(lambda: cluster.ready)
    cluster.head.node.stop(cluster.now)
    cluster.settle(cluster.head)
    assert links_of(cluster, 0) == []
    cluster.run_for(0.2)
    assert any("the node shuts down" in text for _, who, text in cluster.notes if who != "host0")


def put_out(cluster: Cluster, index: int) -> list[str]:
    """What node *index* has said of being put out."""
    return [
        text
        for _, who, text in cluster.notes
        if who == f"host{index}" and "in which this node is no member" in text
    ]


@pytest.mark.parametrize("away", [False, True])
def test_a_member_that_was_put_out_is_told_once_and_then_quiet(away):
    """Put out while it has links, or while it was away."""
    old, new = make_roster(3, serial=1), make_roster(3, serial=2, order=(0, 1))
    cluster = Cluster(3, 2, rosters=[old, old, old])
    cluster.run_until(lambda: cluster.ready)
    if away:
        cluster.crash(cluster.hosts["host2"])
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(1.0)
    cluster.rosters[1] = new
    cluster.notes.clear()
    cluster.boot(1)
    cluster.run_until(lambda: cluster.ready)
    if away:
        cluster.boot(2)
    cluster.run_for(20.0)
    told = put_out(cluster, 2)
    assert len(told) == len(set(told))
    assert any(text.startswith("node0 holds a newer roster than this node's (1)") for text in told)
    assert {peer.put_out for peer in cluster.hosts["host2"].node.peers()} >= {True}
    cluster.notes.clear()
    cluster.run_for(500.0)
    assert [text for _, _, text in cluster.notes] == []
    # Once it is a member again, whoever brings the roster reaches it.
    cluster.rosters[1] = make_roster(3, serial=3, order=(0, 1, 2))
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(1.0)
    cluster.notes.clear()
    cluster.boot(1)
    cluster.run_until(lambda: cluster.ready)
    assert cluster.head.node.world == 3
    assert not any(peer.put_out for peer in cluster.hosts["host2"].node.peers())


def test_a_handshake_that_breaks_once_is_no_sign_that_a_member_was_put_out():
    """The head holds a newer roster, and what it answers to the first FIN is lost on the way."""
    cluster = Cluster(2, 1, rosters=[make_roster(2, serial=2), make_roster(2, serial=1)])
    cluster.closed = {("host0", "host1")}
    flights = []

    def lose(sender, receiver, data):
        if sender == "host1":
            flights.append(data)
            if len(flights) == 2:
                for wire in list(cluster.hosts["host1"].wires.values()):
                    cluster.cut(wire)

    cluster.tap = lose
    cluster.run_until(lambda: cluster.ready, 10.0)
    assert len(flights) > 2
    assert put_out(cluster, 1) == []


def test_the_owner_gives_a_newer_roster_to_one_node_of_a_running_ring():
    cluster = Cluster(3, 2, rosters=[make_roster(3)] * 3)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((4, 5, 6), 400))
    cluster.run_for(0.3)
    host = cluster.hosts["host2"]
    host.node.bring_roster(make_roster(3, serial=2, order=(0, 2, 1)).encode(), WALL)
    cluster.settle(host)
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 400, 6)
    serials = {host.node.roster.roster.serial for host in cluster.hosts.values()}
    assert serials == {2}
    assert [cluster.hosts[f"host{n}"].node.rank for n in range(3)] == [0, 2, 1]


REFUSED_ROSTERS = {
    "the same": (lambda: make_roster(2, serial=5), "roster 5 is not newer than 5"),
    "an older": (lambda: make_roster(2, serial=4), "roster 4 is not newer than 5"),
    "a twin": (lambda: make_roster(2, serial=5, inner_seal=False), "sign one with a greater"),
    "an expired": (lambda: make_roster(2, serial=6, lifetime_ms=1), "it has expired"),
    "without it": (lambda: make_roster(2, serial=6, order=(1, 2)), "does not hold this node"),
}


@pytest.mark.parametrize(("made", "said"), REFUSED_ROSTERS.values(), ids=REFUSED_ROSTERS)
def test_a_roster_of_the_owner_that_may_not_be_is_refused_with_the_reason(made, said):
    cluster = Cluster(2, 1, rosters=[make_roster(2, serial=5)] * 2)
    with pytest.raises(LocalProtocolError, match=said):
        cluster.head.node.bring_roster(made().encode(), WALL + 10)
    assert cluster.head.node.roster.roster.serial == 5
    with pytest.raises(LocalProtocolError):
        cluster.head.node.bring_roster(b"\0" * 300, WALL)


def test_a_roster_of_the_owner_that_cannot_be_stored_is_not_taken():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    newer = make_roster(2, serial=2).encode()
    cluster.head.full = True
    cluster.head.node.bring_roster(newer, WALL)
    with pytest.raises(LocalProtocolError, match="another roster is being stored"):
        cluster.head.node.bring_roster(newer, WALL)
    cluster.settle(cluster.head)
    cluster.run_for(1.0)
    assert cluster.head.node.roster.roster.serial == 1
    cluster.head.full = False
    cluster.head.node.bring_roster(newer, WALL)
    cluster.settle(cluster.head)
    cluster.run_for(1.0)
    assert [host.node.roster.roster.serial for host in cluster.hosts.values()] == [2, 2]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_roster_of_the_same_members_spreads_beside_the_links_there_are(world):
    """Renewed for another time: nothing of the ring changes, and all must have it all the same."""
    cluster = Cluster(world, 2, rosters=[make_roster(world)] * world)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((4, 5, 6), 400))
    cluster.run_for(0.3)
    links = [links_of(cluster, rank) for rank in range(world)]
    host = cluster.hosts[f"host{world - 1}"]
    host.node.bring_roster(make_roster(world, serial=2).encode(), WALL)
    cluster.settle(host)
    cluster.run_for(1.0)
    assert {host.node.roster.roster.serial for host in cluster.hosts.values()} == {2}
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 400, 6)
    assert [links_of(cluster, rank) for rank in range(world)] == links
    assert cluster.head.node.brain.membership.epoch.counter == 1
    dials = len(cluster.hosts["host0"].wires)
    cluster.run_for(60.0)
    assert len(cluster.hosts["host0"].wires) == dials


def test_two_nodes_with_one_key_do_not_replace_each_other_for_ever():
    """A machine was copied with its key: the node that came later is taken, and both are told."""
    cluster = Cluster(2, 8)
    cluster.run_until(lambda: cluster.ready)
    first = cluster.hosts.pop("host1")
    first.name = "host01"
    cluster.hosts[first.name] = first
    for host in cluster.hosts.values():
        for wire in host.wires.values():
            wire.ends = [(first.name if who == "host1" else who, n) for who, n in wire.ends]
    later = cluster.boot(1)
    cluster.run_for(20.0)
    epoch = cluster.head.node.brain.membership.epoch
    uid = cluster.submit(Request((4, 5, 6), 400))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 400, 6)
    cluster.run_for(60.0)
    assert cluster.head.node.brain.membership.epoch == epoch
    assert later.node.brain.serving
    causes = {each.cause: each.what for each in first.node.obstacles(cluster.now)}
    assert causes[Cause.SAME_KEY] == f"the head (node0) refused this node: {SAME_KEY}"
    told = [text for _, who, text in cluster.notes if who == "host0" and SAME_KEY in text]
    assert told[0] == f"no control link with node1: {SAME_KEY}"
    # It is taken again once the other is gone.
    cluster.notes.clear()
    cluster.crash(later)
    cluster.run_until(lambda: cluster.ready)
    assert first.node.brain.serving
