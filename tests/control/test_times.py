"""Which mean times are known."""

from __future__ import annotations

from sealring_protocol.control.scheduler.times import StepTimes

A, B = (1, 1), (2, 1)


def times(*added: tuple[tuple[int, int], float, int]) -> StepTimes:
    found = StepTimes()
    for kind, seconds, count in added:
        for _ in range(count):
            found.add(kind, seconds)
    return found


def test_a_time_is_known_after_four_intervals_without_the_first():
    assert A not in times((A, 9.0, 1), (A, 1.0, 2)).known
    assert times((A, 9.0, 1), (A, 1.0, 3)).known == {A: 1.0}


def test_a_time_is_forgotten_that_was_not_measured_for_long():
    found = times((A, 1.0, 4), (B, 1.0, 4096))
    assert found.known == {A: 1.0, B: 1.0}
    found.add(B, 1.0)
    assert found.known == {B: 1.0}
    for _ in range(3):
        found.add(A, 2.0)
    assert A not in found.known
    found.add(A, 2.0)
    assert found.known[A] == 2.0


def test_what_was_measured_too_seldom_to_be_known_is_forgotten_too():
    found = times((A, 1.0, 3), (B, 1.0, 4097))
    assert A not in found.known
    found.add(A, 2.0)
    assert A not in found.known


def test_one_slow_interval_counts_as_four():
    found = times((A, 1.0, 100), (A, 1000.0, 1))
    assert found.known[A] == 1.0 + 3.0 / 16
