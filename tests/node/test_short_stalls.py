"""A link that breaks costs no row what it has read: every engine lives, and keeps its caches."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.control.test_scores import told
from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import prompts, reference, reference_scores
from tests.sim.hosts import Host

LAYERS = 6
SCHEDULER = SchedulerConfig(groups=2, rows=3, chunk=5, retries=50, prefixes=8)


def ring(world, seed, *, scheduler=SCHEDULER, **options):
    cluster = Cluster(world, seed, scheduler=scheduler, **options)
    cluster.run_until(lambda: cluster.ready)
    return cluster


def read(cluster: Cluster) -> int:
    """Tokens that the ring has read in prefills, on the rank that has read the most."""
    return max(host.engine.read for host in cluster.hosts.values() if host.engine)


def kept(cluster: Cluster) -> int:
    """Caches that every rank has kept."""
    return min(host.engine.kept for host in cluster.hosts.values() if host.engine)


def cut_one(cluster: Cluster, random: Random) -> None:
    wires = [wire for host in cluster.hosts.values() for wire in host.wires.values()]
    if wires:
        cluster.network.cut(random.choice(wires))


def cut_all(cluster: Cluster, host: Host) -> None:
    for wire in list(host.wires.values()):
        cluster.network.cut(wire)


def check(cluster: Cluster, asked) -> None:
    for uid, prompt, count in asked:
        assert cluster.done[uid].reason is FinishReason.LENGTH, cluster.done[uid]
        assert cluster.tokens[uid] == reference(prompt, count, LAYERS)
    cluster.run_for(1.0)


def check_all_kept(cluster: Cluster) -> None:
    """No engine was told to keep what it did not have."""
    assert not [text for _, _, text in cluster.notes if "has kept nothing" in text]


def check_nothing_left(cluster: Cluster) -> None:
    """The engines hold no rows, and as snapshots what the head thinks that they do."""
    scheduler = cluster.head.node._brain.scheduler
    for host in cluster.hosts.values():
        engine = host.engine
        assert not engine.private
        assert not engine.groups
        assert {n: len(s) - 1 for n, s in engine.snaps.items()} == scheduler.ledger.snaps


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_after_a_break_nothing_is_read_again(world, seed):
    cluster, random = ring(world, seed), Random(seed)
    prompt = tuple(random.randrange(900) for _ in range(200))
    uid = cluster.submit(Request(prompt, 40))
    cluster.run_until(lambda: len(cluster.tokens[uid]) > 5)
    for _ in range(3):
        cut_one(cluster, random)
        before = len(cluster.tokens[uid])
        cluster.run_until(lambda before=before: len(cluster.tokens[uid]) > before + 2)
    cluster.run_until(lambda: cluster.all_done)
    check(cluster, [(uid, prompt, 40)])
    check_nothing_left(cluster)
    check_all_kept(cluster)
    assert kept(cluster) > 0
    assert read(cluster) < len(prompt) + 10


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_silent_for_three_seconds_costs_less_than_four(world, seed):
    cluster, random = ring(world, seed), Random(seed)
    prompt = tuple(random.randrange(900) for _ in range(400))
    uid = cluster.submit(Request(prompt, 40))
    cluster.run_until(lambda: len(cluster.tokens[uid]) > 5)
    host, frozen_at, before = cluster.hosts[f"host{world - 1}"], cluster.now, read(cluster)
    host.frozen = True
    cluster.run_for(3.0)
    host.frozen = False
    had = len(cluster.tokens[uid])
    cluster.run_until(lambda: len(cluster.tokens[uid]) > had)
    assert cluster.now - frozen_at < 4.0
    cluster.run_until(lambda: cluster.all_done)
    check(cluster, [(uid, prompt, 40)])
    assert read(cluster) < before + 5


@pytest.mark.parametrize("trimmable", [True, False])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("seed", rows(range(8), 0, 1))
def test_stalls_at_any_step_change_no_text(world, seed, trimmable):
    """With many rows, with guesses, snapshots, cancelled rows; and links that break again at
    once."""
    cluster = ring(world, seed, trimmable=trimmable)
    random, asked, cancelled = Random(seed), [], []
    begin = tuple(random.randrange(900) for _ in range(30))
    for at, rest in enumerate(prompts(random, 10)):
        prompt, count = begin[: random.randrange(31)] + rest, random.randrange(5, 40)
        answer = reference(prompt, count, LAYERS)
        guesses = tuple(token + (random.random() < 0.1) for token in answer) if at % 2 else ()
        uid = cluster.submit(Request(prompt, count, prediction=guesses))
        asked.append((uid, prompt, count))
        if at % 4 == 3:
            cancelled.append(asked.pop()[0])
    for _ in range(12):
        cluster.run_for(random.random() * random.choice((0.02, 0.2)))
        cut_one(cluster, random)
        if cancelled and random.random() < 0.3:
            cluster.cancel(cancelled.pop())
    for uid in cancelled:
        cluster.cancel(uid)
    cluster.run_until(lambda: cluster.all_done)
    check(cluster, asked)
    check_all_kept(cluster)
    check_nothing_left(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_told_once_after_breaks(seed):
    cluster, random = ring(3, seed), Random(seed)
    prompt = tuple(random.randrange(900) for _ in range(150))
    uid = cluster.submit(Request(prompt, 5, sampling=Row(0, logprobs=2), scores=True))
    for _ in range(4):
        cluster.run_for(random.random() * 0.1)
        cut_one(cluster, random)
    cluster.run_until(lambda: cluster.all_done)
    check_all_kept(cluster)
    assert told(cluster.scores[uid]) == reference_scores(prompt, 2, LAYERS)
    check(cluster, [(uid, prompt, 5)])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_was_killed_has_kept_nothing_and_rows_are_read_again(world, seed):
    cluster, random = ring(world, seed), Random(seed)
    prompt = tuple(random.randrange(900) for _ in range(200))
    uid = cluster.submit(Request(prompt, 40))
    cluster.run_until(lambda: len(cluster.tokens[uid]) > 5)
    host = cluster.hosts["host1"]
    cluster.kill_engine(host)
    cut_all(cluster, host)
    cluster.run_until(lambda: cluster.all_done)
    check(cluster, [(uid, prompt, 40)])
    check_nothing_left(cluster)
    assert host.engine.kept == 0
    assert host.engine.read >= len(prompt)
