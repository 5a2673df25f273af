"""Snapshots that the ranks hold, and which of them a new row starts from.

Only the head decides. It has a row's cache kept under a handle, opens a new row from the handle
with the longest common prefix, and drops the least recently used handles first. Every rank obeys by
number, so no two can differ. A chat's next turn, which begins with what an earlier row read and
answered, thus skips that part of its prefill. A snapshot serves only one sharer (`Request.sharer`):
otherwise the time of a prefill, and how much of it was cached, would reveal what others have asked.

If all ranks can cut their caches to any length, a prefix of a snapshot serves as well. If not
(recurrent states, rotating windows), a snapshot serves whole or not at all. A prompt is then kept
while it is read, too, wherever a later one may leave it (`stops`): where its request says so (after
the system prompt, after a user's turn), where it leaves an earlier one itself, and every few
thousand tokens. A conversation that has gone on gives up first what it kept on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from typing import Final

import attrs

SHORTEST: Final = 16
"""A common prefix of fewer tokens is cheaper to read again than to copy."""

_MARK: Final = 4096
"""Tokens of a long prompt after which it is kept, though nothing says that others leave it there;
or twice as many, and so on, for at most `_MARKS` times."""

_MARKS: Final = 8


def stops(end: int, kept: int, branches: Iterable[int]) -> tuple[int, ...]:
    """Where a row of caches that cannot be cut is kept while its tokens from *kept* to *end* are
    read: at *branches*, and every few thousand tokens."""
    apart = _MARK
    while end // apart > _MARKS:
        apart *= 2
    wanted = {*branches, *range(apart, end - apart // 2, apart)}
    return tuple(sorted(stop for stop in wanted if kept + SHORTEST <= stop <= end))


@attrs.define(eq=False)
class Snapshot:
    """*length* tokens of *sharer*'s row, kept under *handle*. *tokens* is the row's own list: it
    may still grow to *length*, and stays shorter if the row ended early. It has served so many rows
    (*uses*), and is *passed* once a longer one has made it unlikely to serve again."""

    handle: int
    sharer: tuple[str, str]
    tokens: list[int]
    length: int
    uses: int = 0
    passed: bool = False


class Prefixes:
    """Every snapshot of an epoch, the least recently used first."""

    def __init__(self) -> None:
        self.cuttable = True
        self._snapshots: dict[int, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    def __contains__(self, handle: int) -> bool:
        return handle in self._snapshots

    def __getitem__(self, handle: int) -> Snapshot:
        return self._snapshots[handle]

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
        """The handle to drop first: the least recently used of those that are passed, or else of
        all, but none in *needed*; None if there is none."""
        free = [old for handle, old in self._snapshots.items() if handle not in needed]
        passed = (old.handle for old in free if old.passed)
        return next(passed, free[0].handle if free else None)

    def within(self, snapshot: Snapshot) -> list[int]:
        """The handles that *snapshot* makes redundant because it begins with them."""
        if not self.cuttable:
            return []
        return [
            old.handle
            for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length)
            if common == old.length
        ]

    def has(self, snapshot: Snapshot) -> bool:
        """True if the same tokens are kept already, in caches that cannot be cut. They count as
        used now."""
        if self.cuttable:
            return False
        for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length):
            if old.length == snapshot.length == common:
                self._use(old)
                return True
        return False

    def pass_by(self, snapshot: Snapshot, branches: Collection[int]) -> set[int]:
        """*snapshot* goes on from shorter ones: those that end at its request's *branches*, or
        close before, count as used now, and are returned. Others are dropped first from now on,
        unless they have served several rows. Nothing, if caches can be cut: these are redundant."""
        named: set[int] = set()
        if self.cuttable:
            return named
        for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length):
            if common < old.length or old.length == snapshot.length:
                continue
            if any(old.length <= branch < old.length + SHORTEST for branch in branches):
                self._use(old)
                named.add(old.handle)
            elif old.uses < 2:
                old.passed = True
        return named

    def find(self, sharer: tuple[str, str], tokens: list[int], most: int) -> tuple[int, int, int]:
        """The handle to open *sharer*'s row of *tokens* from, and how many tokens to keep, at
        *most* so many; 0 and 0 if none. Then how many tokens it has in common with any row that is
        kept.

        The last token is never kept, because the first decode takes it.
        """
        longest, best = 0, None
        shared = 0
        for snapshot, common in self._common(sharer, tokens, most):
            shared = max(shared, common)
            if (self.cuttable or common == snapshot.length) and common > longest:
                longest, best = common, snapshot
        if best is None or longest < SHORTEST:
            return 0, 0, shared
        self._use(best)
        best.uses += 1
        return best.handle, longest, shared

    def _use(self, snapshot: Snapshot) -> None:
        """*snapshot* is the most recently used one."""
        snapshot.passed = False
        self._snapshots[snapshot.handle] = self._snapshots.pop(snapshot.handle)

    def _common(
        self, sharer: tuple[str, str], tokens: list[int], most: int
    ) -> Iterator[tuple[Snapshot, int]]:
        """Each snapshot of *sharer*'s, and how many of its tokens are the first of *tokens*, at
        *most* so many. Those of one row are compared once."""
        known: dict[int, int] = {}
        for snapshot in list(self._snapshots.values()):
            if snapshot.sharer == sharer:
                row = id(snapshot.tokens)
                if row not in known:
                    known[row] = _common(snapshot.tokens, tokens, most)
                yield snapshot, min(known[row], snapshot.length)


def _common(one: list[int], other: list[int], most: int) -> int:
    """The length of the common prefix of *one* and *other*, at most *most*."""
    high = min(len(one), len(other), most)
    if one is other:
        return high
    low, step = 0, 64  # the first `low` agree
    while (end := min(low + step, high)) > low and one[low:end] == other[low:end]:
        low, step = end, 2 * step
    while end - low > 1:  # the first `end` do not
        middle = (low + end) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            end = middle
    return low
