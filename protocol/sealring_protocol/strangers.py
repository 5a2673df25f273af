"""What the log says of those who are refused: enough for an owner, not enough to fill a disk.

Whoever can open connections could otherwise write the log. So each source is told of once a minute
at a level that people read, and the rest at one for whoever looks closely.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SOURCES
from sealring_protocol.security.admission import network_of

TELL_SECONDS: Final = 60.0


class Strangers:
    """Sources of refused connections. Times are monotonic seconds."""

    __slots__ = ("_quiet_until",)

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def refused(self, source: str, error: SealringError, now: float) -> Note:
        """A connection from *source* was refused for *error*: what to say of it."""
        network = network_of(source)
        text = f"refused a connection from {source}: {error}"
        if now < self._quiet_until.get(network, now):
            return Note(Level.DEBUG, text)
        self._quiet_until[network] = now + TELL_SECONDS
        if len(self._quiet_until) > MAX_SOURCES:
            del self._quiet_until[next(iter(self._quiet_until))]
        return Note(Level.WARNING, text)
