"""How soon the head begins the next epoch: at once after one that worked, else after a pause.

An epoch worked if it gave an answer, gave up a request, or stood for `LONG_ENOUGH`. The first
epoch that did not is also followed at once. After each further one the pause doubles (`backoff`),
so a rank that fails every time costs a try every few seconds and no busy loop. A rank that can
never serve costs one try: the next waits until a rank presents itself.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.backoff import Backoff

LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries, at most."""

LONG_ENOUGH: Final = 5.0
"""Seconds that an epoch must stand to count as one that worked."""


class EpochBackoff:
    """The pauses between epochs. Times are monotonic seconds."""

    __slots__ = ("_backoff", "_failed", "_held", "_serving_since", "_until")

    def __init__(self) -> None:
        self._backoff = Backoff(LONGEST_PAUSE)
        self._failed = False  # the latest epoch did not work
        self._serving_since: float | None = None
        self._until: float | None = None
        self._held = False

    def serving(self, now: float) -> None:
        """The ring is ready."""
        self._serving_since = now

    def progressed(self) -> None:
        """A step was answered."""
        self._worked()

    def _worked(self) -> None:
        self._failed = False
        self._backoff.reset()

    def ended(self, now: float) -> None:
        """An epoch, or the start of one, is over."""
        stood = self._serving_since is not None and now - self._serving_since > LONG_ENOUGH
        self._serving_since = None
        if stood:
            self._worked()
            return
        if self._failed:
            self.wait(now, self._backoff.next())
        self._failed = True

    def wait(self, now: float, seconds: float) -> None:
        """Begin no epoch for *seconds*. A longer pause that is already set stays."""
        self._until = max(self._until or 0.0, now + seconds)

    def wait_for_change(self) -> None:
        """Begin no epoch until `changed`, nor before the end of a pause that is under way."""
        self._held = True

    def changed(self) -> None:
        """A rank has presented itself: the next epoch may go better."""
        self._held = False

    @property
    def until(self) -> float | None:
        """When the pause ends; None if there is none, or it has no end yet."""
        return None if self._held else self._until

    def may_start(self, now: float) -> bool:
        """True if no pause is under way."""
        if self._until is not None and now >= self._until:
            self._until = None
        return self._until is None and not self._held
