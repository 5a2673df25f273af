"""Which group a row joins, by the lengths of those that are there."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import CacheCost, Decode, Epoch, Ready
from sealring_protocol.control.requests import Request, SchedulerConfig
from sealring_protocol.control.scheduler.batching import cheapest_group
from sealring_protocol.control.scheduler.rows import LiveRow
from sealring_protocol.control.scheduler.scheduler import Scheduler

EPOCH = Epoch(1, 1)
READY = Ready(EPOCH, 0, 1, True, 1 << 30, CacheCost(0, 4))
"""A rank whose caches take 4 bytes for each token."""


def row(length: int, group: int = 0) -> LiveRow:
    made = LiveRow(length, Request((1,)), length + 9, [1] * length)
    made.group = group
    return made


@pytest.mark.parametrize(
    ("lengths", "length", "chosen"),
    [
        ([[], []], 9, 0),
        ([[9], []], 9, 1),  # spread evenly
        ([[9, 9], [9]], 9, 1),
        ([[2000], [10]], 1990, 0),  # beside its like
        ([[10] * 4, [10] * 4], 400, 0),  # with no more padding than is worth a further group
        ([[10] * 4, [10] * 4], 800, 2),
        ([[10] * 4, [10] * 4, [790], [800] * 3], 800, 3),  # there with most of its like
        ([[2000] * 8, [10] * 7], 2000, 2),  # no place with its like
        ([[10] * 4, [10] * 4, [100]], 4000, 3),
        ([[10] * 4, [10] * 4, [100], [200]], 9000, 0),  # as none fits
        ([[10] * 4, [10] * 4, [800] * 8], 800, 3),  # no place
        ([[9000], [9000]], 10, 2),  # a short row beside long ones
        ([[9000], []], 10, 1),
    ],
)
def test_a_row_that_fits_none_of_the_groups_gets_a_further_one(lengths, length, chosen):
    """Two groups, and four at most of eight rows; 2,000 tokens are worth one."""
    live = [row(of, group) for group, lengths_of in enumerate(lengths) for of in lengths_of]
    assert cheapest_group(row(length), live, 2, 8, most=4, padding=2000) == chosen


def groups(asked: int, weights: int, ready: Ready = READY, second: int = 4) -> tuple[set[int], int]:
    """In which groups of a pipeline of two eight short rows decode, and in which one of 800 tokens
    that comes after them; *asked* is how many groups are asked for. The second rank's caches take
    *second* bytes for each token."""
    config = SchedulerConfig(groups=4, chunk=4096, chunk_seconds=1e9, weights=weights)
    made = Scheduler(config, 1000)
    made.shape(asked, 1, 2)
    other = attrs.evolve(ready, first=1, last=2, cost=attrs.evolve(ready.cost, per_token=second))
    made.begin(EPOCH, [ready, other])
    uids = [made.submit(Request((1,) * 10, 100)) for _ in range(8)]
    found: dict[int, int] = {}
    while len(found) < 9:
        planned = made.plan(0.0)
        assert planned is not None
        step = planned.step
        for join in step.join:
            found[join.uid] = join.group
        rows = made.uids(step.n) if isinstance(step.work, Decode) else ()
        made.answered(step.n, [7] * len(rows), 0.0)
        if len(found) == 8 and len(uids) == 8:
            uids.append(made.submit(Request((1,) * 800, 100)))
    return {found[uid] for uid in uids[:8]}, found[uids[8]]


def test_as_much_padding_as_the_weights_are_large_is_worth_a_further_group():
    assert groups(0, weights=8 * 1_000) == ({0, 1}, 2)
    short, long = groups(0, weights=8 * 10_000)
    assert long in short == {0, 1}
    for unknown in (groups(0, 0), groups(0, 8_000, attrs.evolve(READY, cost=CacheCost(9, 0)))):
        assert unknown == (short, long)


def test_a_rank_that_claims_much_for_each_token_makes_no_further_groups():
    assert groups(0, weights=8 * 10_000, second=1 << 16) == groups(0, weights=8 * 10_000)


def test_no_further_group_is_made_where_their_number_was_chosen():
    assert groups(2, weights=8)[1] in {0, 1}
    assert groups(1, weights=8) == ({0}, 0)
