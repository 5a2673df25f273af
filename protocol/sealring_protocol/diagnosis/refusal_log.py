"""What is said of those who are refused: enough for an owner, not enough to fill a disk.

Whoever can open connections could otherwise write the log, from one address or from thousands. So
each source is told of once a minute, and few sources a minute, at a level that people read. The
rest is counted, and told in one line when the minute is over; each by itself is told at a level for
whoever looks closely.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import SealringError
from sealring_protocol.security.admission import network_of

__all__ = ["RefusedSource"]

TELL_SECONDS: Final = 60.0

TELL_SOURCES: Final = 10
"""Sources that are told of in each of these periods."""

MAX_LATEST: Final = 8
"""Sources that are remembered with the reason. Memory: about 300 bytes each."""


@attrs.frozen
class RefusedSource:
    """A connection from *source* was refused at *at*, *count* times for the same *reason*."""

    source: str
    reason: str
    at: float
    count: int = 1


class RefusalLog:
    """Sources of refused connections. Times are monotonic seconds."""

    __slots__ = ("_ends", "_last", "_latest", "_left_out", "_told")

    def __init__(self) -> None:
        self._told: set[str] = set()  # in this period
        self._left_out = 0
        self._last = ""
        self._ends: float | None = None
        self._latest: dict[str, RefusedSource] = {}

    @property
    def latest(self) -> list[RefusedSource]:
        """Those refused last, the latest first."""
        return list(self._latest.values())[::-1]

    def refused(self, source: str, error: SealringError, now: float) -> list[Note]:
        """A connection from *source* was refused for *error*: what to say of it."""
        self._remember(source, str(error), now)
        notes = self.handle_timeout(now)
        if self._ends is None:
            self._ends = now + TELL_SECONDS
        network = network_of(source)
        text = f"refused a connection from {source}: {error}"
        if network not in self._told and len(self._told) < TELL_SOURCES:
            self._told.add(network)
            return [*notes, Note(Level.WARNING, text)]
        self._left_out += 1
        self._last = f"{source}: {error}"
        return [*notes, Note(Level.DEBUG, text)]

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called."""
        return self._ends

    def handle_timeout(self, now: float) -> list[Note]:
        """Time has passed: what to say of those who were left out."""
        if self._ends is None or now < self._ends:
            return []
        left_out, self._left_out = self._left_out, 0
        self._ends = None
        self._told.clear()
        if left_out < TELL_SOURCES:
            return []  # a few more of those told say nothing new
        text = f"refused {left_out} more connections within a minute, the last from {self._last}"
        return [Note(Level.WARNING, text)]

    def _remember(self, source: str, reason: str, now: float) -> None:
        last = self._latest.pop(source, None)
        count = last.count + 1 if last is not None and last.reason == reason else 1
        self._latest[source] = RefusedSource(source, reason, now, count)
        if len(self._latest) > MAX_LATEST:
            del self._latest[next(iter(self._latest))]
