"""Which mean times are known."""

from __future__ import annotations

from sealring_protocol.control.scheduler.times import Times


def times(*added: tuple[str, float, int]) -> Times[str]:
    found: Times[str] = Times()
    for kind, seconds, count in added:
        for _ in range(count):
            found.add(kind, seconds)
    return found


def test_a_time_is_known_after_four_intervals_without_the_first():
    assert times(("a", 9.0, 1), ("a", 1.0, 2)).seconds("a") is None
    assert times(("a", 9.0, 1), ("a", 1.0, 3)).seconds("a") == 1.0


def test_a_time_is_forgotten_that_was_not_measured_for_long():
    found = times(("a", 1.0, 4), ("b", 1.0, 2048))
    assert found.known == {"a": 1.0, "b": 1.0}
    found.add("b", 1.0)
    assert found.known == {"b": 1.0}
    for _ in range(3):
        found.add("a", 2.0)
    assert found.seconds("a") is None
    found.add("a", 2.0)
    assert found.seconds("a") == 2.0


def test_what_was_measured_too_seldom_to_be_known_is_forgotten_too():
    found = times(("a", 1.0, 3), ("b", 1.0, 2049))
    assert found.seconds("a") is None
    found.add("a", 2.0)
    assert found.seconds("a") is None


def test_one_slow_interval_counts_as_four():
    found = times(("a", 1.0, 100), ("a", 1000.0, 1))
    assert found.seconds("a") == 1.0 + 3.0 / 16
