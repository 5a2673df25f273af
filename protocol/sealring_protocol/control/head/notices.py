"""What the head has told each rank of why there is no epoch.

A rank is told when the reasons are other than those it was told last, but no more often than every
`NOTICE_SECONDS`: reasons that change back and forth cost a rank one message a second.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.codec.waiting import Waiting
from sealring_protocol.control.effects import Send
from sealring_protocol.security.roles import Purpose

NOTICE_SECONDS: Final = 1.0
"""Seconds between two WAITINGs to one rank, at least."""


class Notices:
    """The last WAITING of each rank after the head, of *world*. Times are monotonic seconds."""

    __slots__ = ("_next", "_told")

    def __init__(self, world: int) -> None:
        self._told = dict.fromkeys(range(1, world), Waiting())
        self._next = dict.fromkeys(range(1, world), 0.0)

    def forget(self, rank: int) -> None:
        """The control link with *rank* is new: nothing has been told on it."""
        self._told[rank] = Waiting()

    def withdraw(self) -> None:
        """An epoch begins. BOOTSTRAP tells every rank so."""
        self._told = dict.fromkeys(self._told, Waiting())

    def tell(self, why: Waiting, now: float) -> list[Send]:
        """What to send where the reasons are those of *why* now."""
        due = [rank for rank, told in self._told.items() if told != why and now >= self._next[rank]]
        for rank in due:
            self._told[rank] = why
            self._next[rank] = now + NOTICE_SECONDS
        return [Send(rank, Purpose.CONTROL, why) for rank in due]
