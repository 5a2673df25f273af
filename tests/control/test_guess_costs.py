"""What is learnt of the times of guesses, and which way of guessing is taken for the fastest."""

import attrs
import pytest
from sealring_protocol.control.requests import Request
from sealring_protocol.control.scheduler.rows import (
    Fed,
    GuessCosts,
    RowGuesses,
    Way,
    Ways,
)
from sealring_protocol.control.scheduler.times import After, StepTimes

FLAT = {1: 1.05, 2: 1.1, 4: 1.2}
"""Seconds of a device that waits for its memory, by guesses ahead."""

STEEP = {1: 1.9, 2: 2.8, 4: 4.6}
"""Of one that computes as fast as it can."""


def test_a_pipeline_guesses_in_the_way_that_is_faster():
    """Reading ahead takes hardly longer than one token; a guess for each stage gains little."""
    costs, ways = GuessCosts(StepTimes()), Ways(piped=True, sizes=(1, 2, 4))
    for seconds, after in ((1.0, After.PLAIN), (0.8, After.RIGHT), (1.1, After.WRONG)):
        for _ in range(8):
            costs.times.answered(after, seconds)
    assert costs.way(0.8, 4, ways) == Way(True, 1)  # not known yet
    for _ in range(8):
        for size in (1, 2, 4):
            costs.times.answered(After.PLAIN, FLAT[size], size)
            for after in (After.RIGHT, After.WRONG):
                costs.times.answered(after, 1.5 * FLAT[size], size)
    assert costs.way(0.8, 4, ways) == Way(False, 4)
    assert costs.way(0.8, 3, ways) == Way(False, 2)
    assert costs.way(0.0, 4, ways).ahead == 0
    for _ in range(40):
        for size in (1, 2, 4):
            for after in After:
                costs.times.answered(after, STEEP[size], size)
        costs.times.answered(After.PLAIN, 1.0)
    assert costs.way(0.8, 4, ways) == Way(True, 0)


def test_a_pipeline_reads_several_guesses_with_each_step_where_both_ways_together_are_faster():
    """A step of three tokens takes a half longer than one of one, and half of its time if it was in
    flight already when the one before was answered."""
    costs, ways = GuessCosts(StepTimes()), Ways(piped=True, sizes=(1, 2, 4))
    for ahead, seconds in enumerate((1.0, 1.3, 1.5, 1.9, 2.4)):
        for _ in range(8):
            costs.times.answered(After.PLAIN, seconds, ahead)
            costs.times.answered(After.RIGHT, seconds / 2, ahead)
            costs.times.answered(After.WRONG, seconds, ahead)
    assert [costs.way(share, 4, ways) for share in (0.3, 0.6, 0.9)] == [
        Way(True, 0),
        Way(True, 1),
        Way(True, 2),
    ]
    assert costs.way(0.9, 1, ways) == Way(True, 1)
    assert costs.way(0.9, 4, Ways(piped=False, sizes=(1, 2, 4))) == Way(False, 2)


def known(times: dict[tuple[After, int], float]) -> GuessCosts:
    """Costs that have measured *times*."""
    costs = GuessCosts(StepTimes())
    for (after, ahead), seconds in times.items():
        for _ in range(8):
            costs.times.answered(after, seconds, ahead)
    return costs


SINGLE = {(After.PLAIN, 0): 1.0, (After.RIGHT, 0): 0.6, (After.WRONG, 0): 1.0}

SINGLE |= {(After.PLAIN, 1): 2.5}  # nothing behind them: never worth it

PAIRS = {(After.RIGHT, 1): 1.0, (After.WRONG, 1): 1.6}

TRIPLES = {(After.RIGHT, 2): 1.45, (After.WRONG, 2): 2.2}


@pytest.mark.parametrize(
    ("times", "share", "most"),
    [
        (SINGLE, 0.9, 1),  # as if two tokens took as long as one
        (
            SINGLE | PAIRS,
            0.9,
            2,
        ),  # three as if in the time of two
        (SINGLE | PAIRS, 0.5, 0),  # 1.15 tokens a second, and one gives 1.25
        (SINGLE | PAIRS | TRIPLES, 1.0, 2),  # five as if in 2.35: 2.13, less than 5 % above 2.07
        (SINGLE | PAIRS | TRIPLES | {(After.RIGHT, 2): 1.3}, 1.0, 4),  # five in 1.9: 2.63
    ],
)
def test_what_is_not_known_is_tried_if_it_promises_more(times, share, most):
    ways = Ways(piped=True, sizes=(1, 2, 4))
    assert known(times).way(share, 4, ways) == Way(True, most)


def test_only_a_row_that_is_alone_tries_what_is_not_known():
    assert known(SINGLE).way(0.9, 4, Ways(True, (1, 2), alone=False)) == Way(True, 0)


@pytest.mark.parametrize(
    ("seconds", "tried"),
    [
        ((1.0, 2.2), 2),  # any guess takes long; further ones may take little
        ((1.0, 2.4, 2.6), 4),
        ((1.0, 2.2, 3.2), 0),  # each takes as long
        ((1.0, 3.5), 0),  # five take a second each, at best
    ],
)
def test_a_row_goes_on_to_more_guesses_though_few_do_not_pay(seconds, tried):
    costs = known({(After.PLAIN, ahead): each for ahead, each in enumerate(seconds)})
    ways = Ways(piped=False, sizes=(1, 2, 4))
    assert costs.way(0.9, 4, ways) == Way(False, tried)
    assert (costs.break_even(ways) < 0.9) == bool(tried)
    others = attrs.evolve(ways, alone=False)
    assert costs.way(0.9, 4, others) == Way()
    assert costs.break_even(others) > 0.9


