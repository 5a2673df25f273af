"""Rate limits for log lines: about one thing again and again, and about refused connections."""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import SealringError
from sealring_protocol.security.admission import network_of

__all__ = ["RefusedSource"]

AT_ONCE: Final = 20
"""Lines of a kind that may be logged at once."""

A_MINUTE: Final = 6
"""Lines of a kind that may be logged each minute after that."""

MAX_KINDS: Final = 64
"""Kinds remembered. Memory: about 200 bytes each."""

_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


@attrs.define
class _Kind:
    at: float
    left: float = AT_ONCE
    left_out: int = 0


class Notes:
    """Limits the log lines of each kind: enough for an owner, too few to fill a disk. Times are
    monotonic seconds.

    A member may do the same thing over and over, such as bringing a link up and down. The first
    lines of a kind are logged, and then a few each minute. The others go to DEBUG and are
    counted; the next logged line of the kind says how many there were.

    Refused strangers have their own limit (`RefusalLog`).
    """

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def limited(self, note: Note, now: float) -> Note:
        """*note*, or its DEBUG copy if there were too many of its kind.

        Notes without a kind belong together if they differ only in numbers, or in the text after
        the first colon, which a peer may have written.
        """
        if note.level is Level.DEBUG:
            return note
        name = note.kind or note.text.partition(": ")[0].translate(_NO_DIGITS)
        kind = self._kinds.pop(name, None) or _Kind(now)
        self._kinds[name] = kind  # the latest last
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        kind.left = min(AT_ONCE, kind.left + max(0.0, now - kind.at) * A_MINUTE / 60)
        kind.at = max(kind.at, now)
        if kind.left < 1:
            kind.left_out += 1
            return Note(Level.DEBUG, note.text)
        kind.left -= 1
        left_out, kind.left_out = kind.left_out, 0
        more = f" ({left_out} more lines like this were left out)" if left_out else ""
        return Note(note.level, note.text + more)


TELL_SECONDS: Final = 60.0

TELL_SOURCES: Final = 10
"""Sources logged in each period of `TELL_SECONDS`."""

MAX_LATEST: Final = 8
"""Sources remembered with their reason. Memory: about 300 bytes each."""


@attrs.frozen
class RefusedSource:
    """The connection from *source* at *at* (monotonic seconds) was refused, *count* times in a row
    for the same *reason*."""

    source: str
    reason: str
    at: float
    count: int = 1


class RefusalLog:
    """Limits the log lines about refused connections, by source. Times are monotonic seconds.

    Otherwise anyone who can open connections could fill the log, from one address or from
    thousands. So a source is logged at most once a minute, and only a few sources each minute.
    The others go to DEBUG and are counted; one line at the end of the minute has their number.
    """

    __slots__ = ("_ends", "_last", "_latest", "_left_out", "_logged")

    def __init__(self) -> None:
        self._logged: set[str] = set()  # in this period
        self._left_out = 0
        self._last = ""
        self._ends: float | None = None
        self._latest: dict[str, RefusedSource] = {}

    @property
    def latest(self) -> list[RefusedSource]:
        """The latest refused sources, the newest first."""
        return list(self._latest.values())[::-1]

    def refused(self, source: str, error: SealringError, now: float) -> list[Note]:
        """A connection from *source* was refused with *error*. Returns the notes to log."""
        self._remember(source, str(error), now)
        notes = self.handle_timeout(now)
        if self._ends is None:
            self._ends = now + TELL_SECONDS
        network = network_of(source)
        text = f"refused a connection from {source}: {error}"
        if network not in self._logged and len(self._logged) < TELL_SOURCES:
            self._logged.add(network)
            return [*notes, Note(Level.WARNING, text)]
        self._left_out += 1
        self._last = f"{source}: {error}"
        return [*notes, Note(Level.DEBUG, text)]

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        return self._ends

    def handle_timeout(self, now: float) -> list[Note]:
        """End the period if it is over. Returns the summary of what was not logged, if it is worth
        a line."""
        if self._ends is None or now < self._ends:
            return []
        left_out, self._left_out = self._left_out, 0
        self._ends = None
        self._logged.clear()
        if left_out < TELL_SOURCES:
            return []  # too few to be worth a line
        text = f"refused {left_out} more connections within a minute, the last from {self._last}"
        return [Note(Level.WARNING, text)]

    def _remember(self, source: str, reason: str, now: float) -> None:
        last = self._latest.pop(source, None)
        count = last.count + 1 if last is not None and last.reason == reason else 1
        self._latest[source] = RefusedSource(source, reason, now, count)
        if len(self._latest) > MAX_LATEST:
            del self._latest[next(iter(self._latest))]
