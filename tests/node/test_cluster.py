"""Whole clusters in virtual time: every request answered once, whatever is lost on the way."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Decode, Spent
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from sealring_protocol.errors import LocalProtocolError

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import prompts, reference
from tests.sim.rosters import signer

LAYERS = 6


def check_all(cluster: Cluster, asked: list[tuple[int, tuple[int, ...], int]]) -> None:
    for uid, prompt, count in asked:
        assert cluster.done[uid].reason is FinishReason.LENGTH, cluster.done[uid]
        assert cluster.tokens[uid] == reference(prompt, count, LAYERS)


def check_clean(cluster: Cluster) -> None:
    cluster.run_for(1.0)
    for host in cluster.hosts.values():
        assert host.engine is not None
        assert host.engine.empty, f"{host.name} still holds something"
    scheduler = cluster.head.node._brain.scheduler
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


def busy(world: int, seed: int, count: int = 6) -> tuple[Cluster, list]:
    """A ring with two groups and several chunks under way."""
    cluster = Cluster(world, seed, scheduler=SchedulerConfig(groups=2, rows=3, chunk=5, retries=50))
    random = Random(seed)
    cluster.run_until(lambda: cluster.ready)
    asked = []
    for prompt in prompts(random, count):
        tokens = random.randrange(5, 40)
        asked.append((cluster.submit(Request(prompt, tokens)), prompt, tokens))
    cluster.run_for(random.random() * 0.1)
    return cluster, asked


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_crashes_mid_step_costs_no_token(world, seed):
    cluster, asked = busy(world, seed)
    index = 1 + seed % (world - 1)
    cluster.crash(cluster.hosts[f"host{index}"])
    cluster.run_for(1.0)
    cluster.boot(index)
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_was_away_for_long_is_taken_back_at_once(world, strategy, seed):
    """However long the pauses between dials have become meanwhile."""
    cluster = Cluster(world, seed, strategy=strategy, splits=world)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(7.0)
    index = 1 + seed % (world - 1)
    cluster.crash(cluster.hosts[f"host{index}"])
    cluster.run_for(20.0 + 1.3 * seed)
    cluster.notes.clear()
    cluster.boot(index)
    back = cluster.now
    cluster.run_until(lambda: cluster.ready)
    assert cluster.now - back < 1.0


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_frozen_rank_is_noticed_and_its_steps_are_done_elsewhere_in_time(world, seed):
    cluster, asked = busy(world, seed)
    host = cluster.hosts[f"host{world - 1}"]
    frozen_at = cluster.now
    host.frozen = True
    cluster.run_until(
        lambda: any(f"rank {world - 1}" in t and "gone" in t for _, _, t in cluster.notes)
    )
    assert cluster.now - frozen_at < 2.0
    host.frozen = False
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_dies_is_replaced(world, seed):
    cluster, asked = busy(world, seed)
    for index in range(world):
        cluster.kill_engine(cluster.hosts[f"host{index}"])
        cluster.run_for(0.7)
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_hangs_is_replaced(seed):
    cluster, asked = busy(2, seed)
    host = cluster.hosts["host1"]
    assert host.engine is not None
    host.engine.hung = True
    cluster.run_until(lambda: cluster.all_done, 400)
    assert any("within the deadline" in text or "killed" in text for _, _, text in cluster.notes)
    check_all(cluster, asked)


@pytest.mark.parametrize("seed", range(6))
def test_wires_cut_at_random_cost_no_token(seed):
    cluster, asked = busy(3, seed, count=8)
    random = Random(seed)
    for _ in range(6):
        host = random.choice(sorted(cluster.hosts.values(), key=lambda h: h.name))
        if host.wires:
            cluster.network.cut(host.wires[random.choice(sorted(host.wires))])
        cluster.run_for(random.random() * 0.3)
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)


def test_the_head_that_comes_back_is_obeyed():
    cluster, _ = busy(3, 1)
    cluster.crash(cluster.head)
    cluster.run_for(0.5)
    cluster.tokens.clear()
    cluster.done.clear()
    cluster.notes.clear()
    cluster.boot(0)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((1, 2, 3), 8))
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, [(uid, (1, 2, 3), 8)])
    check_clean(cluster)


def test_peers_may_start_in_any_order_and_say_what_they_wait_for():
    cluster = Cluster(3, 4)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(3.0)
    assert not cluster.ready
    assert any("waiting for rank 1 (node1)" in text for _, _, text in cluster.notes)
    cluster.boot(1)
    cluster.run_until(lambda: cluster.ready)


def test_cancelling_midway_leaves_nothing_on_any_rank():
    cluster, asked = busy(3, 7)
    for uid, _, _ in asked:
        cluster.cancel(uid)
    cluster.run_until(lambda: cluster.all_done)
    check_clean(cluster)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_plain_is_on_any_wire(seed):
    cluster = Cluster(3, seed)
    seen = bytearray()
    cluster.network.tap = lambda _from, _to, data: seen.extend(data)
    cluster.run_until(lambda: cluster.ready)
    prompt = tuple(range(700, 740))
    uid = cluster.submit(Request(prompt, 30))
    cluster.run_until(lambda: cluster.all_done)
    raw = bytes(seen)
    tokens = [*prompt, *cluster.tokens[uid]]
    for layout in ("big", "little"):
        for start in range(len(tokens) - 2):
            run = b"".join(t.to_bytes(4, layout) for t in tokens[start : start + 3])
            assert run not in raw
    for index in range(3):
        key = signer(index).public_key
        assert key not in raw
        assert key[1:33] not in raw


def test_a_rank_with_another_model_is_told_so():
    cluster = Cluster(2, 1, models=[b"m" * 32, b"x" * 32])
    cluster.run_for(3.0)
    assert not cluster.ready
    assert any("model_mismatch" in text and "another model" in text for _, _, text in cluster.notes)


def test_step_timings_tell_the_hop_from_the_work():
    cluster = Cluster(3, 1)
    cluster.run_until(lambda: cluster.ready)
    cluster.submit(Request((1, 2, 3), 8))
    cluster.run_until(lambda: cluster.all_done)
    decodes = [timing for timing in cluster.timings if isinstance(timing.work, Decode)]
    assert len(decodes) >= 8
    for timing in decodes:
        assert timing.spent == (Spent(3), Spent(3), Spent(3))
        assert timing.closing == Spent(2)
        assert timing.away_us == timing.total_us - 11 > 0


def test_a_rank_that_leaves_times_out_of_its_answers_leaves_a_ring_that_knows_none():
    """What compares the ranks takes each one's time, or none: the head, which then looks whether
    tensor parallelism may be faster, goes on."""
    cluster = Cluster(2, 1, strategy=Strategy.AUTO, splits=2)
    cluster.run_until(lambda: cluster.ready)
    cluster.hosts["host1"].engine.timeless = True
    for _ in range(2):
        cluster.submit(Request((1, 2, 3), 40))
        cluster.run_until(lambda: cluster.all_done)
        cluster.run_for(30.0)
    assert cluster.ready
    assert {timing.spent for timing in cluster.timings} == {()}


def test_only_the_head_takes_requests():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    with pytest.raises(LocalProtocolError, match="ask the head, node0"):
        cluster.hosts["host1"].node.submit(Request((1,)), cluster.now)
    with pytest.raises(LocalProtocolError, match="no tokens"):
        cluster.submit(Request(()))
    with pytest.raises(LocalProtocolError, match="4096"):
        cluster.submit(Request((1,) * 4000, 200))
