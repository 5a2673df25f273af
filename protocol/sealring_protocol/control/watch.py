"""The engine's deadline, from what it has been seen to need.

The daemon answers PING whatever the engine does, so a hung engine shows only in its own steps. Its
deadline is a multiple of the slowest step so far, and generous until the first are known: a first
step compiles and pages in.
"""

from __future__ import annotations

from typing import Final

FIRST_DEADLINE: Final = 120.0
LEAST_DEADLINE: Final = 15.0
_FACTOR: Final = 20.0
_WARM_UP: Final = 4


class EngineWatch:
    """Tells when an engine that owes an answer is overdue. Times are monotonic seconds."""

    __slots__ = ("_seen", "_since", "_slowest")

    def __init__(self) -> None:
        self._since: float | None = None
        self._slowest = 0.0
        self._seen = 0

    def working(self, now: float) -> None:
        """The engine was given work."""
        if self._since is None:
            self._since = now

    def answered(self, now: float, still_working: int) -> None:
        """It gave an answer and owes *still_working* more."""
        if self._since is not None:
            self._slowest = max(self._slowest, now - self._since)
            self._seen += 1
        self._since = now if still_working else None

    def idle(self) -> None:
        """It owes nothing any more: its epoch is over, or it was replaced."""
        self._since = None

    @property
    def deadline(self) -> float | None:
        """When it is overdue; None while it owes nothing."""
        if self._since is None:
            return None
        if self._seen < _WARM_UP:
            return self._since + FIRST_DEADLINE
        return self._since + max(LEAST_DEADLINE, _FACTOR * self._slowest)
