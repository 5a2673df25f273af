"""Snapshots that the ranks hold, and which of them a new row continues.

The head alone decides: it has a row's cache kept under a handle, opens a new row from the handle
whose tokens agree longest with its own, and has handles dropped, the least recently used first.
Every rank obeys by number, so no two can differ. A row that begins with what another one has read
and answered, a chat's next turn, is read in from there. A snapshot serves one sharer alone
(`Request.sharer`): how long a prompt takes, and how much of it was known, would tell others what
it holds.

Where all ranks can cut their caches to any length, a snapshot serves for its first tokens too;
elsewhere (states of recurrent layers, rotating windows) it serves whole or not at all.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import attrs

SHORTEST: Final = 16
"""Tokens below which reading is cheaper than a copy is worth."""


@attrs.frozen
class Snapshot:
    """*length* tokens of *sharer* under *handle*; *tokens* is the row that they were of, which may
    still grow to that length or, if it ended early, may fall short of it."""

    handle: int
    sharer: tuple[str, str]
    tokens: list[int]
    length: int


class Prefixes:
    """Every snapshot of an epoch, the least recently used first."""

    def __init__(self) -> None:
        self.cuttable = True
        self._snapshots: dict[int, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    def __contains__(self, handle: int) -> bool:
        return handle in self._snapshots

    @property
    def lengths(self) -> list[int]:
        """Tokens of every snapshot."""
        return [snapshot.length for snapshot in self._snapshots.values()]

    def clear(self, *, cuttable: bool) -> None:
        """A new epoch, in which caches can be cut or cannot."""
        self.cuttable = cuttable
        self._snapshots.clear()

    def add(self, snapshot: Snapshot) -> None:
        """It is kept by the next step."""
        self._snapshots[snapshot.handle] = snapshot

    def remove(self, handle: int) -> None:
        """It is dropped by the next step."""
        del self._snapshots[handle]

    def oldest(self, needed: Container[int]) -> int | None:
        """The handle that was used longest ago, of those not *needed*."""
        return next((handle for handle in self._snapshots if handle not in needed), None)

    def within(self, snapshot: Snapshot) -> list[int]:
        """Handles that *snapshot* makes superfluous: those that are the beginning of it."""
        if not self.cuttable:
            return []
        return [
            old.handle
            for old in self._snapshots.values()
            if old.sharer == snapshot.sharer
            and _common(old.tokens, snapshot.tokens, old.length) == old.length <= snapshot.length
        ]

    def find(self, sharer: tuple[str, str], tokens: list[int]) -> tuple[int, int]:
        """The handle that *sharer*'s row of *tokens* is opened from, and how many it keeps; (0, 0)
        if none.

        The last token is never kept: the first decode takes it.
        """
        best = handle = 0
        for snapshot in self._snapshots.values():
            if snapshot.sharer != sharer:
                continue
            keep = _common(snapshot.tokens, tokens, min(snapshot.length, len(tokens) - 1))
            if not self.cuttable and keep < snapshot.length:
                continue
            if keep > best:
                best, handle = keep, snapshot.handle
        if best < SHORTEST:
            return 0, 0
        self._snapshots[handle] = self._snapshots.pop(handle)
        return handle, best


def _common(one: list[int], other: list[int], most: int) -> int:
    """How many of the first *most* tokens are the same in both."""
    high = min(len(one), len(other), most)
    if high <= 0 or one[0] != other[0]:
        return 0
    if one[:high] == other[:high]:
        return high
    low = 1  # that many agree; high do not
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
