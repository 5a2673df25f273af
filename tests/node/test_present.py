"""A ring serves with the members that are there: whole clusters in virtual time."""

from __future__ import annotations

import re
from random import Random

import attrs
import pytest
from sealring_protocol.codec.messages import Build, StepDone
from sealring_protocol.control.effects import Preference, Send, Shut
from sealring_protocol.control.head.attendance import (
    GATHER_SECONDS,
    LONG_STAY,
    LOSS_SECONDS,
    STEADY_SECONDS,
)
from sealring_protocol.control.head.trial import IDLE_SECONDS
from sealring_protocol.control.membership import hello
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from sealring_protocol.diagnosis import Cause
from sealring_protocol.errors import CloseCode, LocalProtocolError
from sealring_protocol.limits import PRESENTATIONS_PER_SECOND
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import sign_roster
from sealring_protocol.words import STILL_FETCHED

from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import COORDINATOR, WALL, make_roster

LAYERS = 6
SETTLED = 2.0
"""Seconds in which a change of the ring has come through: links, an epoch, and one failed one."""


def cluster_of(
    world: int, seed: int = 1, retries: int = 50, least: int = 1, pace: float = 0.1, **more
) -> Cluster:
    scheduler = SchedulerConfig(groups=2, rows=3, chunk=256, retries=retries)
    return Cluster(world, seed, scheduler=scheduler, least=least, pace=lambda _: pace, **more)


def ring(cluster: Cluster) -> tuple[int, ...]:
    """The ring that serves; () if none does."""
    node = cluster.head.node
    return node.standing().ring if node.serving else ()


def outside(cluster: Cluster) -> dict[int, str]:
    """Why the head's ring is without each other rank."""
    told = cluster.head.node.standing().outside
    return {rank: each.text(cluster.now) for rank, each in told.items()}


def streams(cluster: Cluster, count: int = 3, tokens: int = 400) -> list:
    random = Random(count)
    asked = []
    for _ in range(count):
        prompt = tuple(random.randrange(900) for _ in range(random.randrange(1, 30)))
        asked.append((cluster.submit(Request(prompt, tokens)), prompt, tokens))
    return asked


GOES_ON = 20
"""So many tokens more show that a stream goes on."""


def check(cluster: Cluster, asked: list) -> None:
    """Each stream goes on, or has come to its end, and no token is wrong. Ends those that go on:
    what is left of them takes most of the time, and shows nothing more."""
    tokens = cluster.tokens
    enough = {uid: min(count, len(tokens[uid]) + GOES_ON) for uid, _, count in asked}
    over = cluster.done
    cluster.run_until(lambda: all(u in over or len(tokens[u]) >= enough[u] for u in enough), 600)
    for uid, prompt, _ in asked:
        cluster.cancel(uid)
        assert tokens[uid] == reference(prompt, len(tokens[uid]), LAYERS)
    cluster.run_until(lambda: cluster.all_done, 1)
    for uid, _, count in asked:
        whole = len(tokens[uid]) == count
        expected = FinishReason.LENGTH if whole else FinishReason.CANCELLED
        assert over[uid].reason is expected, over[uid]


def gap(cluster: Cluster, seconds: float) -> float:
    """The longest time without a token of anyone, in *seconds* from now."""
    until, longest = cluster.now + seconds, 0.0
    last, known = cluster.now, sum(map(len, cluster.tokens.values()))
    while cluster.now < until:
        cluster.run_for(0.05)
        count = sum(map(len, cluster.tokens.values()))
        if count != known:
            last, known = cluster.now, count
        longest = max(longest, cluster.now - last)
    assert not cluster.all_done
    return longest


def test_a_ring_begins_without_a_member_that_was_never_seen():
    cluster = cluster_of(4)
    cluster.crash(cluster.hosts["host3"])
    cluster.run_until(lambda: cluster.ready)
    assert GATHER_SECONDS <= cluster.now < GATHER_SECONDS + SETTLED
    assert cluster.head.node.goes_on(cluster.now)
    assert ring(cluster) == (0, 1, 2)
    check(cluster, streams(cluster, tokens=20))


