"""The ranks' memory for KV caches: how much is taken, and whether more fits.

Each rank reports in READY its bytes for caches and what a row costs. Caches must fit on the
tightest rank. A group's cache is a rectangle in which every row costs as much as the longest. While
a group's rows change, a copy of its cache exists as well; only one group changes at a time. Lengths
are rounded up, so that this need not be computed again for every token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sealring_protocol.codec.messages import CacheCost

GRAIN: Final = 64
"""Lengths are rounded up to a multiple of this many tokens."""

Shape = tuple[int, int]
"""The number of rows in a group, and the tokens of the longest."""


def rounded(tokens: int) -> int:
    """*tokens*, rounded up to a multiple of `GRAIN`."""
    return -(-tokens // GRAIN) * GRAIN


class KvBudget:
    """The memory for caches: for each rank its bytes and a row's cost. Without ranks it is
    unlimited."""

    def __init__(self, ranks: Iterable[tuple[int, CacheCost]] = ()) -> None:
        self._ranks: Final = tuple(dict.fromkeys(ranks))

    def shortage(self, groups: Collection[Shape], snapshots: Collection[int]) -> int:
        """Bytes that the tightest rank lacks for *groups* and *snapshots* (their tokens); 0 or
        less when all fits."""
        return max((self._lacks(*rank, groups, snapshots) for rank in self._ranks), default=0)

    @staticmethod
    def _lacks(
        room: int, cost: CacheCost, groups: Collection[Shape], snapshots: Collection[int]
    ) -> int:
        return KvBudget.taken(cost, groups, snapshots) - room

    @staticmethod
    def taken(cost: CacheCost, groups: Collection[Shape], snapshots: Collection[int]) -> int:
        """Bytes that *groups* and *snapshots* (their tokens) take at *cost* for a row."""
        sizes = [rows * cost.of(rounded(longest)) for rows, longest in groups]
        return sum(sizes) + max(sizes, default=0) + sum(map(cost.of, snapshots))

    def share(self, snapshots: Collection[int]) -> float:
        """The largest fraction of any rank's room that *snapshots* take."""
        taken = ((sum(map(cost.of, snapshots)), room) for room, cost in self._ranks)
        return max((size / room if room else 1.0 for size, room in taken), default=0.0)

    def longest(self, context: int) -> int:
        """The most tokens that a row may have when it is alone, at most *context*."""
        low, high = 0, context
        while low < high:
            middle = (low + high + 1) // 2
            if self.shortage([(1, middle)], ()) <= 0:
                low = middle
            else:
                high = middle - 1
        return low
