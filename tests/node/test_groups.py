"""How many groups rows are spread over where nobody says it, in virtual time."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Decode, Prefill, Step, StepDone
from sealring_protocol.control.requests import Request, SchedulerConfig

from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6
STAGE = 0.010
ROWS = 8


def own(each):
    """The pace of stages that share nothing. One takes 10 ms for a decode, and *each* of that more
    for each row."""

    def pace(groups, message):
        match message:
            case Step(work=Decode(group=group)):
                return STAGE * (1 + each * len(groups.get(group, ())))
            case Step(work=Prefill()):
                return 0.001
            case _:
                return 0.0005

    return pace


def shared(groups, message):
    """The pace of stages that share processors: as many times as long as there are groups."""
    if isinstance(message, StepDone) or isinstance(getattr(message, "work", None), Decode):
        return own(0.05)(groups, message) * max(1, len(groups))
    return own(0.05)(groups, message)


def ring(pace, groups, world=2, delay=0.0002, slower=None):
    def ledger():
        return cluster.head.node._brain.scheduler.ledger

    cluster = Cluster(
        world,
        1,
        scheduler=SchedulerConfig(groups=groups, rows=ROWS),
        delay=delay,
        slower=slower,
        pace=lambda message: pace(ledger().groups, message),
    )
    cluster.run_until(lambda: cluster.ready)
    return cluster


def burst(cluster, first, rows=ROWS, tokens=60):
    """Tokens a second of so many *rows* that come at once, of which each ends earlier than the one
    before."""
    start, asked = cluster.now, {}
    for row in range(rows):
        prompt, count = (first + row,), max(18, tokens - 6 * row)
        asked[cluster.submit(Request(prompt, count))] = prompt, count
    cluster.run_until(lambda: cluster.all_done)
    for uid, (prompt, count) in asked.items():
        assert cluster.tokens[uid] == reference(prompt, count, LAYERS)
    return sum(count for _, count in asked.values()) / (cluster.now - start)


def groups_of(timings):
    """How many groups decoded in *timings*."""
    works = [timing.work for timing in timings]
    return len({work.group for work in works if isinstance(work, Decode)})


PLACES = {
    "stages of their own, and rows that cost little": (own(0.05), {}, {2}),
    "rows that cost as much as a step": (own(1.0), {}, {2}),
    "links that take longer than a stage": (own(0.5), {"delay": 2 * STAGE}, {3, 4}),
    "one slow stage": (own(0.05), {"slower": {1: 4.0}}, {1}),
    "one slow stage, and rows that cost as much as a step": (own(1.0), {"slower": {1: 4.0}}, {2}),
    "shared processors": (shared, {}, {1}),
    "four ranks": (own(0.05), {"world": 4}, {4}),
    "four ranks that share processors": (shared, {"world": 4}, {1}),
}


@pytest.mark.parametrize(
    "place",
    rows([*PLACES], "one slow stage", "links that take longer than a stage", "shared processors"),
)
def test_rows_are_soon_spread_over_as_many_groups_as_are_fastest(place):
    pace, options, best = PLACES[place]
    found, paces, used = ring(pace, 0, **options), [], []
    for turn in range(6):
        first = len(found.timings)
        paces.append(burst(found, 10 + ROWS * turn))
        used.append(groups_of(found.timings[first:]))
    assert used[0] == options.get("world", 2)
    assert set(used[4:]) <= best
    fixed = {groups: burst(ring(pace, groups, **options), 10) for groups in range(1, 5)}
    assert min(paces[4:]) > 0.96 * max(fixed.values())
    assert min(paces) > 0.94 * fixed[options.get("world", 2)]  # what it begins with


@pytest.mark.parametrize("place", ["links that take longer than a stage", "shared processors"])
def test_a_queue_is_no_reason_for_another_number(place):
    """Rows that wait for a place are in no group."""
    pace, options, _ = PLACES[place]
    found = ring(pace, 0, **options)
    fixed = [burst(ring(pace, groups, **options), 10, rows=6 * ROWS) for groups in range(2, 5)]
    assert burst(found, 10, rows=6 * ROWS) > 0.96 * max(fixed)


def test_another_head_finds_the_number_anew():
    cluster = ring(shared, 0)
    for turn in range(4):
        burst(cluster, 10 + ROWS * turn)
    before = len(cluster.timings)
    burst(cluster, 100)
    cluster.head.node._brain.scheduler.forget_ranks()
    after = len(cluster.timings)
    burst(cluster, 200)
    assert groups_of(cluster.timings[before:after]) == 1
    assert groups_of(cluster.timings[after:]) == 2


def test_two_rows_have_a_group_each_though_one_is_best_for_many():
    """Then each may decode on guesses."""
    cluster = ring(shared, 0)
    for turn in range(4):
        first = len(cluster.timings)
        burst(cluster, 10 + ROWS * turn)
    assert groups_of(cluster.timings[first:]) == 1
    for _ in range(18):  # alone for long
        burst(cluster, 200, rows=1)
    first = len(cluster.timings)
    burst(cluster, 100, rows=2)
    assert groups_of(cluster.timings[first:]) == 2


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_a_chosen_number_stays(chosen):
    """Though one is the fastest here, and four are on slow links."""
    for pace, options in ((shared, {}), (own(0.5), {"delay": 2 * STAGE})):
        cluster = ring(pace, chosen, **options)
        for turn in range(4):
            first = len(cluster.timings)
            burst(cluster, 10 + ROWS * turn)
            assert groups_of(cluster.timings[first:]) == chosen
