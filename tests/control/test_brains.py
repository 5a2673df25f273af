"""Head and followers over queues: every request gets its tokens, whatever the order of events."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.sim.brains import Brains
from tests.sim.fake_engine import prompts, reference

LAYERS = 6


def check(ring: Brains, uid: int, prompt: tuple[int, ...], count: int) -> None:
    assert ring.tokens[uid] == reference(prompt, count, LAYERS)
    assert ring.positions[uid] == list(range(len(prompt), len(prompt) + count))
    assert ring.finished(uid) is FinishReason.LENGTH


def check_clean(ring: Brains) -> None:
    for rank, engine in ring.engines.items():
        assert engine is not None
        assert engine.empty, f"rank {rank} still holds something"
        assert not engine.pending
    assert ring.head.scheduler is not None
    assert ring.head.scheduler.live == 0
    assert ring.head.scheduler.in_flight == 0


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_every_request_gets_the_tokens_that_it_gets_alone(world, groups, seed):
    random = Random(seed)
    config = SchedulerConfig(groups=groups, rows=3, chunk=7)
    ring = Brains(world, random, config)
    ring.trusting = seed % 2 == 0
    ring.start()
    asked = []
    for prompt in prompts(random, 12):
        count = random.randrange(1, 15)
        asked.append((ring.submit(Request(prompt, count)), prompt, count))
        for _ in range(random.randrange(60)):
            ring.step()
    ring.run()
    for uid, prompt, count in asked:
        check(ring, uid, prompt, count)
    check_clean(ring)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), world=st.sampled_from([1, 2, 3, 5]))
def test_cancelling_anywhere_changes_nobody_elses_tokens(seed, world):
    random = Random(seed)
    ring = Brains(world, random, SchedulerConfig(groups=2, rows=2, chunk=5))
    ring.trusting = seed % 2 == 0
    ring.start()
    asked = []
    cancelled = set()
    for prompt in prompts(random, 10):
        count = random.randrange(1, 12)
        asked.append((ring.submit(Request(prompt, count)), prompt, count))
        for _ in range(random.randrange(50)):
            ring.step()
        if random.random() < 0.5:
            uid = random.choice(asked)[0]
            if uid not in ring.done:
                cancelled.add(uid)
            ring.cancel(uid)
    ring.run()
    for uid, prompt, count in asked:
        if uid in cancelled:
            assert ring.finished(uid) is FinishReason.CANCELLED
            assert ring.tokens[uid] == reference(prompt, count, LAYERS)[: len(ring.tokens[uid])]
        else:
            check(ring, uid, prompt, count)
    check_clean(ring)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), world=st.sampled_from([1, 2, 3, 5]))
def test_engines_and_links_lost_anywhere_cost_no_token(seed, world):
    random = Random(seed)
    ring = Brains(world, random, SchedulerConfig(groups=2, rows=3, chunk=6, retries=50))
    ring.trusting = seed % 2 == 0
    ring.start()
    asked = []
    for prompt in prompts(random, 6):
        count = random.randrange(1, 12)
        asked.append((ring.submit(Request(prompt, count)), prompt, count))
        for _ in range(random.randrange(80)):
            ring.step()
        if random.random() < 0.4:
            rank = random.randrange(world)
            if ring.engines[rank] is not None:
                ring.kill_engine(rank)
                for _ in range(random.randrange(10)):
                    ring.step()
                ring.start_engine(rank)
        elif ring.up and random.random() < 0.4:
            ring.cut(random.choice(sorted(ring.up)))
    ring.run()
    for uid, prompt, count in asked:
        check(ring, uid, prompt, count)
    check_clean(ring)


def test_end_of_sequence_stops_a_row_and_is_not_given_out():
    ring = Brains(2, Random(1))
    ring.start()
    tokens = reference((5, 6, 7), 20, LAYERS)
    stop = tokens.index(tokens[8])
    uid = ring.submit(Request((5, 6, 7), 20, frozenset({tokens[8]})))
    ring.run()
    assert ring.tokens[uid] == tokens[:stop]
    assert ring.finished(uid) is FinishReason.STOP
    check_clean(ring)


def test_a_poisonous_request_fails_alone():
    ring = Brains(3, Random(3), SchedulerConfig(rows=4, chunk=8))
    ring.start()
    engine = ring.engines[0]
    assert engine is not None
    engine.poison = 901
    good = [(ring.submit(Request(p, 9)), p) for p in [(1, 2, 3), (4, 5), (6,)]]
    bad = ring.submit(Request((8, 9, 901), 9))
    late = [(ring.submit(Request(p, 5)), p) for p in [(11, 12), (13, 14, 15)]]
    ring.run()
    assert ring.finished(bad) is FinishReason.FAILED
    assert "poison" in ring.done[bad].message
    for uid, prompt in good:
        check(ring, uid, prompt, 9)
    for uid, prompt in late:
        check(ring, uid, prompt, 5)
    check_clean(ring)
