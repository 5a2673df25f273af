"""A ring serves with the members that are there: whole clusters in virtual time."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.control.head.attendance import (
    GATHER_SECONDS,
    LONG_STAY,
    LOSS_SECONDS,
    STEADY_SECONDS,
)
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6
SETTLED = 2.0
"""Seconds in which a change of the ring has come through: links, an epoch, and one failed one."""


def cluster_of(world: int, seed: int = 1, **more) -> Cluster:
    scheduler = SchedulerConfig(groups=2, rows=3, chunk=256, retries=50)
    return Cluster(world, seed, scheduler=scheduler, least=1, pace=lambda _: 0.05, **more)


def ring(cluster: Cluster) -> tuple[int, ...]:
    """The ring that serves; () if none does."""
    node = cluster.head.node
    return node.standing().ring if node.serving else ()


def outside(cluster: Cluster) -> dict[int, str]:
    """Why the head's ring is without each other rank."""
    told = cluster.head.node.standing().outside
    return {rank: each.text(cluster.now) for rank, each in told.items()}


def streams(cluster: Cluster, count: int = 3, tokens: int = 800) -> list:
    random = Random(count)
    asked = []
    for _ in range(count):
        prompt = tuple(random.randrange(900) for _ in range(random.randrange(1, 30)))
        asked.append((cluster.submit(Request(prompt, tokens)), prompt, tokens))
    return asked


def check(cluster: Cluster, asked: list) -> None:
    cluster.run_until(lambda: cluster.all_done, 600)
    for uid, prompt, count in asked:
        assert cluster.done[uid].reason is FinishReason.LENGTH, cluster.done[uid]
        assert cluster.tokens[uid] == reference(prompt, count, LAYERS)


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
    assert ring(cluster) == (0, 1, 2)
    check(cluster, streams(cluster, tokens=20))


def test_a_ring_that_is_whole_waits_for_nothing():
    cluster = cluster_of(3)
    cluster.run_until(lambda: cluster.ready)
    assert cluster.now < SETTLED
    assert ring(cluster) == (0, 1, 2)


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_streams_go_on_without_a_member_and_with_it_again(gone, seed):
    cluster = cluster_of(3, seed)
    cluster.run_until(lambda: cluster.ready)
    asked = streams(cluster)
    cluster.run_for(1.0)
    cluster.crash(cluster.hosts[f"host{gone}"])
    assert gap(cluster, 9.0) < LOSS_SECONDS + SETTLED
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


@pytest.mark.parametrize("seed", range(3))
def test_two_that_are_lost_at_once_leave_the_head_alone(seed):
    cluster = cluster_of(3, seed)
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
    asked = streams(cluster, count=1, tokens=2500)
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
    asked = streams(cluster, tokens=1000)
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


def test_a_collective_of_those_that_are_there():
    cluster = cluster_of(3, splits=6, sums=(0, 1))
    cluster.run_until(lambda: cluster.ready)
    node = cluster.head.node
    assert node.standing().plan.strategy is Strategy.TENSOR
    asked = streams(cluster, tokens=500)
    cluster.crash(cluster.hosts["host1"])
    assert gap(cluster, 9.0) < LOSS_SECONDS + SETTLED
    assert ring(cluster) == (0, 2)
    assert node.standing().plan.strategy is Strategy.TENSOR
    cluster.boot(1)
    cluster.run_until(lambda: ring(cluster) == (0, 1, 2), 30)
    assert node.standing().plan.strategy is Strategy.TENSOR
    check(cluster, asked)
