"""What a step costs: one forward and one frame on each rank, however many rows it has."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest
from sealring_protocol.control.requests import Request, SchedulerConfig

from tests.sim.cluster import Cluster

TOKENS = 40
PING = 8 + 1 + 8 * 8 + 16
MOST_CALLS = 680
"""Of functions of the core for each token, in a ring of two."""


def frames_and_forwards(rows: int, world: int = 3) -> tuple[dict[str, Counter[int]], list[int]]:
    """Sizes of what each rank sent to the next, and forwards, while *rows* rows decode."""
    cluster = Cluster(world, 1, scheduler=SchedulerConfig(groups=1, rows=8))
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(1.0)
    sent: dict[str, Counter[int]] = {f"host{i}": Counter() for i in range(world)}

    def tap(sender: str, receiver: str, data: bytes) -> None:
        if int(receiver[-1]) == (int(sender[-1]) + 1) % world and len(data) != PING:
            sent[sender][len(data)] += 1

    cluster.network.tap = tap
    # All are there before the first step is planned; they join in it and the next.
    brain = cluster.head.node._brain
    brain.plan_steps, plan_steps = lambda now: [], brain.plan_steps
    for row in range(rows):
        cluster.submit(Request((row + 1,), TOKENS))
    brain.plan_steps = plan_steps
    cluster.head.node._carry_out(brain.plan_steps(cluster.now), cluster.now)
    cluster.settle(cluster.head)
    cluster.run_until(lambda: cluster.all_done)
    cluster.run_for(0.5)
    forwards = [host.engine.forwards for host in cluster.hosts.values()]
    return sent, forwards


@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_is_one_forward_on_each_rank(rows):
    _, forwards = frames_and_forwards(rows)
    assert len(set(forwards)) == 1
    assert TOKENS <= forwards[0] <= TOKENS + 1


def test_a_hop_is_one_frame_of_rows_times_width_and_a_constant():
    alone, _ = frames_and_forwards(1)
    eight, _ = frames_and_forwards(8)
    for host in alone:
        (size, count), *_ = alone[host].most_common()
        (larger, as_many), *_ = eight[host].most_common()
        assert min(count, as_many) >= TOKENS - 3
        assert larger - size == 7 * 4  # seven rows more of one 32-bit number
        assert size < 256


def test_while_a_rank_is_stopped_there_are_no_tokens():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((1, 2, 3), 500))
    cluster.run_for(0.3)
    cluster.hosts["host1"].frozen = True
    cluster.run_for(0.05)
    before = len(cluster.tokens[uid])
    assert before > 5
    cluster.run_for(5.0)
    assert len(cluster.tokens[uid]) == before
    cluster.hosts["host1"].frozen = False
    cluster.run_until(lambda: cluster.all_done)
    assert len(cluster.tokens[uid]) == 500


def calls_of_the_core(tokens: int) -> int:
    """Calls of Python functions of the core, on both ranks, while one row draws *tokens* tokens."""
    cluster, calls = Cluster(2, 1), 0
    cluster.run_until(lambda: cluster.ready)
    cluster.submit(Request((1, 2, 3), tokens))

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "sealring_protocol" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        cluster.run_until(lambda: cluster.all_done)
    finally:
        sys.setprofile(None)
    return calls


def test_the_core_makes_few_calls_for_each_token():
    assert calls_of_the_core(440) - calls_of_the_core(40) < MOST_CALLS * 400
