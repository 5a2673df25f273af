"""A roster that runs out is told of in good time."""

from __future__ import annotations

import attrs
import pytest
from sealring_trio.files.rosters import DAY, HOUR, Expiry, left, seconds_left, until_next

from tests.sim.rosters import WALL, make_roster

ROSTER = make_roster(2, lifetime_ms=int(40 * DAY * 1000)).roster


def at(days: float) -> int:
    """The wall clock when so many *days* are left."""
    return ROSTER.expires_ms - int(days * DAY * 1000)


def test_it_is_told_each_day_from_two_weeks_on_and_in_the_last_hour() -> None:
    expiry = Expiry()
    told = []
    for minute in range(40 * 24 * 60 + 10):
        now = WALL + minute * 60_000
        if text := expiry.due(ROSTER, now):
            told.append((seconds_left(ROSTER, now) / HOUR, text))
    hours = [round(hour) for hour, _ in told]
    assert hours == [*(day * 24 for day in range(14, 0, -1)), 1, 0]
    assert told[0][1].startswith("roster 1 has 14 days left: all links end on 2023-12-24")
    assert "sealring roster renew" in told[0][1]
    assert "roster 1 expired on 2023-12-24" in told[-1][1]


@pytest.mark.parametrize(("days", "said"), [(20, ""), (5.5, "has 5 days left"), (-3, "expired on")])
def test_a_node_that_starts_late_is_told_once(days: float, said: str) -> None:
    expiry = Expiry()
    assert said in expiry.due(ROSTER, at(days))
    assert not expiry.due(ROSTER, at(days - 0.1))
    newer = attrs.evolve(ROSTER, serial=2, expires_ms=ROSTER.expires_ms + int(90 * DAY * 1000))
    assert not expiry.due(newer, at(days - 0.1))


def test_a_clock_that_is_set_has_its_marks_again() -> None:
    expiry = Expiry()
    assert expiry.due(ROSTER, at(-1))
    assert not expiry.due(ROSTER, at(30))
    assert expiry.due(ROSTER, at(13.5))


def test_what_is_shown() -> None:
    assert left(ROSTER, at(88.5)) == "88 days left"
    assert left(ROSTER, at(2 / 24)) == "2 hours left"
    assert left(ROSTER, at(-3)) == "expired 3 days ago"


@pytest.mark.parametrize(
    ("days", "seconds"), [(20, 60), (13 + 5 / DAY, 5), (2 / DAY, 2), (0, 60), (-3, 60)]
)
def test_it_is_looked_at_when_a_mark_passes_and_each_minute(days: float, seconds: float) -> None:
    wait = until_next(ROSTER, at(days))
    assert wait == pytest.approx(seconds, abs=0.05)
    if 0 < wait < 60:
        assert seconds_left(ROSTER, at(days) + int(1000 * wait) + 1) < days * DAY - seconds
