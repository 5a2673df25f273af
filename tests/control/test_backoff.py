"""Pauses between tries that fail."""

from __future__ import annotations

from sealring_protocol.control.deadlines import FIRST_PAUSE, Backoff
from sealring_protocol.control.head.epochs import LONGEST_PAUSE, EpochBackoff


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success():
    backoff = Backoff(0.5)
    assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next() == FIRST_PAUSE


def pauses(backoff: EpochBackoff, epochs: int, now: float) -> list[float]:
    """Seconds before each next epoch, where each ends as soon as it begins."""
    found = []
    for _ in range(epochs):
        backoff.ended(now)
        until = now if backoff.may_start(now) else backoff.until or 0.0
        found.append(round(until - now, 6))
        now = until
        assert backoff.may_start(now)
    return found


def test_the_first_epoch_that_fails_is_followed_at_once_and_the_others_after_pauses():
    backoff = EpochBackoff()
    assert pauses(backoff, 9, 100.0) == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, 5.0]


def test_an_answer_or_a_long_life_makes_the_pauses_short_again():
    backoff = EpochBackoff()
    assert pauses(backoff, 4, 100.0) == [0, 0.1, 0.2, 0.4]
    backoff.progressed()
    assert pauses(backoff, 3, 200.0) == [0, 0.1, 0.2]
    backoff.serving(300.0)
    backoff.ended(300.0 + LONGEST_PAUSE + 0.1)
    assert backoff.may_start(306.0)
    assert pauses(backoff, 2, 306.0) == [0, 0.1]
