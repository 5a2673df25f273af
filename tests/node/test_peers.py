"""What a node knows of the trouble with its peers: the last thing, where, and how often."""

from __future__ import annotations

import attrs
from sealring_protocol.diagnosis import Cause, link_trouble
from sealring_protocol.errors import CloseCode
from sealring_protocol.links.peers import STEADY_SECONDS, Fault
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import sign_roster

from tests.sim.cluster import Cluster
from tests.sim.rosters import COORDINATOR, WALL, make_roster

CONTROL = Purpose.CONTROL


def test_a_peer_that_cannot_be_reached_is_told_with_its_address_and_how_often():
    made = Cluster(2, 1)
    made.crash(made.hosts["host1"])
    made.run_for(20.0)
    (peer,) = made.head.node.peers()
    trouble = peer.trouble(CONTROL, made.now)
    assert (peer.rank, peer.name, peer.up) == (1, "node1", {})
    assert trouble.fault is Fault.UNREACHABLE
    assert (trouble.reason, trouble.address) == ("connection refused", "host1:1")
    assert trouble.count > 5
    assert trouble.at - trouble.since > 10
    made.boot(1)
    made.run_until(lambda: made.ready)
    made.run_for(STEADY_SECONDS + 1)
    (peer,) = made.head.node.peers()
    assert CONTROL in peer.up
    assert peer.trouble(CONTROL, made.now) is None


def test_who_is_refused_for_its_model_knows_it_and_so_does_who_refuses():
    made = Cluster(2, 2, models=[b"a" * 32, b"b" * 32])
    made.run_for(4.0)
    (rank,) = made.head.node.peers()
    (head,) = made.hosts["host1"].node.peers()
    refused, refuses = rank.trouble(CONTROL, made.now), head.trouble(CONTROL, made.now)
    assert refused.fault is Fault.REFUSED
    assert refuses.fault is Fault.REFUSED_US
    assert refused.code == refuses.code == CloseCode.MODEL_MISMATCH
    assert refused.reason == refuses.reason
    assert refused.count > 2


def test_nodes_of_other_clusters_end_their_handshakes_without_a_word():
    other = attrs.evolve(make_roster(2).roster, cluster=b"d" * 32)
    made = Cluster(2, 3, rosters=[make_roster(2), sign_roster(other, COORDINATOR)])
    made.run_for(4.0)
    for host in made.hosts.values():
        (peer,) = host.node.peers()
        assert peer.trouble(CONTROL, made.now).fault is Fault.SILENT
        (stranger,) = host.node.facts(made.now).strangers
        assert stranger.reason == "it asks for another machine, or for one of another cluster"
        assert stranger.count > 2


def test_a_connection_that_ends_of_itself_was_not_refused():
    """Members give up dials, too."""
    made = Cluster(2, 3)
    made.run_until(lambda: made.ready)
    node = made.head.node
    for data in (b"", b"\1"):
        number = node.accepted("10.0.0.2", bytes(32), made.now, WALL)
        if data:
            node.receive_data(number, data, made.now)
        node.receive_eof(number, made.now)
        made.settle(made.head)
    assert node.facts(made.now).strangers == []
    number = node.accepted("10.0.0.2", bytes(32), made.now, WALL)
    node.receive_data(number, b"GET / HTTP/1.1\r\n", made.now)
    (stranger,) = node.facts(made.now).strangers
    assert (stranger.source, stranger.count) == ("10.0.0.2", 1)


def test_links_that_come_and_go_in_good_order_are_no_trouble():
    made = Cluster(3, 4)
    made.run_until(lambda: made.ready)
    for host in made.hosts.values():
        for peer in host.node.peers():
            assert not peer.dialed, peer
            assert not peer.incoming, peer


def troubles(made: Cluster) -> list[object]:
    return [
        (host.name, peer.name, purpose, trouble)
        for host in made.hosts.values()
        for peer in host.node.peers()
        for purpose in Purpose
        if (trouble := peer.trouble(purpose, made.now)) is not None
    ]


def test_a_greeting_that_came_late_is_no_trouble_once_it_was_heard():
    """Ranks greet each other once, and have no link with each other to say that all is well."""
    made = Cluster(3, 5)
    late = made.hosts["host2"]
    made.crash(late)
    made.run_for(1.0)
    made.boot(2)
    made.run_until(lambda: made.ready)
    made.run_for(STEADY_SECONDS + 1)
    assert troubles(made) == []


def test_who_is_put_out_is_told_so_and_not_that_the_roster_has_expired():
    made = Cluster(3, 6)
    made.run_until(lambda: made.ready)
    made.head.node.bring_roster(make_roster(3, serial=2, order=(0, 1)).encode(), made.now, WALL)
    made.settle(made.head)
    node = made.hosts["host2"].node
    made.run_until(lambda: CONTROL not in node.peers()[0].up)
    head = node.peers()[0]
    told = link_trouble(node.facts(made.now), head, head.trouble(CONTROL, made.now))
    assert told.what == "the head (node0) refused this node: no longer a member"
    assert told.cause is Cause.NOT_A_MEMBER


def test_an_error_of_a_dial_is_past_once_the_peer_has_been_reached():
    """The machine was away for minutes, and its other links are not up yet."""
    made = Cluster(3, 1)
    made.run_until(lambda: made.ready)
    made.crash(made.hosts["host1"])
    node = made.head.node
    made.run_until(lambda: node.peers()[0].trouble(CONTROL, made.now) is not None)
    made.run_for(20.0)
    assert node.peers()[0].trouble(Purpose.STEP, made.now).fault is Fault.UNREACHABLE
    made.boot(1)
    made.run_until(lambda: CONTROL in node.peers()[0].up)
    assert Purpose.STEP not in node.peers()[0].up
    assert node.peers()[0].trouble(Purpose.STEP, made.now) is None
    assert not any("cannot be reached" in o.what for o in node.obstacles(made.now))


def test_an_error_at_an_address_that_a_newer_roster_corrects_is_past():
    wrong = make_roster(2).roster
    one, two = wrong.members
    wrong = attrs.evolve(wrong, members=(one, attrs.evolve(two, addresses=("nowhere:1",))))
    made = Cluster(2, 1, rosters=[sign_roster(wrong, COORDINATOR)] * 2)
    made.crash(made.hosts["host1"])
    made.run_for(5.0)
    node = made.head.node
    assert node.peers()[0].trouble(CONTROL, made.now).address == "nowhere:1"
    node.bring_roster(make_roster(2, serial=2).encode(), made.now, WALL)
    made.settle(made.head)
    made.run_until(lambda: node.roster.roster.serial == 2)
    trouble = node.peers()[0].trouble(CONTROL, made.now)
    assert trouble is None or trouble.address == "host1:1"