def test_why_a_member_does_not_come_is_said_once_each_time_while_the_ring_serves():
    cluster = cluster_of(3)
    away = cluster.hosts["host2"]

    def told() -> list[str]:
        return [text for _, _, text in cluster.notes if text.startswith("not in the ring: ")]

    cluster.crash(away)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(60.0)
    (first,) = told()
    assert first.startswith("not in the ring: rank 2 (node2) cannot be reached at ")
    assert "start that node" in first
    away = cluster.boot(2)
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2))
    assert told() == [first]
    cluster.crash(away)
    cluster.run_until(lambda: ring(cluster) == (0, 1))
    cluster.run_for(60.0)
    assert len(told()) == 2


def test_a_ring_that_is_whole_waits_for_nothing():
    cluster = cluster_of(3)
    assert not cluster.head.node.goes_on(cluster.now)
    cluster.run_until(lambda: cluster.ready)
    assert cluster.now < SETTLED
    assert ring(cluster) == (0, 1, 2)


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("seed", rows(range(3), 0))
def test_streams_go_on_without_a_member_and_with_it_again(gone, seed):
    cluster = cluster_of(3, seed)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster)
    cluster.run_for(1.0)
    cluster.crash(cluster.hosts[f"host{gone}"])
    cluster.run_for(0.5)
    assert ring(cluster) == ()
    assert cluster.head.node.goes_on(cluster.now)
    asked += streams(cluster, count=1, tokens=20)
    assert gap(cluster, 8.5) < LOSS_SECONDS + SETTLED
    assert ring(cluster) == (0, 3 - gone)
    assert outside(cluster)[gone].startswith("it is away (for ")
    cluster.boot(gone)
    assert gap(cluster, 9.0) < SETTLED
    assert ring(cluster) == (0, 1, 2)
    assert outside(cluster) == {}
    check(cluster, asked)


def test_one_that_is_back_in_time_is_waited_for():
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(LOSS_SECONDS - 2)
    cluster.boot(2)
    rings = set()
    for _ in range(100):
        cluster.run_for(0.1)
        rings.add(ring(cluster))
    assert rings == {(), (0, 1, 2)}
    check(cluster, asked)


@pytest.mark.parametrize("seed", rows(range(3), 1))
def test_two_that_are_lost_at_once_leave_a_fixed_head_alone(seed):
    cluster = cluster_of(3, seed, rosters=[make_roster(3, fixed_head=True)] * 3)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster)
    for gone in (1, 2):
        cluster.crash(cluster.hosts[f"host{gone}"])
    assert gap(cluster, 9.0) < LOSS_SECONDS + SETTLED
    assert ring(cluster) == (0,)
    cluster.boot(2)
    assert gap(cluster, 9.0) < SETTLED
    assert ring(cluster) == (0, 2)
    cluster.boot(1)
    assert gap(cluster, 9.0) < SETTLED
    assert ring(cluster) == (0, 1, 2)
    check(cluster, asked)


def test_one_that_comes_and_goes_does_not_stop_the_others_each_time():
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, count=1, tokens=1250)
    stops, up = 0, True
    for _ in range(40):
        cluster.run_for(1.5)
        (cluster.boot if not up else lambda index: cluster.crash(cluster.hosts[f"host{index}"]))(1)
        up = not up
        cluster.run_for(1.5)
        stops += ring(cluster) == ()
    assert stops < 6
    if not up:
        cluster.boot(1)
    cluster.run_for(LONG_STAY + STEADY_SECONDS + SETTLED)
    assert ring(cluster) == (0, 1, 2)
    check(cluster, asked)


def test_members_without_room_for_the_model_wait_for_the_others():
    cluster = cluster_of(3, memory=3400)
    cluster.run_until(lambda: cluster.ready)
    assert ring(cluster) == (0, 1, 2)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(30.0)
    assert ring(cluster) == ()
    obstacles = cluster.head.node.obstacles(cluster.now)
    assert any("rank 1 (node1)" in each.text(cluster.now) for each in obstacles)
    due = cluster.head.node.next_timeout()
    assert due is not None
    assert due > cluster.now
    cluster.boot(1)
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), 10)


