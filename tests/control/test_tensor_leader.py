"""The deadline of a step in tensor parallelism: long enough for honest work, short for a freeze."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Decode, Epoch, NoWork, Prefill, Step
from sealring_protocol.control.tensor import Lockstep

EPOCH = Epoch(1, 1)


def step(work):
    return Step(EPOCH, 1, bytes(16), work=work)


def prefill(tokens):
    return step(Prefill(1, 0, tokens)), 1


def decode(rows):
    return step(Decode(0)), rows


def allowed(lockstep, work, rows):
    """Seconds that *work* is given after what *lockstep* has seen."""
    lockstep.owe(work, rows, 0.0)
    seconds = lockstep.deadline
    lockstep.clear()
    return seconds


def seen(*steps, token=0.0):
    """A deadline that has seen *steps*, each with the seconds that it took."""
    lockstep = Lockstep()
    lockstep.expect(token)
    for (work, rows), seconds in steps:
        lockstep.owe(work, rows, 0.0)
        lockstep.answered(seconds)
    return lockstep


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


@pytest.mark.parametrize("rows", [1, 8])
def test_a_freeze_while_a_usual_model_decodes_is_found_within_a_second(rows):
    lockstep = seen((decode(1), 0.02), (decode(8), 0.03), ((step(NoWork()), 0), 0.001))
    assert allowed(lockstep, *decode(rows)) <= 1.0


def test_what_a_rank_says_of_a_token_gives_it_two_minutes_at_most():
    assert allowed(seen(token=4e3), *decode(1)) == 120.0
