"""A newer roster: how it spreads, what it changes, who is put out, and which are refused."""

from __future__ import annotations

import pytest
from sealring_protocol.control.election import FIRST_SECONDS
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.links.link_manager import HeadFirst

from tests.node.links import links_of, ring_links
from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import WALL, make_roster


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
@pytest.mark.parametrize(("before", "after", "bringer"), rows(CHANGES, *[*CHANGES][::2]))
def test_requests_go_on_in_the_ring_of_a_newer_roster(before, after, bringer, splits):
    old, new = (make_roster(3, n, order=order) for n, order in ((1, before), (2, after)))
    cluster = Cluster(len(before), 3, rosters=[old] * len(before), splits=splits)
    cluster.run_until(lambda: cluster.ready)
    lengths = {cluster.submit(Request((4, 5, 6 + n), 400 + n)): n for n in range(9)}  # some wait
    cluster.run_for(0.3)
    epoch = cluster.head.node.standing().epoch
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
    assert cluster.head.node.standing().epoch > epoch  # none is used twice
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
    epoch = cluster.head.node.standing().epoch
    for roster in rosters[1:]:
        cluster.crash(cluster.hosts["host1"])
        cluster.rosters[1] = roster
        cluster.notes.clear()
        cluster.run_for(0.5)
        cluster.boot(1)
        cluster.run_until(lambda: cluster.ready)
    again = cluster.head.node.standing().epoch
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
    cluster.run_for(FIRST_SECONDS + 5)  # it asks for votes once, in vain
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
    cluster.network.closed = {("host0", "host1")}
    flights = []

    def lose(sender, receiver, data):
        if sender == "host1":
            flights.append(data)
            if len(flights) == 2:
                for wire in list(cluster.hosts["host1"].wires.values()):
                    cluster.network.cut(wire)

    cluster.network.tap = lose
    cluster.run_until(lambda: cluster.ready, 10.0)
    assert len(flights) > 2
    assert put_out(cluster, 1) == []


def test_the_owner_gives_a_newer_roster_to_one_node_of_a_running_ring():
    cluster = Cluster(3, 2, rosters=[make_roster(3)] * 3)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((4, 5, 6), 400))
    cluster.run_for(0.3)
    host = cluster.hosts["host2"]
    host.node.bring_roster(make_roster(3, serial=2, order=(0, 2, 1)).encode(), cluster.now, WALL)
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
        cluster.head.node.bring_roster(made().encode(), cluster.now, WALL + 10)
    assert cluster.head.node.roster.roster.serial == 5
    with pytest.raises(LocalProtocolError):
        cluster.head.node.bring_roster(b"\0" * 300, cluster.now, WALL)


def test_a_roster_of_the_owner_that_cannot_be_stored_is_not_taken():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    newer = make_roster(2, serial=2).encode()
    cluster.head.full = True
    cluster.head.node.bring_roster(newer, cluster.now, WALL)
    with pytest.raises(LocalProtocolError, match="another roster is being stored"):
        cluster.head.node.bring_roster(newer, cluster.now, WALL)
    cluster.settle(cluster.head)
    cluster.run_for(1.0)
    assert cluster.head.node.roster.roster.serial == 1
    cluster.head.full = False
    cluster.head.node.bring_roster(newer, cluster.now, WALL)
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
    host.node.bring_roster(make_roster(world, serial=2).encode(), cluster.now, WALL)
    cluster.settle(host)
    cluster.run_for(1.0)
    assert {host.node.roster.roster.serial for host in cluster.hosts.values()} == {2}
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 400, 6)
    assert [links_of(cluster, rank) for rank in range(world)] == links
    assert cluster.head.node.standing().epoch.counter == 1
    dials = len(cluster.hosts["host0"].wires)
    cluster.run_for(60.0)
    assert len(cluster.hosts["host0"].wires) == dials


@pytest.mark.parametrize("delay", [0.002, 0.2])
@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_change_of_the_roster_warns_of_nothing(seed, order, delay):
    """Links are closed for it, and dials given up: nothing went wrong. With a long delay, dials
    cross while one end has adopted the roster and the other has not."""
    cluster = Cluster(3, seed, rosters=[make_roster(3)] * 3, delay=delay)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(6.0)
    cluster.warnings.clear()
    cluster.notes.clear()
    cluster.head.node.bring_roster(
        make_roster(3, serial=2, order=order).encode(), cluster.now, WALL
    )
    cluster.settle(cluster.head)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(5.0)
    assert cluster.warnings == []
    assert not any(host.node.facts(cluster.now).strangers for host in cluster.hosts.values())


def test_a_roster_with_another_head_goes_to_the_head_first():
    """The head may let its requests finish only while the other ranks keep the ring up."""
    old, new = make_roster(3), make_roster(3, serial=2, order=(2, 0, 1))
    cluster = Cluster(3, 2, rosters=[old] * 3)
    cluster.run_until(lambda: cluster.ready)
    rank = cluster.hosts["host1"]
    with pytest.raises(HeadFirst, match="the head is to have this roster first"):
        rank.node.bring_roster(new.encode(), cluster.now, WALL)
    cluster.head.full = True  # it takes its time
    cluster.head.node.bring_roster(new.encode(), cluster.now, WALL)
    cluster.settle(cluster.head)
    cluster.run_for(1.0)
    assert [host.node.roster.roster.serial for host in cluster.hosts.values()] == [1, 1, 1]
    cluster.head.full = False
    cluster.head.node.bring_roster(new.encode(), cluster.now, WALL)
    cluster.settle(cluster.head)
    cluster.notes.clear()
    cluster.run_until(lambda: cluster.ready)
    assert [host.node.roster.roster.serial for host in cluster.hosts.values()] == [2, 2, 2]


def test_a_peer_brings_a_roster_with_another_head_to_the_head_first():
    old, new = make_roster(3, order=(0, 1)), make_roster(3, serial=2, order=(1, 0, 2))
    cluster = Cluster(2, 2, rosters=[old] * 2)
    cluster.run_until(lambda: cluster.ready)
    changes = []
    cluster.network.tap = lambda *_: changes.append(
        [cluster.hosts[f"host{n}"].node.roster.roster.serial for n in range(2)]
    )
    cluster.network.closed = {("host2", "host0"), ("host0", "host2")}
    cluster.rosters = [old, old, new]
    cluster.models = [b"m" * 32] * 3
    cluster.boot(2)
    cluster.run_for(4.0)
    assert changes[-1] == [1, 1]
    assert cluster.hosts["host0"].node.serving
    cluster.network.closed = set()
    cluster.notes.clear()
    cluster.run_until(lambda: cluster.ready)
    assert [1, 2] not in changes
    assert changes[-1] == [2, 2]


@pytest.mark.parametrize("order", [(1, 0), (1, 2)], ids=["gone", "put out"])
def test_a_roster_with_another_head_does_not_wait_for_a_head_that_cannot_take_it(order):
    cluster = Cluster(2, 2, rosters=[make_roster(2)] * 2)
    cluster.run_until(lambda: cluster.ready)
    if 0 in order:
        cluster.crash(cluster.head)
        cluster.run_for(1.0)
    rank = cluster.hosts["host1"]
    rank.node.bring_roster(make_roster(3, serial=2, order=order).encode(), cluster.now, WALL)
    cluster.settle(rank)
    cluster.run_for(1.0)
    assert rank.node.rank == 0