@pytest.mark.parametrize("strategy", [Strategy.TENSOR, Strategy.AUTO])
def test_tensor_parallelism(strategy):
    """Asked for by name, it needs all; the strategy auto goes on without one, and takes it up
    again."""
    cluster = cluster_of(2, strategy=strategy, splits=2, sums=(10, 100))
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=500)
    cluster.run_for(1.0)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert ring(cluster) == (() if strategy is Strategy.TENSOR else (0,))
    cluster.boot(1)
    cluster.run_until(lambda: ring(cluster) == (0, 1), 30)
    check(cluster, asked)


def test_a_member_outside_of_the_ring_is_told_why():
    cluster = cluster_of(3)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_until(lambda: cluster.ready)
    cluster.boot(2)
    node = cluster.hosts["host2"].node
    cluster.run_until(lambda: bool(node.standing().head_reasons), 3)
    (reason,) = node.standing().head_reasons
    assert "goes on without this machine" in reason.text
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), STEADY_SECONDS + SETTLED)
    cluster.run_until(lambda: node.serving, 1)


def test_a_member_that_never_gets_ready_is_left_out():
    cluster = cluster_of(3, cannot_load={1: "no such tensor"})
    cluster.run_until(lambda: cluster.ready, 60)
    assert ring(cluster) == (0, 2)
    cluster.run_for(30.0)
    assert ring(cluster) == (0, 2)
    assert "could not get ready" in outside(cluster)[1]
    cluster.cannot_load.clear()  # somebody mends it
    cluster.kill_engine(cluster.hosts["host1"])
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), LONG_STAY)


def test_neighbours_that_do_not_reach_each_other_stop_the_ring_for_less_than_a_minute():
    cluster = cluster_of(3)
    cluster.network.closed = {("host1", "host2"), ("host2", "host1")}
    cluster.run_until(lambda: cluster.ready, 50.0)
    assert ring(cluster) == (0, 2)
    assert "could not get ready" in outside(cluster)[1]
    cluster.network.closed.clear()
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), 3 * LONG_STAY)


@pytest.mark.parametrize("pause", [0.2, 1.5])
def test_one_that_presents_itself_again_and_again_does_not_stop_the_others(pause):
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=300)
    model = cluster.hosts["host1"].node.engine_info
    assert model is not None
    serves = 0
    for _ in range(int(120 / pause)):
        cluster.run_for(pause)
        host = cluster.hosts["host1"]
        said = hello(model, Build())
        if any(rank == 0 and purpose is Purpose.CONTROL for rank, purpose, _ in host.node.links()):
            host.node._act([Send(0, Purpose.CONTROL, said)], cluster.now)
            cluster.settle(host)
        serves += ring(cluster) != ()
    assert serves > 0.5 * 120 / pause
    check(cluster, asked)


def test_an_engine_that_ends_again_and_again_does_not_stop_the_others_each_time():
    """Each time after it has worked for a while, so that every epoch has given tokens."""
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    streams(cluster, tokens=800)
    stopped = 0
    for _ in range(12):
        cluster.run_for(4.0)
        cluster.kill_engine(cluster.hosts["host1"], 4.0)
        for _ in range(8):
            cluster.run_for(0.5)
            stopped += ring(cluster) == ()
    assert stopped < 40  # half seconds, of 192
    cluster.run_for(LONG_STAY + SETTLED)
    assert ring(cluster) == (0, 1, 2)


def test_one_whose_neighbour_breaks_their_link_again_and_again_is_tried_again():
    """It is the one that reports it, and is left out for that."""
    cluster = cluster_of(4)
    cluster.run_until(lambda: cluster.ready)
    host = cluster.hosts["host2"]
    for _ in range(300):
        cluster.run_for(0.1)
        host.node._act([Shut(1, Purpose.STEP, CloseCode.SHUTDOWN, "so")], cluster.now)
        cluster.settle(host)
    assert ring(cluster) == (0, 2, 3)
    assert "tried again by itself" in outside(cluster)[1]
    cluster.run_for(3 * LONG_STAY)
    assert ring(cluster) == (0, 1, 2, 3)


