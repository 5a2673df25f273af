"""Which group a row joins.

Rows are spread evenly. But a batched cache is a rectangle, in which every row costs as much as the
longest, so rows of similar length are put together. A row that fits none of the groups gets one
more: to read the weights once more takes less time than to read so much padding with each step, and
to make the rectangle would have the other rows wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sealring_protocol.control.scheduler.rows import LiveRow

_WASTE: Final = 1024
"""Tokens of padding in a group's cache that count as much as one more row."""


def cheapest_group(
    row: LiveRow, live: Iterable[LiveRow], groups: int, rows: int, *, most: int, padding: float
) -> int:
    """The number of the group that *row* is to join: the cheapest of *groups*, of those with fewer
    than *rows* of the *live* rows, if there is one. If that needs more than *padding* tokens of
    padding, the fullest of the further groups, *most* in all, that has room and needs no more; the
    cheapest after all if there is none."""
    lengths: list[list[int]] = [[] for _ in range(most)]
    for other in live:
        if other.group < most:
            lengths[other.group].append(len(other.tokens))

    def waste(group: int) -> int:
        others, own = lengths[group], len(row.tokens)
        gap = own - max(others, default=own)
        return len(others) * gap if gap > 0 else -gap

    def cost(group: int) -> tuple[bool, float, int]:
        count = len(lengths[group])
        return count >= rows, count + waste(group) / _WASTE, group

    best = min(range(groups), key=cost)
    if waste(best) <= padding:
        return best
    fits = [n for n in range(groups, most) if len(lengths[n]) < rows and waste(n) <= padding]
    return max(fits, key=lambda group: len(lengths[group]), default=best)
