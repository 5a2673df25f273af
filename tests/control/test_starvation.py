"""What counts as starving, and by how much it puts deadlines off."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol.codec.messages import Decode, Epoch, Step
from sealring_protocol.control.deadlines import (
    AVERAGED,
    ENGINE,
    LOG_AGAIN,
    LONGEST_EXTENSION,
    AnswerDeadline,
    Starvation,
    StarvedRanks,
    ThreadUse,
    Wait,
)
from sealring_protocol.control.epoch.tensor import StepDeadline

LOOK = 0.4


def used(kind, n):
    """Threads and faults of an engine of some *kind* at its look *n*."""
    at = n * LOOK
    asleep = ThreadUse(1.0, 0.5)
    match kind:
        case "sleeps" | "waits for its GPU":
            return {1: asleep}, 9
        case "spins":
            return {1: asleep, 2: ThreadUse(at, 0.0, ready=True)}, 9
        case "gets 3 %":
            return {1: asleep, 2: ThreadUse(0.03 * at, 0.97 * at, ready=True)}, 9
        case "gets nothing":  # and so the system counts nothing either
            return {1: asleep, 2: ThreadUse(7.0, 3.0, ready=True)}, 9
        case "gets some now and then":  # a wait is counted when it is over
            turns = n // 10
            return {1: asleep, 2: ThreadUse(turns * 0.01, turns * 10 * LOOK, ready=True)}, 9
        case "reads pages back":
            return {1: asleep, 2: ThreadUse(0.01 * at, 0.0, blocked=True)}, 9 + n
        case "hangs in a driver":
            return {1: asleep, 2: ThreadUse(1.0, 0.0, blocked=True)}, 9
        case "spins with 4 threads on 2 processors":
            return {i: ThreadUse(at / 2, at / 2, ready=True) for i in range(4)}, 9
        case "beats while it hangs":  # a thread that wakes for a millisecond
            return {1: asleep, 2: ThreadUse(0.001 * n, 0.002 * n)}, 9
    raise AssertionError(kind)


PARTS = {
    "sleeps": 0.0,
    "waits for its GPU": 0.0,
    "spins": 0.0,
    "gets 3 %": 0.97,
    "gets nothing": 1.0,
    "gets some now and then": 1.0,
    "reads pages back": 1.0,
    "hangs in a driver": 0.0,
    "spins with 4 threads on 2 processors": 0.5,
    "beats while it hangs": 0.005,
}


@pytest.mark.parametrize(("kind", "part"), PARTS.items(), ids=PARTS)
def test_starving_is_to_be_ready_and_not_to_run(kind, part):
    starvation = Starvation()
    for n in range(1, 102):
        starvation.look(*used(kind, n), 50 + n * LOOK)
    assert starvation.seconds / (100 * LOOK) == pytest.approx(part, abs=0.02)


def test_what_was_before_the_first_look_counts_for_nothing():
    starvation = Starvation()
    assert starvation.look({1: ThreadUse(1.0, 99.0)}, 9, 5.0) == 0.0
    assert starvation.look({1: ThreadUse(1.0, 99.0)}, 9, 6.0) == 0.0


def test_a_thread_that_has_the_number_of_another_begins_anew():
    starvation = Starvation()
    starvation.look({1: ThreadUse(50.0, 40.0)}, 9, 5.0)
    assert starvation.look({1: ThreadUse(0.1, 0.9)}, 9, 6.0) == pytest.approx(0.9)


threads = st.dictionaries(
    st.integers(1, 4),
    st.builds(
        ThreadUse, st.floats(0, 1e6), st.floats(0, 1e6), ready=st.booleans(), blocked=st.booleans()
    ),
)
looks = st.lists(st.tuples(st.floats(0, 100), threads, st.integers(0, 9)), max_size=20)


@given(looks)
def test_nothing_starves_longer_than_time_passes(looks):
    starvation, now = Starvation(), 0.0
    for elapsed, uses, faults in looks:
        now += elapsed
        before = starvation.seconds
        more = starvation.look(uses, faults, now)
        assert 0 <= more <= elapsed + 1e-6
        assert starvation.seconds == before + more


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e12)), max_size=30))
def test_a_deadline_is_put_off_by_no_more_than_was_waited_and_no_more_than_the_bound(claims):
    wait, now = Wait(), 10.0
    wait.begin(now)
    for elapsed, claimed in claims:
        now += elapsed
        before = wait.extension
        wait.starved(claimed, now)
        assert before <= wait.extension
        assert wait.extension <= max(before, min(LONGEST_EXTENSION, now - 10.0) + 1e-6)


def learnt(watch, took=1.0, now=0.0):
    for _ in range(4):
        watch.owe(now)
        now += took
        watch.answered(now)
    return now


def test_the_watch_runs_in_the_engines_own_time():
    watch = AnswerDeadline(ENGINE)
    now = learnt(watch)
    watch.owe(now)
    assert watch.deadline == now + 20
    for _ in range(99):
        now += 1
        watch.starved(0.97, now)
    assert watch.deadline == pytest.approx(now + 20 - 99 * 0.03)
    assert watch.extended == ", nor within 96 s more, as it starved"
    watch.answered(now)  # it took three seconds of its own
    watch.owe(now)
    assert watch.deadline == pytest.approx(now + 20 * 99 * 0.03)
    assert not watch.extended


@pytest.mark.parametrize("seconds", [None, 7.0])
def test_an_order_is_put_off_and_the_next_begins_anew(seconds):
    watch = AnswerDeadline(ENGINE)
    watch.order(0.0, seconds)
    watch.starved(5.0, 6.0)
    assert watch.deadline == (seconds or 120.0) + 5.0
    watch.order(10.0, seconds)
    assert watch.deadline == 10.0 + (seconds or 120.0)


def test_who_owes_nothing_is_given_nothing():
    watch, deadline, lockstep = AnswerDeadline(ENGINE), AnswerDeadline(), StepDeadline()
    for each in (watch, deadline, lockstep):
        each.starved(5.0, 6.0)
    assert (watch.deadline, deadline.deadline, lockstep.deadline) == (None, None, None)


def test_one_deadline_is_put_off_and_set_anew():
    deadline = AnswerDeadline()
    deadline.order(0.0, 20.0)
    deadline.starved(3.0, 4.0)
    assert deadline.deadline == 23.0
    assert deadline.extended == ", nor within 3 s more, as it starved"
    deadline.order(30.0, 20.0)
    assert deadline.deadline == 50.0
    deadline.clear()
    assert deadline.deadline is None


def test_reports_that_come_every_half_second_keep_a_step_of_tensor_parallelism_alive():
    lockstep, now = StepDeadline(), 0.0
    lockstep.expect(0.01)
    for n in itertools.count():
        lockstep.owe(Step(Epoch(1, 1), n, bytes(16), work=Decode(0)), 1, now)
        if n == 70:
            break
        now += 0.01
        lockstep.answered(now)
    assert lockstep.deadline == pytest.approx(now + 1.0)
    began, told = now, 0.0
    while now < began + 60:
        now += 0.6  # what it hears then is as old as a look
        lockstep.starved(0.99 * (now - LOOK - began - told), now)
        told = now - LOOK - began
        assert lockstep.deadline > now + 0.7


def test_the_little_that_a_healthy_engine_waits_makes_no_floor_longer():
    lockstep, now = StepDeadline(), 0.0
    lockstep.expect(0.01)
    for n in range(70):
        lockstep.owe(Step(Epoch(1, 1), n, bytes(16), work=Decode(0)), 1, now)
        now += 0.01
        lockstep.starved(0.02, now)  # in all the steps since the last look
        lockstep.answered(now)
    lockstep.owe(Step(Epoch(1, 1), 70, bytes(16), work=Decode(0)), 1, now)
    assert lockstep.deadline == pytest.approx(now + 1.0)


def test_that_an_engine_starves_is_news_once():
    starved_ranks, now, seconds, news = StarvedRanks(), 0.0, 0.0, []
    starved_ranks.look(1, seconds, now)
    for part in [0.97] * 60 + [0.0] * 60 + [0.97] * 60 + [0.0] * 600 + [0.97] * 60:
        now += 1
        seconds += part
        assert starved_ranks.look(1, seconds, now) == pytest.approx(part)
        if starved_ranks.is_news(1, now):
            news.append(now)
    assert len(news) == 2
    assert news[0] < 2 * AVERAGED
    assert news[1] - news[0] > LOG_AGAIN
    (starved,) = starved_ranks.of(0, 1)
    assert starved.rank == 1
    assert starved.part == pytest.approx(0.97, abs=0.01)
    starved_ranks.reset_all_but({0})
    assert starved_ranks.of(1) == ()


def test_a_lie_counts_as_the_time_that_passed_and_another_process_begins_anew():
    starved_ranks = StarvedRanks()
    assert starved_ranks.look(1, 1e12, 0.0) == 0.0
    assert starved_ranks.look(1, 2e12, 1.0) == 1.0
    assert starved_ranks.look(1, 5.0, 2.0) == 0.0
    assert starved_ranks.look(1, 5.5, 3.0) == 0.5