def test_one_outside_that_presents_itself_all_the_time_keeps_nobody_else_from_it():
    cluster = cluster_of(4)
    for index in (2, 3):
        cluster.crash(cluster.hosts[f"host{index}"])
    cluster.run_until(lambda: cluster.ready)
    loud = cluster.boot(3)
    cluster.run_until(lambda: "it has come" in outside(cluster)[3], 2)
    model = loud.node.engine_info
    assert model is not None
    cluster.boot(2)
    for count in [PRESENTATIONS_PER_SECOND - 1, *[1] * 12]:  # as often as a member may
        loud.node._act([Send(0, Purpose.CONTROL, hello(model, Build()))] * count, cluster.now)
        cluster.settle(loud)
        cluster.run_for(1 / PRESENTATIONS_PER_SECOND)
    assert not any("presents itself too often" in text for _, who, text in cluster.notes)
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2, 3), 10)


def tensor(cluster: Cluster) -> None:
    """Let the ring time some tokens, and then try tensor parallelism, which is faster."""
    check(cluster, streams(cluster, 1, 20))
    cluster.run_for(30.0)
    assert cluster.head.node.standing().plan.strategy is Strategy.TENSOR


def test_a_collective_of_those_that_are_there():
    """A ring of others begins with a pipeline, as every ring does."""
    cluster = cluster_of(3, strategy=Strategy.AUTO, splits=6, sums=(0, 1))
    cluster.run_until(lambda: cluster.ready)
    tensor(cluster)
    asked = streams(cluster, tokens=500)
    cluster.crash(cluster.hosts["host1"])
    assert gap(cluster, 9.0) < LOSS_SECONDS + SETTLED
    assert ring(cluster) == (0, 2)
    check(cluster, asked)
    tensor(cluster)
    asked = streams(cluster, tokens=500)
    cluster.boot(1)
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), 30)
    check(cluster, asked)
    tensor(cluster)


WHY = "node0 alone gives 3 tokens/s, and the ring of 3 gave 2"


def prefer(cluster: Cluster, *chosen: int) -> None:
    cluster.head.node.prefer(Preference(chosen, WHY), cluster.now)
    cluster.settle(cluster.head)


def settled(cluster: Cluster, whole: tuple[int, ...]) -> None:
    """Let the ring be *whole*, and have answered once."""
    cluster.run_until(lambda: ring(cluster) == whole, 30)
    check(cluster, streams(cluster, count=1, tokens=20))


@pytest.mark.parametrize("smaller", [(0,), (0, 2)])
def test_a_smaller_ring_that_is_faster_is_taken_while_no_request_is_there(smaller):
    cluster = cluster_of(3)
    settled(cluster, (0, 1, 2))
    asked = streams(cluster)
    cluster.run_for(1.0)
    prefer(cluster, *smaller)
    epoch = cluster.head.node.standing().epoch
    check(cluster, asked)  # the ring stays what it is
    cluster.run_for(IDLE_SECONDS - 0.1)
    assert cluster.head.node.standing().epoch == epoch
    cluster.run_for(IDLE_SECONDS + SETTLED)
    assert ring(cluster) == smaller
    assert outside(cluster)[1] == f"the ring is faster without it: {WHY}"
    assert (1, "host0", f"the ring goes on without node1: {outside(cluster)[1]}") in [
        (1, who, text) for _, who, text in cluster.notes
    ]
    assert not any("goes on without" in text for _, text in cluster.warnings)
    (obstacle,) = cluster.hosts["host1"].node.obstacles(cluster.now)
    assert obstacle.cause is Cause.OUTSIDE
    assert obstacle.what.endswith(f"without this machine: {outside(cluster)[1]}")
    check(cluster, streams(cluster))
    standing = cluster.head.node.standing()
    assert standing.present == standing.rooms.keys() == standing.builds.keys() == {0, 1, 2}
    assert set(cluster.head.node.standing().present) == {0, 1, 2}


