"""How nodes find each other: duplicates, crossing dials, who is turned away."""

from __future__ import annotations

import pytest
from sealring_protocol import limits
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import Request
from sealring_protocol.diagnosis import Cause
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import Hangup
from sealring_protocol.links.peers import SAME_KEY
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import SoftwareSigner

from tests.driver import events_of
from tests.node.links import links_of, ring_links
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import COORDINATOR, WALL, make_roster, signer


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
    cluster.network.closed = ONE_WAY[closed]
    cluster.run_until(lambda: cluster.ready, 10.0)
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)


def test_two_neighbours_that_cannot_reach_each_other_are_named_to_the_head():
    cluster = Cluster(3, 4, strategy=Strategy.PIPELINE)
    cluster.network.closed = {("host1", "host2"), ("host2", "host1")}
    cluster.run_for(40.0)
    assert not cluster.ready
    told = [text for _, who, text in cluster.notes if who == "host0" and "cannot serve" in text]
    why = "node1 cannot reach node2 at host2:1 (no answer within 5 s), nor node2 node1"
    assert told[0] == f"rank 1 (node1) cannot serve: {why}"
    cluster.network.closed.clear()
    cluster.run_until(lambda: cluster.ready, 20.0)


def test_the_end_that_yields_dials_nothing_in_an_ordinary_start():
    for seed in range(10):
        cluster = Cluster(3, seed)
        dials = []
        real = cluster.network.connect

        def count(host, link, address, real=real, dials=dials):
            dials.append((host.name, address))
            real(host, link, address)

        cluster.network.connect = count
        cluster.run_until(lambda cluster=cluster: cluster.ready)
        cluster.run_for(1.5)  # longer than it yields, and before addresses are probed
        # Control links are dialed from both ends, and every member is greeted; a step link once.
        both = 2 * 3
        assert len(dials) <= both + 3 + 1, dials


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
    epoch = cluster.head.node.standing().epoch
    uid = cluster.submit(Request((4, 5, 6), 400))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 400, 6)
    cluster.run_for(60.0)
    assert cluster.head.node.standing().epoch == epoch
    assert later.node.serving
    causes = {each.cause: each.what for each in first.node.obstacles(cluster.now)}
    assert causes[Cause.SAME_KEY] == f"the head (node0) refused this node: {SAME_KEY}"
    told = [text for _, who, text in cluster.notes if who == "host0" and SAME_KEY in text]
    assert told[0] == f"no control link with node1: {SAME_KEY}"
    # It is taken again once the other is gone.
    cluster.notes.clear()
    cluster.crash(later)
    cluster.run_until(lambda: cluster.ready)
    assert first.node.serving
