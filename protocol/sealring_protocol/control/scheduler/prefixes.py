"""Snapshots that the ranks hold, and which of them a new row starts from.

Only the head decides. It has a row's cache kept under a handle, opens a new row from the handle
with the longest common prefix, and drops the least recently used handles first. Every rank obeys by
number, so no two can differ. A chat's next turn, which begins with what an earlier row read and
answered, thus skips that part of its prefill. A snapshot serves only one sharer (`Request.sharer`):
otherwise the time of a prefill, and how much of it was cached, would reveal what others have asked.

If all ranks can cut their caches to any length, a prefix of a snapshot serves as well. If not
(recurrent states, rotating windows), a snapshot serves whole or not at all.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import attrs

SHORTEST: Final = 16
"""A common prefix of fewer tokens is cheaper to read again than to copy."""


@attrs.frozen
class Snapshot:
    """*length* tokens of *sharer*'s row, kept under *handle*. *tokens* is the row's own list: it
    may still grow to *length*, and stays shorter if the row ended early."""

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
        """The tokens in each snapshot."""
        return [snapshot.length for snapshot in self._snapshots.values()]

    def clear(self, *, cuttable: bool) -> None:
        """A new epoch begins without snapshots; *cuttable* says whether every rank can cut its
        caches."""
        self.cuttable = cuttable
        self._snapshots.clear()

    def add(self, snapshot: Snapshot) -> None:
        """Add *snapshot*, which the next step saves."""
        self._snapshots[snapshot.handle] = snapshot

    def remove(self, handle: int) -> None:
        """Remove *handle*, which the next step drops."""
        del self._snapshots[handle]

    def oldest(self, needed: Container[int]) -> int | None:
        """The least recently used handle that is not in *needed*; None if there is none."""
        return next((handle for handle in self._snapshots if handle not in needed), None)

    def within(self, snapshot: Snapshot) -> list[int]:
        """The handles that *snapshot* makes redundant because it begins with them."""
        if not self.cuttable:
            return []
        return [
            old.handle
            for old in self._snapshots.values()
            if old.sharer == snapshot.sharer
            and _common(old.tokens, snapshot.tokens, old.length) == old.length <= snapshot.length
        ]

    def find(self, sharer: tuple[str, str], tokens: list[int], most: int) -> tuple[int, int]:
        """The handle to open *sharer*'s row of *tokens* from, and how many tokens to keep, at
        *most* so many; (0, 0) if none.

        The last token is never kept, because the first decode takes it.
        """
        best = handle = 0
        for snapshot in self._snapshots.values():
            if snapshot.sharer != sharer:
                continue
            keep = _common(snapshot.tokens, tokens, min(snapshot.length, most))
            if not self.cuttable and keep < snapshot.length:
                continue
            if keep > best:
                best, handle = keep, snapshot.handle
        if best < SHORTEST:
            return 0, 0
        self._snapshots[handle] = self._snapshots.pop(handle)
        return handle, best


def _common(one: list[int], other: list[int], most: int) -> int:
    """The length of the common prefix of *one* and *other*, at most *most*."""
    high = min(len(one), len(other), most)
    if high <= 0 or one[0] != other[0]:
        return 0
    if one[:high] == other[:high]:
        return high
    low = 1  # the first `low` agree; the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
