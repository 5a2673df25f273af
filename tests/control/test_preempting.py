"""Rows that are preempted while they hold no caches."""

from __future__ import annotations

from sealring_protocol.codec.messages import Decode, Epoch, Failure, FailureKind
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    RequestDone,
    TokenOut,
)

from tests.control.test_scheduler import EPOCH, answer, plan, scheduler


def test_a_row_that_waits_keeps_its_place_when_it_is_preempted():
    made = scheduler()
    first, second = made.submit(Request((5,), 1)), made.submit(Request((6,), 1))
    made.preempt(first)
    step = plan(made)
    assert [row.uid for row in step.open] == [first, second]
    assert answer(made, step, 40, 41) == [
        TokenOut(first, 40, 1),
        RequestDone(first, FinishReason.LENGTH),
        TokenOut(second, 41, 1),
        RequestDone(second, FinishReason.LENGTH),
    ]


def test_rows_that_an_engine_s_death_explains_late_keep_the_tokens_that_are_on_their_way():
    """The engine's node was heard of first, so the next epoch had begun to decode the rows
    together. They leave it as suspects; the first token that comes clears one of them, which has to
    wait for the other again though it has no caches any more."""
    made = scheduler()
    rows = [made.submit(Request((token,), 3)) for token in (5, 6)]
    lost = plan(made)
    assert made.failed(lost.n, Failure(1, FailureKind.LINK_LOST, "it broke")) == []
    made.begin(Epoch(1, 2))
    step = plan(made)
    assert step.work == Decode(0)
    assert made.explained(EPOCH, Failure(1, FailureKind.ENGINE_LOST, "it was killed")) == []
    assert answer(made, step, 40, 41) == [TokenOut(rows[0], 40, 1), TokenOut(rows[1], 41, 1)]
    ends = []
    while (step := plan(made)) is not None:
        drawn = made.uids(step.n) if isinstance(step.work, Decode) else ()
        ends += answer(made, step, *(50 for _ in drawn))
    assert [end for end in ends if isinstance(end, RequestDone)] == [
        RequestDone(uid, FinishReason.LENGTH) for uid in rows
    ]
    assert made.ledger.empty
