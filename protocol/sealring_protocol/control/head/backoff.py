"""How soon the head tries again: at once after an epoch that worked, later after ones that did not.

An epoch that gave an answer, or stood for a while, counts as one that worked. After two in a row
that did not, every further try waits twice as long as the one before, up to a bound, so that a
rank which fails each time costs a try every few seconds and not a busy loop.
"""

from __future__ import annotations

from typing import Final

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds. Also how long an epoch must stand to count as one that worked."""

_DOUBLINGS: Final = 10


class Backoff:
    """The pauses between epochs. Times are monotonic seconds."""

    __slots__ = ("_fruitless", "_serving_since", "_until")

    def __init__(self) -> None:
        self._fruitless = 0
        self._serving_since: float | None = None
        self._until: float | None = None

    def serving(self, now: float) -> None:
        """The ring is ready."""
        self._serving_since = now

    def progressed(self) -> None:
        """A step was answered."""
        self._fruitless = 0

    def ended(self, now: float) -> None:
        """An epoch, or the start of one, is over."""
        stood = self._serving_since is not None and now - self._serving_since > LONGEST_PAUSE
        self._serving_since = None
        if stood:
            self._fruitless = 0
            return
        if self._fruitless:
            self.wait(now, min(FIRST_PAUSE * 2 ** (self._fruitless - 1), LONGEST_PAUSE))
        self._fruitless = min(self._fruitless + 1, _DOUBLINGS)

    def wait(self, now: float, seconds: float) -> None:
        """Try again in *seconds*, not before; nor before what was said earlier."""
        self._until = max(self._until or 0.0, now + seconds)

    @property
    def until(self) -> float | None:
        """When the pause ends; None if there is none."""
        return self._until

    def may_start(self, now: float) -> bool:
        """No pause is under way."""
        if self._until is not None and now >= self._until:
            self._until = None
        return self._until is None
