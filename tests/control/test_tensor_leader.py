"""The deadline of a step in tensor parallelism: long enough for honest work, short for a freeze."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Decode, Epoch, Join, NoWork, Prefill, Step
from sealring_protocol.control.epoch.tensor import STEADY, StepDeadline, StepDeadlineRule

EPOCH = Epoch(1, 1)


def step(work):
    return Step(EPOCH, 1, bytes(16), work=work)


def prefill(tokens):
    return step(Prefill(1, 0, tokens)), 1


def decode(rows):
    return step(Decode(0)), rows


def allowed(step_deadline, work, rows):
    """Seconds that *work* is given after what *step_deadline* has seen."""
    step_deadline.owe(work, rows, 0.0)
    seconds = step_deadline.deadline
    step_deadline.clear()
    return seconds


def seen(*steps, token=0.0):
    """A deadline that has seen *steps*, each with the seconds that it took."""
    step_deadline = StepDeadline()
    step_deadline.expect(token)
    for (work, rows), seconds in steps:
        step_deadline.owe(work, rows, 0.0)
        step_deadline.answered(seconds)
    return step_deadline


@pytest.mark.parametrize(("patience", "least"), [(1.5, 1.0), (4.0, 3.5), (0.0, 1.0)])
def test_an_owner_who_is_patient_with_peers_is_with_engines(patience, least):
    step_deadline = StepDeadline(StepDeadlineRule.of(patience))
    for _ in range(3):
        step_deadline.owe(*decode(1), 0.0)
        step_deadline.answered(0.01)
    assert allowed(step_deadline, *decode(1)) == least


HONEST = {
    "a first batch of 8 rows after single ones": ([(decode(1), 0.5)], 0.5, decode(8), 4.0),
    "a first batch of 8 rows at once": ([], 0.5, decode(8), 4.0),
    "a first prefill of a model that reads one token after the other": (
        [],
        0.2,
        prefill(512),
        100.0,
    ),
    "a short prompt after a long one": ([(prefill(512), 5.0)], 0.6, prefill(2), 1.5),
    "a chunk after a short prompt": ([(prefill(3), 0.5)], 0.3, prefill(512), 80.0),
    "a slower prefill than before": ([(prefill(100), 5.0)], 0.2, prefill(100), 15.0),
    "the first of all": ([], 0.0, decode(1), 20.0),
}


@pytest.mark.parametrize(("before", "token", "next_", "takes"), HONEST.values(), ids=HONEST)
def test_honest_work_has_time(before, token, next_, takes):
    assert allowed(seen(*before, token=token), *next_) > takes


USUAL = [(decode(1), 0.02), (decode(8), 0.03), ((step(NoWork()), 0), 0.001), (prefill(100), 0.1)]


@pytest.mark.parametrize("rows", [1, 8, 9, 12])
def test_a_freeze_while_a_usual_model_decodes_is_found_within_a_second(rows):
    assert allowed(seen(*USUAL, *USUAL, token=0.02), *decode(rows)) <= 1.0


def changing(rows, **change):
    return Step(EPOCH, 1, bytes(16), work=Decode(0), **change), rows


def test_the_first_step_of_a_shape_has_time_for_a_device_to_compile():
    """On CUDA a group of another size, or one that rows enter or leave, takes kernels that nobody
    has needed yet: seconds, after steps of milliseconds."""
    before = [*USUAL, *USUAL]
    for work in (changing(8, evict=(2,)), decode(16), prefill(130)):
        assert allowed(seen(*before, token=0.02), *work) > 8.0
        after = seen(*before, (work, 3.0), token=0.02)
        assert allowed(after, *decode(8)) < 2.0  # what compiling took is no pace
        assert allowed(after, *work) < 2.0 + 4 * 0.02 * 130


def test_rows_that_enter_may_be_the_first_to_draw_as_they_do():
    joining = changing(8, join=(Join(2, 0),))
    assert allowed(seen(*USUAL, (joining, 0.03), (joining, 0.03), token=0.02), *joining) > 8.0


def test_a_step_without_work_is_no_decode():
    """A row that was alone and is over is evicted so; the first decode that a row leaves is not
    the second of its kind for that."""
    gone = Step(EPOCH, 1, bytes(16), evict=(2,), work=NoWork()), 0
    before = [*USUAL, (gone, 0.001), (gone, 0.001)]
    assert allowed(seen(*before, token=0.02), *changing(1, evict=(3,))) > 8.0
    assert allowed(seen((gone, 0.001), (gone, 0.001)), *decode(1)) >= 30.0


def test_a_freeze_during_a_long_prefill_is_found_in_time_that_does_not_depend_on_the_first():
    step_deadline = seen((prefill(12), 3.0), (prefill(500), 0.2), (prefill(500), 0.2), token=0.02)
    assert allowed(step_deadline, *prefill(510)) < 2.0


def test_the_engines_of_another_epoch_have_seen_nothing():
    step_deadline = seen(*USUAL, *USUAL, token=0.02)
    assert allowed(step_deadline, *decode(8)) <= 1.0
    assert allowed(step_deadline, *decode(8)) > 8.0  # `allowed` ends the epoch


def test_a_deadline_that_was_too_short_is_longer_in_the_next_epoch():
    """Or a device that compiles for 15 s would be replaced, and compile again, for ever."""
    step_deadline = seen(*USUAL, token=0.02)
    for seconds in (10.0, 20.0, 40.0, 60.0, 60.0):
        assert allowed(step_deadline, *decode(16)) == seconds
        step_deadline.late()
    for _ in range(STEADY):
        step_deadline.owe(*decode(16), 0.0)
        step_deadline.answered(0.02)
    assert allowed(step_deadline, *decode(16)) == pytest.approx(4 * 16 * 0.02)


def test_what_a_rank_says_of_a_token_gives_it_two_minutes_at_most():
    assert allowed(seen(token=4e3), *decode(1)) == 120.0