def test_a_smaller_ring_that_cannot_load_its_layers_gives_way_to_all_for_good():
    cluster = cluster_of(2, cannot_load={})
    settled(cluster, (0, 1))
    prefer(cluster, 0)
    cluster.head.engine.unloadable = f"its {STILL_FETCHED}; 1 of 2 GB"
    cluster.run_until(lambda: cluster.head.node.ring == (0,), 20)
    asked = streams(cluster, count=1, tokens=20)  # waits
    cluster.run_until(lambda: cluster.head.node.ring == (0, 1), 5)
    cluster.head.engine.unloadable = ""
    check(cluster, asked)
    assert STILL_FETCHED in cluster.head.node.standing().preference.failed
    prefer(cluster, 0)
    cluster.run_for(60.0)
    assert ring(cluster) == (0, 1)


def test_streams_go_on_when_a_newcomer_ends_the_preference():
    cluster = cluster_of(3)
    cluster.crash(cluster.hosts["host2"])
    settled(cluster, (0, 1))
    prefer(cluster, 0)
    cluster.run_until(lambda: ring(cluster) == (0,), 20)
    asked = streams(cluster)
    cluster.boot(2)
    assert gap(cluster, 9.0) < SETTLED
    assert ring(cluster) == (0, 1, 2)
    assert cluster.head.node.standing().preference is None
    check(cluster, asked)


def test_streams_go_on_when_one_of_the_smaller_ring_goes_away():
    cluster = cluster_of(3)
    settled(cluster, (0, 1, 2))
    cluster.run_for(LONG_STAY)
    prefer(cluster, 0, 1)
    cluster.run_until(lambda: ring(cluster) == (0, 1), 20)
    asked = streams(cluster)
    cluster.run_for(1.0)
    cluster.crash(cluster.hosts["host1"])
    assert gap(cluster, 9.0) < LOSS_SECONDS + SETTLED
    assert ring(cluster) == (0, 2)
    check(cluster, asked)


def test_a_newer_roster_ends_the_preference():
    cluster = cluster_of(3)
    settled(cluster, (0, 1, 2))
    prefer(cluster, 0)
    cluster.run_until(lambda: ring(cluster) == (0,), 20)
    asked = streams(cluster)
    cluster.head.node.bring_roster(make_roster(2, serial=2).encode(), cluster.now, WALL)
    cluster.settle(cluster.head)
    cluster.run_until(lambda: ring(cluster) == (0, 1), 30)
    assert cluster.head.node.standing().preference is None
    check(cluster, asked)


def test_tensor_parallelism_is_tried_before_a_smaller_ring_and_is_not_left_for_one():
    cluster = cluster_of(2, strategy=Strategy.AUTO, splits=2, sums=(0, 1))
    settled(cluster, (0, 1))
    prefer(cluster, 0)
    cluster.run_for(120.0)
    assert ring(cluster) == (0, 1)
    assert cluster.head.node.standing().plan.strategy is Strategy.TENSOR


def test_a_smaller_ring_is_taken_where_tensor_parallelism_is_not_faster():
    cluster = cluster_of(2, strategy=Strategy.AUTO, splits=2, sums=(9000, 200_000))
    settled(cluster, (0, 1))
    prefer(cluster, 0)
    cluster.run_until(lambda: ring(cluster) == (0,), 120.0)


def test_who_may_not_prefer():
    cluster = cluster_of(2)
    settled(cluster, (0, 1))
    for host in cluster.hosts.values():
        if host is not cluster.head:
            with pytest.raises(LocalProtocolError, match="rank 1"):
                host.node.prefer(Preference((0,), WHY), cluster.now)
    whole = cluster_of(2, least=0)
    settled(whole, (0, 1))
    with pytest.raises(LocalProtocolError, match="ring of some members"):
        prefer(whole, 0)


