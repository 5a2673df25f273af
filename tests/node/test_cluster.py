"""Whole clusters in virtual time: every request answered once, whatever is lost on the way."""

from __future__ import annotations

from random import Random

import pytest

from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.control.scheduler import SchedulerConfig
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6


def prompts(random: Random, count: int, longest: int = 40) -> list[tuple[int, ...]]:
    return [
        tuple(random.randrange(900) for _ in range(random.randrange(1, longest)))
        for _ in range(count)
    ]


def check_all(cluster: Cluster, asked: list[tuple[int, tuple[int, ...], int]]) -> None:
    for uid, prompt, count in asked:
        assert cluster.done[uid].reason is FinishReason.LENGTH, cluster.done[uid]
        assert cluster.tokens[uid] == reference(prompt, count, LAYERS)


def check_clean(cluster: Cluster) -> None:
    cluster.run_for(1.0)
    for host in cluster.hosts.values():
        assert host.engine is not None
        assert host.engine.empty, f"{host.name} still holds something"
    scheduler = cluster.head.node.brain.scheduler
    assert scheduler.live == 0
    assert scheduler.in_flight == 0


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_serves(world, seed):
    cluster = Cluster(world, seed, scheduler=SchedulerConfig(groups=2, rows=3, chunk=7))
    random = Random(seed)
    cluster.run_until(lambda: cluster.ready)
    asked = []
    for prompt in prompts(random, 8):
        count = random.randrange(1, 10)
        asked.append((cluster.submit(Request(prompt, count)), prompt, count))
        cluster.run_for(random.random() * 0.05)
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)
