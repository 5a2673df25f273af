"""How many groups there are, by the times of which decodes."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import CacheCost, Decode, Epoch, Ready, Spent
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import Request, SchedulerConfig
from sealring_protocol.control.scheduler.batching import group_count
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import StepTimes


def timing(rows: int, seconds: float, *compute: float) -> StepTiming:
    """That of a decode of so many *rows* in a pipeline of ranks that *compute* so many seconds."""
    spent = tuple(Spent(compute_us=int(of * 1e6)) for of in compute)
    return StepTiming(1, Decode(0), tuple(range(rows)), int(seconds * 1e6), spent)


def feed(known: StepTimes, groups: list[int], *, ways: float = 0.0, times: int = 8) -> None:
    """Both stages work 10 ms on each decode, which is as long again under way with *ways* 1."""
    for _ in range(times):
        known.took(timing(max(groups), 0.02 * (1 + ways), 0.01, 0.01), groups)


def test_it_begins_with_a_group_for_each_stage():
    assert [group_count(StepTimes(), 8, stages, 4, 8) for stages in (1, 2, 3, 6)] == [1, 2, 3, 4]


def test_more_are_tried_as_far_as_decodes_travel():
    known = StepTimes()
    feed(known, [4, 4], ways=0.5)
    assert group_count(known, 8, 2, 4, 8) == 3
    known = StepTimes()
    feed(known, [4, 4], ways=1)
    assert group_count(known, 8, 2, 4, 8) == 4
    assert group_count(known, 2, 2, 3, 8) == 3  # lately there were eight
    feed(known, [1, 1], times=2000)
    assert group_count(known, 2, 2, 3, 8) == 2  # each has its own


def test_rows_that_wait_for_a_place_decode_no_faster_in_any_number():
    known = StepTimes()
    feed(known, [8, 8], ways=1)
    assert group_count(known, 32, 2, 4, 8) == group_count(known, 1000, 2, 4, 8) == 4


def test_groups_of_uneven_sizes_tell_nothing():
    known = StepTimes()
    feed(known, [5, 3], ways=1)
    assert group_count(known, 8, 2, 4, 8) == 2


def test_a_rank_that_claims_to_have_worked_for_years_keeps_no_other_number_for_long():
    honest, claimed = StepTimes(), StepTimes()
    claimed.took(timing(4, 0.04, 0.01, 1e12), [4, 4])
    for known in (honest, claimed):
        feed(known, [4, 4], ways=1, times=64)
    assert group_count(claimed, 8, 2, 4, 8) == group_count(honest, 8, 2, 4, 8) == 4


def test_fewer_are_tried_only_if_their_time_with_few_rows_promises_more():
    for alone, number in ((0.005, 1), (0.02, 2)):
        known = StepTimes()
        for _ in range(8):
            known.took(timing(1, alone, alone / 2, alone / 2), [1])
        feed(known, [1, 1])
        feed(known, [4, 4])
        assert group_count(known, 8, 2, 2, 8) == number


READY = Ready(Epoch(1, 1), 0, 1, True, 1 << 30, CacheCost(0, 4))
PARALLEL = {"parallel": True}
GUESSED = {"work": Decode(0, 1, 1)}


@pytest.mark.parametrize(
    ("other", "reading", "groups"),
    [({}, False, 4), (PARALLEL, False, 2), (GUESSED, False, 2), ({}, True, 2)],
)
def test_decodes_that_something_else_delays_tell_nothing(other, reading, groups):
    made = Scheduler(SchedulerConfig(groups=4, chunk=16), 1000)
    made.shape(0, 1, 2)
    made.begin(Epoch(1, 1), [READY, attrs.evolve(READY, first=1, last=2)])
    uids = [made.submit(Request((1,), 100)) for _ in range(8)]
    joined = answered(made, 2)
    if reading:
        made.submit(Request((1,) * 800, 100))
        made.answered(made.plan(0.0).step.n, (), 0.0)
    for _ in range(8):
        made.took(attrs.evolve(timing(4, 0.04, 0.01, 0.01), **other))
    for uid in uids:
        made.cancel(uid)
    for _ in range(8):
        made.submit(Request((1,), 100))
    assert joined == {0, 1}
    assert len(answered(made, 5)) == groups


def answered(made: Scheduler, steps: int) -> set[int]:
    """Which groups rows join in the next *steps* steps, which are all answered."""
    joined = set()
    for _ in range(steps):
        step = made.plan(0.0).step
        joined |= {join.group for join in step.join}
        rows = len(made.uids(step.n)) if isinstance(step.work, Decode) else 0
        made.answered(step.n, (7,) * rows, 0.0)
    return joined