def test_texts_name_the_rank_and_not_its_place():
    cluster = cluster_of(3, retries=2)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(LOSS_SECONDS + SETTLED)
    assert ring(cluster) == (0, 2)
    cluster.notes.clear()
    cluster.hosts["host2"].engine.spoil = 10**9
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done, 200)
    assert "the last, on rank 2 (node2): " in cluster.done[uid].message
    said = " ".join(text for _, who, text in cluster.notes if who == "host0")
    assert "failed on rank 2 (node2)" in said
    assert "rank 1" not in said


CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    # the members of the newer roster; the ring at once, and once all who are members are back
    "one is added": ((0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)),
    "one is added before the others": ((0, 3, 1, 2), (0, 1, 3), (0, 1, 2, 3)),
    "the one that is away is removed": ((0, 2), (0, 1), (0, 1)),
    "another is removed": ((0, 1), (0,), (0, 1)),
    "the one that is away is replaced": ((0, 3, 2), (0, 1, 2), (0, 1, 2)),
    "they change places": ((0, 2, 1), (0, 1), (0, 1, 2)),
}


@pytest.mark.parametrize("splits", rows({"pipeline": 0, "tensor": 12}, "pipeline"))
@pytest.mark.parametrize(
    ("members", "soon", "whole"),
    rows(CHANGES, "one is added before the others", "another is removed"),
)
def test_the_roster_changes_while_a_member_is_away(members, soon, whole, splits):
    old, new = make_roster(3), make_roster(4, 2, order=members)
    more = {"strategy": Strategy.AUTO, "splits": splits, "sums": (0, 1)}
    cluster = cluster_of(3, 5, rosters=[old] * 3, **more)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(LOSS_SECONDS + SETTLED)
    assert ring(cluster) == (0, 2)
    asked = streams(cluster, count=2, tokens=500)
    cluster.run_for(1.0)
    cluster.rosters = [old, old, old, new]
    cluster.models = [b"m" * 32] * 4
    if 3 in members:
        cluster.boot(3)
    cluster.head.node.bring_roster(new.encode(), cluster.now, WALL)
    cluster.settle(cluster.head)
    assert gap(cluster, STEADY_SECONDS + 2 * SETTLED) < SETTLED
    assert ring(cluster) == soon
    cluster.boot(1)
    assert gap(cluster, STEADY_SECONDS + 2 * SETTLED) < SETTLED
    assert ring(cluster) == whole
    check(cluster, asked)


def where(cluster: Cluster) -> list[str]:
    """The hosts at which the ring's collective meets."""
    collective = cluster.head.collective
    assert collective is not None
    return [host for host, _ in collective.hosts]


def test_a_collective_of_fewer_meets_at_the_addresses_of_a_newer_roster():
    """The roster changes nothing but addresses; the ring leaves a member out."""
    moved = make_roster(3).roster
    moved = attrs.evolve(
        moved,
        serial=2,
        members=tuple(
            attrs.evolve(member, addresses=(f"elsewhere{rank}:1", *member.addresses))
            for rank, member in enumerate(moved.members)
        ),
    )
    cluster = cluster_of(3, strategy=Strategy.AUTO, splits=6, sums=(0, 1), trusted=True)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(LOSS_SECONDS + SETTLED)
    tensor(cluster)
    assert where(cluster) == ["host0", "host2"]
    cluster.head.node.bring_roster(sign_roster(moved, COORDINATOR).encode(), cluster.now, WALL)
    cluster.settle(cluster.head)
    cluster.run_for(1.0)
    asked = streams(cluster, tokens=300)
    cluster.kill_engine(cluster.hosts["host2"])
    cluster.run_for(SETTLED)
    assert ring(cluster) == (0, 2)
    assert cluster.head.node.standing().plan.strategy is Strategy.TENSOR
    assert where(cluster) == ["elsewhere0", "elsewhere2"]
    check(cluster, asked)


# ------------------------------------------------------------------- fetched layers


