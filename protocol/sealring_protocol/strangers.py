"""What is said of those who are refused: enough for an owner, not enough to fill a disk.

Whoever can open connections could otherwise write the log. So each source is told of once a minute
at a level that people read, and the rest at one for whoever looks closely.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SOURCES
from sealring_protocol.security.admission import network_of

TELL_SECONDS: Final = 60.0

MAX_LATEST: Final = 8
"""Sources that are remembered with the reason. Memory: about 300 bytes each."""


@attrs.frozen
class Stranger:
    """A connection from *source* was refused at *at*, *count* times for the same *reason*."""

    source: str
    reason: str
    at: float
    count: int = 1


class Strangers:
    """Sources of refused connections. Times are monotonic seconds."""

    __slots__ = ("_latest", "_quiet_until")

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}
        self._latest: dict[str, Stranger] = {}

    @property
    def latest(self) -> list[Stranger]:
        """Those refused last, the latest first."""
        return list(self._latest.values())[::-1]

    def refused(self, source: str, error: SealringError, now: float) -> Note:
        """A connection from *source* was refused for *error*: what to say of it."""
        network = network_of(source)
        last = self._latest.pop(source, None)
        same = last is not None and last.reason == str(error)
        count = last.count + 1 if last is not None and same else 1
        self._latest[source] = Stranger(source, str(error), now, count)
        if len(self._latest) > MAX_LATEST:
            del self._latest[next(iter(self._latest))]
        text = f"refused a connection from {source}: {error}"
        if now < self._quiet_until.get(network, now):
            return Note(Level.DEBUG, text)
        self._quiet_until[network] = now + TELL_SECONDS
        if len(self._quiet_until) > MAX_SOURCES:
            del self._quiet_until[next(iter(self._quiet_until))]
        return Note(Level.WARNING, text)
