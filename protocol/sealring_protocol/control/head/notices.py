"""What the head has told each rank about why there is no epoch, and which failures it has logged.

A rank is told when the reasons differ from those it was told last, at most once every
`NOTICE_SECONDS`, so reasons that alternate cost one message a second.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.messages import Failure, Waiting
from sealring_protocol.control.effects import Send
from sealring_protocol.security.roles import Purpose

NOTICE_SECONDS: Final = 1.0
"""Minimum seconds between two WAITINGs to one rank."""


class Notices:
    """The last WAITING of each rank after the head, of *world*. Times are monotonic seconds."""

    __slots__ = ("_next", "_told")

    def __init__(self, world: int) -> None:
        self._told = dict.fromkeys(range(1, world), Waiting())
        self._next = dict.fromkeys(range(1, world), 0.0)

    def forget(self, rank: int) -> None:
        """The control link with *rank* is new: nothing has been sent on it."""
        self._told[rank] = Waiting()

    def withdraw(self) -> None:
        """An epoch begins: BOOTSTRAP withdraws the reasons on every rank."""
        self._told = dict.fromkeys(self._told, Waiting())

    def tell(self, why: Waiting, now: float) -> list[Send]:
        """The WAITINGs to send now that the reasons are those of *why*."""
        due = [rank for rank, told in self._told.items() if told != why and now >= self._next[rank]]
        for rank in due:
            self._told[rank] = why
            self._next[rank] = now + NOTICE_SECONDS
        return [Send(rank, Purpose.CONTROL, why) for rank in due]


class FailureLog:
    """The last failure of each rank, so that one that comes with each try is logged once."""

    __slots__ = ("_last", "latest")

    def __init__(self) -> None:
        self._last: dict[int, Failure] = {}
        self.latest: Failure | None = None
        """The last of any rank."""

    def is_news(self, failed: Failure) -> bool:
        """Record *failed*. False if the last failure of that rank was the same. What stands after a
        ";" may change with each try, as in `Obstacle.constant`."""
        constant = attrs.evolve(failed, message=failed.message.partition(";")[0])
        self.latest, known = failed, self._last.get(failed.rank)
        self._last[failed.rank] = constant
        return known != constant

    def clear(self) -> None:
        """There is no failure: what fails from now on is news."""
        self._last.clear()
        self.latest = None