def fetched(cluster: Cluster, index: int) -> None:
    """The last tensor of node *index* has come."""
    host = cluster.hosts[f"host{index}"]
    host.engine.unloadable = ""
    cluster.cannot_load.pop(index, None)
    host.node.fetched(0, 0, cluster.now)
    cluster.settle(host)


FETCHES = f"its {STILL_FETCHED}; 1 of 2 GB"


def test_the_ring_serves_without_a_newcomer_that_fetches_its_layers():
    cluster = cluster_of(3, cannot_load={2: FETCHES})
    cluster.crash(cluster.hosts["host2"])
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, count=2, tokens=500)
    cluster.boot(2)
    assert gap(cluster, 20.0) < SETTLED
    assert ring(cluster) == (0, 1)
    assert "its layers have been fetched" in outside(cluster)[2]
    fetched(cluster, 2)
    assert gap(cluster, 12.0) < SETTLED
    assert ring(cluster) == (0, 1, 2)
    check(cluster, asked)


def test_a_smaller_ring_waits_for_the_layers_that_its_members_fetch():
    """Without the one that was lost, another needs layers that it does not have yet."""
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=300)
    cluster.crash(cluster.hosts["host1"])
    cluster.hosts["host2"].engine.unloadable = FETCHES
    cluster.run_for(30.0)
    assert cluster.head.node.ring == (0, 2)
    assert ring(cluster) == ()
    fetched(cluster, 2)
    cluster.run_until(lambda: ring(cluster) == (0, 2), 15)
    check(cluster, asked)


# ------------------------------------------------------------------- what is told


def test_one_that_comes_again_and_again_is_told_until_when_it_waits():
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    for _ in range(2):
        cluster.crash(cluster.hosts["host2"])
        cluster.run_for(LOSS_SECONDS + SETTLED)
        cluster.boot(2)
        cluster.run_for(1.0)
    why = "it has come again after a short stay, and is taken in once it has stayed for 12 s"
    assert re.fullmatch(rf"{why} \(in 1[12] s\)", outside(cluster)[2])
    cluster.run_for(2.0)
    assert re.search(rf"without this machine: {why} \(for \d s\)", says(cluster, 2))
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), 12)
    said = [text for _, who, text in cluster.notes if who == "host0"]
    assert f"the ring goes on without node2: it is away (for {LOSS_SECONDS:.0f} s)" in said
    assert "the ring takes node2 in" in said


ALONE = "the model does not fit on node0 and node2 alone"


def test_a_head_whose_others_have_no_room_says_so():
    cluster = cluster_of(3, memory=3400)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(LOSS_SECONDS - 1)
    assert cluster.head.node.standing().needs_all == ""  # it may come back
    assert cluster.head.node.goes_on(cluster.now)
    cluster.run_for(3.0)
    assert not cluster.head.node.goes_on(cluster.now)
    cluster.run_for(30.0)
    assert cluster.head.node.standing().needs_all == ALONE
    assert re.match(rf"rank 1 \(node1\) cannot be reached .*; {ALONE} \(", says(cluster, 0))
    assert re.search(rf"the head says: rank 1 \(node1\) .*; {ALONE}", says(cluster, 2))
    assert sum(text == f"the ring waits: {ALONE}" for _, _, text in cluster.notes) == 1


def test_a_head_that_asks_for_more_members_says_so():
    cluster = cluster_of(3, least=2)
    cluster.run_until(lambda: cluster.ready)
    for gone in (1, 2):
        cluster.crash(cluster.hosts[f"host{gone}"])
    cluster.run_for(30.0)
    assert ring(cluster) == ()
    assert "min_ranks in node0's config asks for 2 machines" in says(cluster, 0)
    cluster.boot(2)
    cluster.run_until(lambda: ring(cluster) == (0, 2), 10)


@pytest.mark.parametrize("strategy", [Strategy.TENSOR, Strategy.SINGLE])
def test_a_strategy_that_needs_all_is_named(strategy):
    cluster = cluster_of(2, strategy=strategy, splits=2, sums=(10, 100))
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert ring(cluster) == ()
    assert f"strategy {strategy.value} needs every machine" in says(cluster, 0)


