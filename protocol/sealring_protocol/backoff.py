"""Exponential back-off: each pause is twice as long as the one before, up to a bound.

Dials, epochs and engine restarts wait for such pauses. The owner of a `Backoff` decides what counts
as success.
"""

from __future__ import annotations

from typing import Final

FIRST_PAUSE: Final = 0.1
"""Seconds of the first pause."""


class Backoff:
    """The pauses of one repeated action, at most *longest* seconds each."""

    __slots__ = ("_longest", "_pause")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._pause = FIRST_PAUSE

    def next(self) -> float:
        """Seconds to wait now that a try has failed. The next pause is twice as long."""
        pause = self._pause
        self._pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """A try has succeeded: the next pause is the first one again."""
        self._pause = FIRST_PAUSE
