"""Warns that the roster will expire: on each of the last 14 days, in the last hour, and at the end.

When the roster expires, all links end, and none comes up before a newer roster is in force. So the
log warns early. `status`, the API and the page show `seconds_left` and `left`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio
from sealring_protocol.security.roster import Roster
from sealring_protocol.words import lasting

from sealring_trio.files.rosters import format_time

log = logging.getLogger("sealring")

DAY: Final = 86_400.0
HOUR: Final = 3600.0
_MARKS: Final = (*(days * DAY for days in range(14, 0, -1)), HOUR, 0.0)
_LOOK: Final = 60.0  # most seconds between looks at the wall clock, which may be set at any time
_PAST: Final = 0.01  # seconds by which a mark has passed when it is looked at

_ADVICE: Final = (
    "Sign it again (sealring roster renew), and give it to any one node (sealring roster install): "
    "the others take it from there"
)


def seconds_left(roster: Roster, wall_ms: int) -> float:
    """Seconds until *roster* expires; negative once it has."""
    return (roster.expires_ms - wall_ms) / 1000


def left(roster: Roster, wall_ms: int) -> str:
    """The same for people: "88 days left", "expired 2 hours ago"."""
    seconds = seconds_left(roster, wall_ms)
    return f"{lasting(seconds)} left" if seconds > 0 else f"expired {lasting(-seconds)} ago"


class Expiry:
    """Decides when to warn: once for each mark, for each roster."""

    def __init__(self) -> None:
        self._serial = 0
        self._told = len(_MARKS)  # marks that were not passed when it was last told

    def due(self, roster: Roster, wall_ms: int) -> str:
        """The warning about *roster* that is due now; empty if there is none."""
        ahead = sum(seconds_left(roster, wall_ms) > mark for mark in _MARKS)
        if roster.serial != self._serial:
            self._serial, self._told = roster.serial, len(_MARKS)
        news, self._told = ahead < self._told, ahead
        if not news:
            return ""
        when = f"{format_time(roster.expires_ms)}, by this machine's clock"
        if not ahead:
            return (
                f"roster {roster.serial} expired on {when}: every link has ended, and none comes "
                f"up before a newer roster is here. {_ADVICE}"
            )
        return (
            f"roster {roster.serial} has {left(roster, wall_ms)}: all links end on {when}. "
            f"{_ADVICE}"
        )


def until_next(roster: Roster, wall_ms: int) -> float:
    """Seconds until `Expiry.due` is to be asked again."""
    seconds = seconds_left(roster, wall_ms)
    ahead = (seconds - mark + _PAST for mark in _MARKS if seconds > mark)
    return min((_LOOK, *ahead))


async def watch_expiry(
    roster: Callable[[], Roster], wall_ms: Callable[[], int], changed: Callable[[], trio.Event]
) -> None:
    """Log the warnings about the *roster* in force, until cancelled. *changed* gives an event that
    is set when another roster is in force."""
    expiry = Expiry()
    while True:
        newer = changed()
        if told := expiry.due(roster(), wall_ms()):
            log.warning("%s", told)
        with trio.move_on_after(until_next(roster(), wall_ms())):
            await newer.wait()
