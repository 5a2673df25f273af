"""What the head has told each rank about why there is no epoch.

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


def constant(failed: Failure) -> Failure:
    """*failed* without what may change with each try: what stands after a ";", as in
    `Obstacle.constant`."""
    return attrs.evolve(failed, message=failed.message.partition(";")[0])
