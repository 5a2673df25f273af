"""How much of the ranks' memory for caches is spoken for, and whether more fits.

Each rank tells in READY how many bytes it has for caches and what a row costs it there; what must
fit must fit on the tightest. A group's cache is a rectangle: every row of it costs as much as the
longest, and while its rows change a copy of it exists as well, of one group at a time. Lengths
are rounded up, so that this arithmetic is not done anew for every token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sealring_protocol.codec.messages import CacheCost

GRAIN: Final = 64
"""Tokens that lengths are rounded up to."""

Shape = tuple[int, int]
"""Rows of a group, and the tokens of its longest."""


def rounded(tokens: int) -> int:
    """*tokens*, up to a whole grain."""
    return -(-tokens // GRAIN) * GRAIN


class KvBudget:
    """Memory for caches: for each rank its bytes and what a row costs. Without ranks there is no
    end of it."""

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
        """Bytes that *groups* and *snapshots* take where a row costs so."""
        sizes = [rows * cost.of(rounded(longest)) for rows, longest in groups]
        return sum(sizes) + max(sizes, default=0) + sum(map(cost.of, snapshots))

    def share(self, snapshots: Collection[int]) -> float:
        """The part of its room that *snapshots* take on the rank where that is most."""
        taken = ((sum(map(cost.of, snapshots)), room) for room, cost in self._ranks)
        return max((size / room if room else 1.0 for size, room in taken), default=0.0)

    def longest(self, context: int) -> int:
        """Tokens that a row may have when it is alone, *context* at most."""
        low, high = 0, context
        while low < high:
            middle = (low + high + 1) // 2
            if self.shortage([(1, middle)], ()) <= 0:
                low = middle
            else:
                high = middle - 1
        return low
