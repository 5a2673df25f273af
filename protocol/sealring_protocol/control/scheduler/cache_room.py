"""The room that the ranks of an epoch have for the caches of rows, and what has been learnt of it.

Rows are counted with the tokens that they are about to get. Several rows together may use less than
a row that runs alone, because a rank whose memory ran out is trusted with less from then on (see
`CacheRoom.learn`). The arithmetic of groups and copies is in `KvBudget`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from sealring_protocol.codec.messages import CacheCost, Ready
from sealring_protocol.control.scheduler.rows import LiveRow

# ---------------------------------------------------------------------- kv budget
# The ranks' memory for KV caches: how much is taken, and whether more fits.
#
# Each rank reports in READY its bytes for caches and what a row costs. Caches must fit on the
# tightest rank. A group's cache is a rectangle in which every row costs as much as the longest.
# While a group's rows change, a copy of its cache exists as well; only one group changes at a
# time. Lengths are rounded up, so that this need not be computed again for every token.


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


_RESERVE: Final = 2 * GRAIN
"""Tokens that a row must have room to grow by before it is opened."""


class CacheRoom:
    """The ranks' room; without ranks it is unlimited.

    *rows* are always those that have caches, or are about to get them, and *snapshots* the tokens
    of each snapshot.
    """

    def __init__(self, context: int) -> None:
        """*context* is the longest row in tokens that the model allows."""
        self.longest = context  # tokens of the longest row that fits, alone
        self.ahead = 0  # guesses that a row may read after the first token of a step
        self.learnt: dict[int, int] = {}  # limit in bytes, by rank whose memory ran out
        self._context: Final = context
        self._ranks: tuple[Ready, ...] = ()
        self._several = KvBudget()  # of several rows, limited by `learnt`
        self._alone = KvBudget()  # of a row that runs alone

    def begin(self, ranks: Iterable[Ready]) -> None:
        """An epoch begins, on *ranks*, which report their room and what a row costs."""
        ranks = self._ranks = tuple(ranks)
        self._several = KvBudget(
            (min(ready.room, self.learnt.get(rank, ready.room)), ready.cost)
            for rank, ready in enumerate(ranks)
        )
        self._alone = KvBudget((ready.room, ready.cost) for ready in ranks)
        self.longest = self._alone.longest(self._context)

    def padding(self, weights: int) -> float:
        """The tokens of padding whose caches have as many bytes as *weights*: a device that waits
        for its memory reads either in the same time. Infinite if that is not known. No rank is
        taken to need more for a token than the least of them, so none can make this small."""
        each = len(self._ranks) * min((of.cost.per_token for of in self._ranks), default=0)
        return weights / each if weights and each else math.inf

    def taken(
        self, rows: Collection[LiveRow], snapshots: Collection[int]
    ) -> tuple[tuple[int, int], ...]:
        """For each rank, the bytes that all its caches take now, and those of the longest row
        alone."""
        shapes = self._shapes(rows, None)
        longest = max((longest for _, longest in shapes), default=0)
        return tuple(
            (
                KvBudget.taken(ready.cost, shapes, snapshots),
                KvBudget.taken(ready.cost, [(1, longest)], ()),
            )
            for ready in self._ranks
        )

    def learn(self, rank: int, taken: tuple[tuple[int, int], ...]) -> None:
        """The memory of *rank* ran out when the caches had *taken* (see `taken`). Limits it from
        the next epoch on.

        Several rows together then get a tenth less than that, but always enough for the longest of
        them. A row that runs alone may still use all of the rank's memory: another program may have
        caused the shortage, and the rank would never again serve long requests.
        """
        if rank < len(taken):
            everything, alone = taken[rank]
            most = min(everything, self.learnt.get(rank, everything))
            self.learnt[rank] = max(alone, most - most // 10)

    def shortage(
        self,
        rows: Collection[LiveRow],
        snapshots: Collection[int],
        entering: LiveRow | None = None,
    ) -> int:
        """Bytes that the tightest rank lacks for *rows*, *snapshots*, and the *entering* row with
        its reserve; 0 or less when all fits."""
        alone = len(rows) + (entering is not None) <= 1
        budget = self._alone if alone else self._several
        return budget.shortage(self._shapes(rows, entering), snapshots)

    def keeps(self, rows: Collection[LiveRow], snapshots: Collection[int], share: float) -> bool:
        """True if *snapshots* fit beside *rows*, in at most the fraction *share* of any rank's
        room."""
        return (
            self._several.share(snapshots) <= share
            and self._several.shortage(self._shapes(rows, None), snapshots) <= 0
        )

    def _shapes(self, rows: Collection[LiveRow], entering: LiveRow | None) -> list[Shape]:
        """The shape of each group after one more step for each row, with *entering* and its
        reserve."""
        shapes: dict[int, Shape] = {}
        for row in rows:
            count, longest = shapes.get(row.group, (0, 0))
            shapes[row.group] = count + 1, max(longest, self._need(row, 1 + self.ahead))
        if entering is not None:
            count, longest = shapes.get(entering.group, (0, 0))
            shapes[entering.group] = count + 1, max(longest, self._need(entering, _RESERVE))
        return list(shapes.values())

    def _need(self, row: LiveRow, growth: int) -> int:
        """The tokens of *row* after it has grown by *growth*, or as far as it may."""
        tokens = row.reach
        return tokens + max(row.draws, min(min(row.end, self.longest) - tokens, growth))