def test_a_share_pays_if_it_does_in_one_of_the_ways():
    """Single guesses never pay here, nor do several alone."""
    times = {(After.PLAIN, 0): 1.0, (After.RIGHT, 0): 1.1, (After.WRONG, 0): 1.3}
    times |= {(After.PLAIN, 1): 2.5, (After.RIGHT, 1): 1.2, (After.WRONG, 1): 2.0}
    assert known(times).break_even(Ways(True, (1,))) < 1
    assert known(times).break_even(Ways(False, (1,))) > 1
    assert known(times).way(1.0, 1, Ways(True, (1,))) == Way(True, 1)


def test_times_are_told_by_what_a_step_came_after_and_what_it_read():
    assert known(SINGLE | PAIRS | {(After.PLAIN, 4): 2.0}).times.of_guesses == {
        "plain": 1.0,
        "right": 0.6,
        "wrong": 1.0,
        "right 1": 1.0,
        "wrong 1": 1.6,
        "ahead 1": 2.5,
        "ahead 4": 2.0,
    }


def timed(*steps: tuple[int, bool | None, float], turns: int = 5) -> GuessCosts:
    """What is learnt of a row's *steps*: how many guesses each reads ahead, whether it is followed
    by one that begins with a right guess, or a wrong one, and its seconds. They are done *turns*
    times over, one after the other."""
    costs, tokens, now = GuessCosts(StepTimes()), [1], 0.0
    guesses = RowGuesses(tokens, Request((1,)))
    for _ in range(turns):
        for ahead, right, seconds in steps:
            now += seconds
            if right is not None:
                guesses.fed.append(Fed(1, (5 if right else 6,) * (1 + ahead)))
            guesses.drawn((5,) * ahead, (5,) * (ahead + 1), now, costs, alone=True)
            guesses.fed.clear()
            guesses.ahead = ()
            tokens += (5,) * (ahead + 1)
    return costs


@pytest.mark.parametrize(
    ("steps", "known_times"),
    [
        ([(0, None, 1.0)], {"plain": 1.0}),
        ([(0, True, 1.0)], {"right": 1.0}),
        ([(0, False, 1.0)], {"wrong": 1.0}),
        ([(2, True, 1.0)], {"right 2": 1.0}),
        ([(2, False, 1.0)], {"wrong 2": 1.0}),
        ([(2, None, 1.0)], {"ahead 2": 1.0}),
        ([(0, None, 1.0), (0, False, 9.0)], {"wrong": 1.0}),  # the second came late
        # The first of either kind was not built ahead.
        ([(0, None, 9.0), (2, None, 9.0), (2, None, 1.0)], {"ahead 2": 1.0}),
        ([(2, None, 9.0), (0, None, 9.0), (0, None, 1.0)], {"plain": 1.0}),
        ([(2, False, 9.0), (2, None, 1.0)], {"wrong 2": 1.0}),  # what was wasted delays it
        # What is wasted are three tokens for the one, and one for the other.
        ([(0, False, 1.0), (2, None, 1.0)], {}),
        ([(2, True, 1.0), (0, True, 1.0)], {}),
    ],
)
def test_a_time_is_learnt_of_what_the_step_came_after_and_what_it_read(steps, known_times):
    assert timed(*steps).times.of_guesses == known_times


@pytest.mark.parametrize(
    "steps", [[(0, None, 1.0), (2, None, 2.0)], [(2, None, 2.0), (4, None, 2.0)]]
)
def test_the_time_of_steps_that_are_never_alike_is_known_in_the_end(steps):
    """Else they would be tried for ever."""
    sizes = {f"ahead {ahead}" for ahead, _, _ in steps if ahead}
    assert not timed(*steps).times.of_guesses
    assert sizes <= set(timed(*steps, turns=100).times.of_guesses)


def test_what_a_token_takes_is_measured_anew_after_all_tokens_of_the_step():
    """Those of the step that makes it due are not of the pause, however many it read."""
    costs, tokens, now = known({(After.PLAIN, 0): 1.0}), [1], 0.0
    guesses = RowGuesses(tokens, Request((1,), guesses=(5,) * 9000))
    while costs.plain is not None:
        now += 1.0
        guesses.drawn((5,) * 8, (5,) * 9, now, costs, alone=True)
        tokens += (5,) * 9
    guesses.ways = Ways(False, (8,))
    for _ in range(8):
        assert guesses.after_last(costs, 0, 8) == ()
        now += 3.0
        guesses.drawn((), (5,), now, costs, alone=True)
        tokens.append(5)
    assert costs.plain == 3.0


def test_a_device_that_prepares_for_a_shape_more_than_once_is_not_taken_for_slow():
    costs, ways = GuessCosts(StepTimes()), Ways(piped=False, sizes=(4,))
    for _ in range(8):
        costs.times.answered(After.PLAIN, 1.0)
    for seconds in (300.0, 150.0, 1.5, 1.4):
        costs.times.answered(After.PLAIN, seconds, 4)
    assert costs.times.known[After.PLAIN, 4] == 1.4
    assert costs.way(0.8, 4, ways) == Way(False, 4)