def says(cluster: Cluster, index: int) -> str:
    """What node *index* says of why it does not serve, a line for each reason."""
    node = cluster.hosts[f"host{index}"].node
    return "\n".join(each.text(cluster.now) for each in node.obstacles(cluster.now))


# ------------------------------------------------------------------- lies


LIES = {
    "another's place": (1, (0, 2)),
    "a member that the roster does not have": (1, (0, 1, 9)),
    "a place that is not its own": (0, (0, 3)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_head_that_lies_about_places_is_refused(lie):
    place, members = LIES[lie]
    cluster = cluster_of(4)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=100)
    order = cluster.hosts["host1"].engine.order
    bounds = tuple(range(len(members) + 1))
    bounds = (*bounds[:-1], LAYERS)
    epoch = attrs.evolve(order.epoch, counter=order.epoch.counter + 1)
    before = cluster.hosts["host1"].node.ring
    say(cluster, 0, 1, attrs.evolve(order, rank=place, bounds=bounds, epoch=epoch, members=members))
    cluster.run_for(0.1)
    assert cluster.hosts["host1"].node.ring == before
    assert any("came to rank 1 of 4" in text for _, who, text in cluster.notes if who == "host0")
    check(cluster, asked)


def test_a_rank_that_is_ordered_into_another_ring_than_the_others_comes_back():
    """It believes the head, which alone may order it; what the others send it is refused, and the
    next order is as good as any."""
    cluster = cluster_of(4)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=100)
    order = cluster.hosts["host1"].engine.order
    epoch = attrs.evolve(order.epoch, counter=order.epoch.counter + 1)
    say(cluster, 0, 1, attrs.evolve(order, bounds=(0, 3, LAYERS), epoch=epoch, members=(0, 1)[:0]))
    cluster.run_for(0.5)
    check(cluster, asked)
    assert ring(cluster) == (0, 1, 2, 3)


@pytest.mark.parametrize("purpose", [Purpose.STEP, Purpose.TUNNEL])
def test_a_member_outside_of_the_ring_opens_links_for_nothing(purpose):
    cluster = cluster_of(3)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster, tokens=100)
    cluster.boot(2)
    cluster.run_for(1.0)
    outsider = cluster.hosts["host2"]
    epochs = cluster.head.node.standing().epoch.counter
    for peer in (0, 1):
        outsider.node._links.want(peer, purpose, cluster.now)
    cluster.settle(outsider)
    cluster.run_for(0.5)
    assert {(rank, each) for rank, each, _ in outsider.node.links()} >= {(0, purpose), (1, purpose)}
    if purpose is Purpose.STEP:
        epoch = cluster.head.node.standing().epoch
        say(cluster, 2, 0, StepDone(epoch, 1), purpose)
        cluster.run_for(0.5)
    assert cluster.head.node.standing().epoch.counter == epochs
    check(cluster, asked)


def say(cluster, sender: int, receiver: int, message, purpose: Purpose = Purpose.CONTROL) -> None:
    """Send *message*, whether or not the sender should."""
    host = cluster.hosts[f"host{sender}"]
    (link,) = [each for rank, p, each in host.node.links() if (rank, p) == (receiver, purpose)]
    link.send(message)
    host.node._links.to_flush.update(host.wires)
    cluster.settle(host)


def test_links_for_weights_outlive_a_change_of_the_ring():
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    asker = cluster.hosts["host2"]
    asker.node._links.want(0, Purpose.WEIGHTS, cluster.now)
    cluster.settle(asker)
    cluster.run_for(0.5)

    def links() -> dict:
        return {(rank, purpose): link for rank, purpose, link in asker.node.links()}

    before = links()
    cluster.crash(cluster.hosts["host1"])
    cluster.run_until(lambda: ring(cluster) == (0, 2), LOSS_SECONDS + SETTLED)
    after = links()
    for purpose in (Purpose.CONTROL, Purpose.WEIGHTS):
        assert after[0, purpose] is before[0, purpose]
    assert after[0, Purpose.STEP] is not before[0, Purpose.STEP]
