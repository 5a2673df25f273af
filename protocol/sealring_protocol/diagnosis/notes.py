"""How often the same thing is said: enough for an owner, not enough to fill a disk.

What a member does over and over, a link that comes and goes say, is worth some lines, and after
those a few each minute. The rest is told at a level for whoever looks closely, and counted: the
next line of the kind that is told says how many there were.

What is said of those who did not prove who they are has bounds of its own (`refusal_log`).
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note

AT_ONCE: Final = 20
"""Lines of a kind that are told at once."""

A_MINUTE: Final = 6
"""Lines of a kind that are told each minute, once these are used up."""

MAX_KINDS: Final = 64
"""Kinds that are remembered. Memory: about 200 bytes each."""

_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


@attrs.define
class _Kind:
    at: float
    left: float = AT_ONCE
    left_out: int = 0


class Notes:
    """What has been said lately. Times are monotonic seconds."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def told(self, note: Note, now: float) -> Note:
        """*note* as it is to be told now. Notes that name no kind are of one if they differ in
        numbers, or in the reason after a colon, which a peer may have given."""
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
