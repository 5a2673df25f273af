"""Rate limit for log lines: enough for an owner, too few to fill a disk.

A member may do the same thing over and over, such as bringing a link up and down. The first lines
of a kind are logged, and then a few each minute. The others go to DEBUG and are counted; the next
logged line of the kind says how many there were.

Refused strangers have their own limit (`refusal_log`).
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note

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
    """The recent notes, by kind. Times are monotonic seconds."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def told(self, note: Note, now: float) -> Note:
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
