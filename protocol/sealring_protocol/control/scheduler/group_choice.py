"""Which group a row joins.

Rows are spread evenly. But a batched cache is a rectangle, in which every row costs as much as the
longest, so rows of similar length are put together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sealring_protocol.control.scheduler.rows import LiveRow

_WASTE: Final = 1024
"""Tokens of padding in a group's cache that count as much as one more row."""


def cheapest_group(row: LiveRow, live: Iterable[LiveRow], groups: int, most: int) -> int:
    """The cheapest of *groups* groups for *row*, of those with fewer than *most* of the *live*
    rows, if there is one."""
    lengths: list[list[int]] = [[] for _ in range(groups)]
    for other in live:
        if other.group < groups:
            lengths[other.group].append(len(other.tokens))

    def cost(group: int) -> tuple[bool, float, int]:
        others, own = lengths[group], len(row.tokens)
        gap = own - max(others, default=own)
        waste = len(others) * gap if gap > 0 else -gap
        return len(others) >= most, len(others) + waste / _WASTE, group

    return min(range(groups), key=cost)
