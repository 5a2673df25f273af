"""Long prompts in virtual time: every stage reads, and rows that decode wait within the bound."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Decode, Prefill, Step, StepDone
from sealring_protocol.control.requests import Request, SchedulerConfig

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6
TOKEN = 0.0005
STAGE = 0.010


def pace(message):
    """A stage takes 10 ms for a decode, half a millisecond for each token of a chunk, and 2 ms for
    a chunk beside that."""
    match message:
        case Step(work=Prefill(count=count)):
            return 0.002 + TOKEN * count
        case Step(work=Decode()):
            return STAGE
        case StepDone():
            return 0.0005
        case _:
            return 0.0


def ring(world, *, slower=None, delay=0.0002, pace=pace, **config):
    cluster = Cluster(
        world, 1, scheduler=SchedulerConfig(**config), delay=delay, pace=pace, slower=slower
    )
    cluster.run_until(lambda: cluster.ready)
    return cluster


def read(cluster, token, count):
    """Seconds until the first token after a prompt of *count* tokens."""
    start, prompt = cluster.now, (token,) * count
    uid = cluster.submit(Request(prompt, 1))
    cluster.run_until(lambda: cluster.tokens[uid])
    assert cluster.tokens[uid] == reference(prompt, 1, LAYERS)
    return cluster.now - start


def longest_wait(cluster, rows, ended):
    """The longest (s) that one of *rows* waits for a token until *ended*."""
    last = dict.fromkeys(rows, cluster.now)
    counts = {uid: len(cluster.tokens[uid]) for uid in rows}
    longest = 0.0
    while not ended():
        cluster.step()
        for uid in rows:
            if len(cluster.tokens[uid]) > counts[uid]:
                longest = max(longest, cluster.now - last[uid])
                counts[uid], last[uid] = len(cluster.tokens[uid]), cluster.now
    return longest


@pytest.mark.parametrize(("world", "gain"), [(1, 0.97), (2, 1.85), (3, 2.65), (4, 3.35)])
def test_a_prompt_is_read_by_all_stages_at_once(world, gain):
    """Each rank takes as long as one of *world* equal parts of the model."""
    cluster = ring(world)
    read(cluster, 1, 200)
    assert read(cluster, 2, 4000) <= 4000 * TOKEN * world / gain


def test_chunks_are_large_where_each_of_them_takes_long_beside_its_tokens():
    """A GPU takes 60 ms to prepare for a shape, and then 30 us for a token. With chunks of 64
    tokens this prompt would take 3.9 s."""

    def gpu(message):
        match message:
            case Step(work=Prefill(count=count)):
                return 0.060 + 0.00003 * count
            case _:
                return 0.010

    cluster = ring(2, pace=gpu)
    assert read(cluster, 1, 4000) < 1.2
    assert read(cluster, 2, 4000) < 0.5


def test_many_chunks_are_on_the_way_where_links_are_slow():
    cluster = ring(2, delay=0.3)
    read(cluster, 1, 200)
    near, far = 4000 * TOKEN, read(cluster, 2, 4000)
    assert far <= 2.3 * near


@pytest.mark.parametrize(
    ("world", "slower"),
    [
        (1, {}),
        (2, {}),
        (3, {}),
        (4, {}),
        (2, {0: 3.0}),
        (2, {1: 3.0}),
        (3, {1: 2.0}),
        (4, {3: 4.0}),
    ],
)
def test_tokens_of_other_rows_come_later_by_the_bound_at_most(world, slower):
    bound = 0.25
    cluster = ring(world, slower=slower, rows=12, chunk_seconds=bound)
    read(cluster, 9, 200)
    rows = [cluster.submit(Request((1, 2, 3 + row), 3000)) for row in range(8)]
    cluster.run_until(lambda: all(len(cluster.tokens[uid]) > 8 for uid in rows))
    until = cluster.now + 3.0
    alone = longest_wait(cluster, rows, lambda: cluster.now > until)
    prompt = cluster.submit(Request((7,) * 3000, 1))
    start = cluster.now
    beside = longest_wait(cluster, rows, lambda: cluster.tokens[prompt])
    assert cluster.tokens[prompt] == reference((7,) * 3000, 1, LAYERS)
    assert beside <= alone + bound
    assert beside >= alone + bound / 4, "the bound is there to be used"
    slowest = max(slower.values(), default=1.0)
    share = (cluster.now - start) / (3000 * TOKEN * slowest)
    assert share < 2.2, "chunks have half of the slowest rank's time at least"
