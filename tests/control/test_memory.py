"""Requests beyond a rank's memory: they end alone, and what is beyond it together takes turns."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.rows import rows
from tests.sim.brains import Brains
from tests.sim.fake_engine import reference

LAYERS = 6
KINDS = (FailureKind.MEMORY, FailureKind.ENGINE_LOST)


def whole(ring: Brains, uid: int, prompt: tuple[int, ...], count: int) -> bool:
    return ring.finished(uid) is FinishReason.LENGTH and ring.tokens[uid] == reference(
        prompt, count, LAYERS
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("grows", [False, True], ids=["prompt", "answer"])
@pytest.mark.parametrize("seed", rows(range(5), 0, 1))
def test_a_request_beyond_a_ranks_memory_ends_alone(
    kind: FailureKind, rank: int, grows: bool, seed: int
) -> None:
    ring = Brains(3, Random(seed), SchedulerConfig(groups=2, rows=4, chunk=16))
    ring.memory[rank] = 300
    ring.dies_of = kind
    ring.start()
    good = [((n, n + 1, n + 2), 30) for n in range(1, 4)]
    uids = [ring.submit(Request(prompt, count)) for prompt, count in good]
    for _ in range(60):
        ring.step()
    huge = ring.submit(Request((9,) * (20 if grows else 400), 400 if grows else 5))
    ring.run()
    for uid, (prompt, count) in zip(uids, good, strict=True):
        assert whole(ring, uid, prompt, count)
    assert ring.finished(huge) is FinishReason.FAILED
    if kind is FailureKind.MEMORY:
        assert "too little memory for this request, even alone" in ring.done[huge].message
    assert "killed" in ring.done[huge].message
    assert ring.kills <= 5


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_what_does_not_fit_together_takes_turns_once_that_is_learnt(world: int, seed: int) -> None:
    ring = Brains(world, Random(seed), SchedulerConfig(groups=2, rows=8, chunk=64))
    ring.memory[world - 1] = 300
    ring.start()
    asked = [((n,) * 60, 30) for n in range(1, 13)]
    uids = [ring.submit(Request(prompt, count)) for prompt, count in asked]
    ring.run(400_000)
    for uid, (prompt, count) in zip(uids, asked, strict=True):
        assert whole(ring, uid, prompt, count)
    assert any(f"memory of rank {world - 1} (" in note for note in ring.notes)
    before = ring.kills
    assert before <= 20
    more = [ring.submit(Request((n,) * 60, 30)) for n in range(20, 26)]
    ring.run(400_000)
    assert all(ring.finished(uid) is FinishReason.LENGTH for uid in more)
    assert ring.kills <= before + 2


def test_what_was_learnt_of_a_rank_is_void_in_the_ring_of_another_roster() -> None:
    """The same rank may be another machine there."""
    ring = Brains(3, Random(1), SchedulerConfig(groups=2, rows=8, chunk=64))
    ring.memory[2] = 300
    ring.start()
    for n in range(1, 13):
        ring.submit(Request((n,) * 60, 30))
    ring.run(400_000)
    scheduler = ring.head.scheduler
    assert scheduler is not None
    assert scheduler.learnt.keys() == {2}
    ring.head.retire()
    Head(HeadConfig(7, ("a", "b"))).inherit(scheduler)
    assert scheduler.learnt == {}


def test_memory_that_ran_out_with_short_rows_bars_no_long_one() -> None:
    """Another program on that machine may have taken it."""
    ring = Brains(3, Random(1), SchedulerConfig(groups=2, rows=8, chunk=64))
    ring.start()
    short = [ring.submit(Request((n, n + 1), 40)) for n in range(1, 4)]
    for _ in range(60):
        ring.step()
    ring.kill_engine(2, FailureKind.MEMORY)
    ring.start_engine(2)
    ring.run()
    assert all(ring.finished(uid) is FinishReason.LENGTH for uid in short)
    assert ring.head.scheduler is not None
    assert ring.head.scheduler.learnt.keys() == {2}
    long = [ring.submit(Request((n,) * 500, 20)) for n in (5, 6)]  # one after the other
    ring.run()
    for uid, n in zip(long, (5, 6), strict=True):
        assert whole(ring, uid, (n,) * 500, 20)
    assert ring.kills == 1
