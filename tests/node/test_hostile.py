"""Members that lie, wires that dribble, engines that hang: nothing stalls, loops or rolls back."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import (
    CannotServe,
    Decode,
    Epoch,
    FailureKind,
    Hello,
    Step,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.effects import Level, Note, Send
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LimitExceeded, PeerTimeout
from sealring_protocol.limits import MAX_UNSENT
from sealring_protocol.security.roles import Purpose

from tests.driver import events_of
from tests.link.pair import Pair
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import make_roster

LAYERS = 6
HELLO = Hello(b"m" * 32, LAYERS, DType.U32, 1, 1 << 30)


def started(cluster):
    """Epochs that became ready so far."""
    return sum("the ring is ready" in text for _, _, text in cluster.notes)


def serve(cluster, count=9):
    uid = cluster.submit(Request((4, 5, 6), count))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.LENGTH
    assert cluster.tokens[uid] == reference((4, 5, 6), count, LAYERS)


def ready(world=3, seed=1, **arguments):
    cluster = Cluster(world, seed, **arguments)
    cluster.run_until(lambda: cluster.ready)
    return cluster


# ------------------------------------------------------------------- no hot loops


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_tensor_that_does_not_open_costs_one_epoch(rank):
    cluster = ready()
    engine = cluster.hosts[f"host{rank}"].engine
    engine.spoil = 1
    serve(cluster, 60)
    assert engine.spoil == 0
    assert started(cluster) == 2


def test_a_rank_that_answers_every_step_wrongly_costs_a_few_tries_and_then_the_request():
    cluster = ready()
    cluster.hosts["host1"].engine.spoil = 10**9
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done, 10)
    assert started(cluster) < 9
    assert cluster.done[uid].reason is FinishReason.FAILED
    assert "given up after 8 tries" in cluster.done[uid].message


def test_a_rank_that_presents_itself_for_ever_is_cut_off():
    cluster = ready()
    host = cluster.hosts["host1"]
    link = next(link for rank, p, link in host.node.links() if (rank, p) == (0, Purpose.CONTROL))
    for _ in range(500):
        link.send(HELLO)
    host.node._links.to_flush.update(host.wires)
    cluster.settle(host)
    cluster.run_for(1.0)
    assert started(cluster) < 6
    assert any("too often" in text for _, _, text in cluster.notes)
    cluster.run_for(10.0)
    serve(cluster)


def test_a_rank_that_refuses_every_bootstrap_is_asked_ever_less_often():
    cluster = ready()
    asked = []
    host = cluster.hosts["host2"]
    host.node._brain._bootstrap = lambda order, now: refuse(order, asked)
    cluster.kill_engine(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert 3 < len(asked) < 15


def refuse(order, asked):
    asked.append(order)
    return [Send(0, Purpose.CONTROL, CannotServe(order.epoch, FailureKind.MEMORY, "no"))]


def test_another_model_is_tried_ever_less_often():
    cluster = Cluster(2, 1, models=[b"m" * 32, b"x" * 32])
    cluster.run_for(10.0)
    before = len(cluster.notes)
    cluster.run_for(20.0)
    assert len(cluster.notes) - before < 40


# ------------------------------------------------------------------- no stalls


def test_a_rank_that_swallows_a_step_is_noticed():
    cluster = ready()
    brain = cluster.hosts["host1"].node._brain
    swallowed = []
    hear = brain.message

    def swallow(rank, purpose, message, now):
        if not swallowed and isinstance(message, Step) and isinstance(message.work, Decode):
            swallowed.append(message)
            return []
        return hear(rank, purpose, message, now)

    brain.message = swallow
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done, 400)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, LAYERS)
    assert swallowed


@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_hangs_is_replaced_though_the_epoch_breaks_meanwhile(rank):
    cluster = ready()
    cluster.submit(Request((4, 5, 6), 200))
    cluster.run_for(0.2)
    cluster.hosts[f"host{rank}"].engine.hung = True
    cluster.run_for(1.0)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(0.5)
    cluster.boot(2)
    cluster.run_until(lambda: cluster.all_done, 1000)


def test_an_engine_that_hangs_while_it_loads_is_replaced():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.hosts["host1"].engine is not None)
    cluster.hosts["host1"].engine.hung = True
    cluster.run_until(lambda: cluster.ready, 2000)
    serve(cluster)


def test_raw_bytes_are_signs_of_life_for_a_while_only():
    pair = Pair().run()
    pair._feed(pair.b, frame_header(FrameKind.SEALED, 1 << 20))
    for _ in range(100):
        pair.now += 0.3
        pair._feed(pair.b, b"x")
        try:
            pair.b.link.handle_timeout(pair.now)
        except PeerTimeout:
            break
    assert 2.0 < pair.now < 7.0


def test_a_peer_that_does_not_read_is_cut_off():
    pair = Pair(indexes=(0, 1), purpose=Purpose.STEP).run()
    tensor = Tensor(DType.U32, (1 << 20,), bytes(4 << 20))
    step = Step(Epoch(1, 1), 1, bytes(16), tensors=(tensor,))
    for _ in range(MAX_UNSENT // (4 << 20) - 1):
        pair.a.link.send(step)
    with pytest.raises(LimitExceeded, match="unread"):
        pair.a.link.send(step)


# ---------------------------------------------------------------- rosters in force


def test_a_member_put_out_and_taken_in_again_gets_its_links():
    one = make_roster(3, serial=1)
    cluster = ready(rosters=[one, one, one])
    for serial, order in ((2, (0, 1)), (3, (0, 1, 2))):
        cluster.crash(cluster.hosts["host1"])
        cluster.rosters[1] = make_roster(3, serial=serial, order=order)
        cluster.boot(1)
        cluster.run_for(8.0)
    assert [host.node.roster.roster.serial for host in cluster.hosts.values()] == [3, 3, 3]
    assert cluster.head.node.world == 3
    serve(cluster)


def test_when_the_head_moves_nobody_goes_on_dialing_the_old_one():
    old, new = make_roster(3, serial=1), make_roster(3, serial=2, order=(1, 0, 2))
    cluster = Cluster(3, 3, rosters=[old, old, new])
    cluster.run_for(15.0)
    dialed = []
    for host in cluster.hosts.values():
        accepted = host.node.accepted
        host.node.accepted = lambda *a, accepted=accepted: dialed.append(a[0]) or accepted(*a)
    cluster.run_for(10.0)
    assert dialed == []


def test_a_handshake_begun_under_an_old_roster_gives_no_licence():
    cluster = ready(2)
    host = cluster.hosts["host1"]
    current_roster = host.node._links.current_roster
    newer = make_roster(2, serial=2, order=(1, 0))
    current_roster.config = attrs.evolve(current_roster.config, roster=newer)
    # Every link that comes up now was judged by the roster before.
    for wire in list(host.wires.values()):
        cluster.network.cut(wire)
    cluster.run_for(0.09)
    assert host.node.links() == []


def test_the_stored_roster_never_goes_back():
    rosters = [make_roster(3, serial=1), make_roster(3, serial=2), make_roster(3, serial=3)]
    for seed in range(4):
        cluster = Cluster(3, seed, rosters=rosters, delay=0.05, at_once=True)
        cluster.run_for(20.0)
        for host in cluster.hosts.values():
            serials = [int.from_bytes(data[39:47], "big") for data in host.stored]
            assert serials == sorted(set(serials))
            assert host.node.roster.roster.serial == 3


def test_a_roster_that_cannot_be_stored_is_not_taken_and_does_not_bar_the_next():
    old, new = make_roster(2, serial=1), make_roster(2, serial=2)
    cluster = Cluster(2, 1, rosters=[old, new])
    head = cluster.head
    head.full = True
    cluster.run_for(6.0)
    assert head.node.roster.roster.serial == 1
    assert not cluster.ready
    head.full = False
    cluster.run_until(lambda: cluster.ready)
    assert head.node.roster.roster.serial == 2


@pytest.mark.parametrize("policy", [True, False])
def test_a_roster_that_changes_the_policy_is_obeyed(policy):
    old = make_roster(3, serial=1, inner_seal=not policy)
    cluster = Cluster(3, 1, rosters=[old, old, make_roster(3, serial=2, inner_seal=policy)])
    cluster.run_for(10.0)
    serve(cluster)
    for host in cluster.hosts.values():
        assert host.engine.order.inner_seal is policy


def test_links_live_as_long_as_the_newest_roster():
    short, long = make_roster(2, serial=1, lifetime_ms=5000), make_roster(2, serial=2)
    cluster = Cluster(2, 1, rosters=[short, short])
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.rosters[1] = long
    cluster.boot(1)
    cluster.run_for(20.0)
    serve(cluster)
    assert not any("expired" in text for _, _, text in cluster.notes)


# ------------------------------------------------------------------------ the rest


def test_a_stopped_node_stays_stopped():
    for index in (0, 1):
        cluster = ready(2)
        host = cluster.hosts[f"host{index}"]
        host.node.stop(cluster.now)
        cluster.settle(host)
        before = started(cluster)
        cluster.run_for(5.0)
        assert host.node.links() == []
        assert started(cluster) == before


def test_a_node_that_stops_while_a_roster_is_stored_comes_to_rest():
    cluster = Cluster(2, 1, rosters=[make_roster(2), make_roster(2, serial=2)])
    node = cluster.head.node
    stored = node.roster_stored
    node.roster_stored = lambda link, now: (node.stop(now), stored(link, now))
    cluster.run_for(5.0)
    assert node.roster.roster.serial == 2
    assert node.links() == []
    assert node.next_timeout() is None or node.next_timeout() > cluster.now


def test_uids_are_never_used_twice_in_the_life_of_a_node():
    one = make_roster(2, serial=1)
    cluster = ready(2, rosters=[one, one])
    first = cluster.submit(Request((1, 2), 2))
    cluster.run_until(lambda: cluster.all_done)
    cluster.crash(cluster.hosts["host1"])
    cluster.rosters[1] = make_roster(2, serial=2, inner_seal=False)
    cluster.boot(1)
    cluster.run_for(8.0)
    second = cluster.submit(Request((1, 2), 2))
    assert second > first
    cluster.run_until(lambda: cluster.all_done)


def test_an_engine_that_answers_with_too_many_tokens_has_failed():
    cluster = ready(1)
    cluster.head.engine.doubles = 1
    serve(cluster)
    assert any("2 of 1 tokens" in text for _, _, text in cluster.notes)


def test_the_log_tells_of_each_stranger_once_a_minute():
    cluster = Cluster(2, 1)
    node = cluster.head.node
    for _ in range(50):
        number = node.accepted("6.6.6.6", bytes(32), 0.0, 0)
        node.receive_data(number, b"GET / HTTP/1.1\r\n\r\n", 0.0)
    levels = [event.level for event in events_of(node) if isinstance(event, Note)]
    assert levels.count(Level.WARNING) == 1
    assert levels.count(Level.DEBUG) == 49
