"""Which split of the layers would have all ranks of a pipeline work equally long on a token.

The head splits by memory, since a model must fit. Ranks that are not equally fast for it then wait
for the slowest whenever several rows, chunks of a prompt or guesses are under way. A profile has
measured what each rank takes for a layer, and so tells the split that would be best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

GAIN: Final = 1.05
"""By so much shorter the longest stage must become for another split to be worth a reload."""


@attrs.frozen
class Balance:
    """The *layers* of each rank that would be best, and by which factor the longest stage takes
    longer now (*gain*)."""

    layers: tuple[int, ...]
    gain: float


def balance_of(layers: Sequence[int], compute: Sequence[float], closing: float) -> Balance | None:
    """The best split where ranks with so many *layers* take *compute* seconds for a decode, and
    rank 0 another *closing* to draw the token; None if today's is about as good."""
    each = [took / count for took, count in zip(compute, layers, strict=True)]
    beside = [closing, *(0.0 for _ in each[1:])]
    best = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        after = [beside[rank] + each[rank] * (best[rank] + 1) for rank in range(len(best))]
        best[after.index(min(after))] += 1
    gain = _longest(layers, each, beside) / _longest(best, each, beside)
    return Balance(tuple(best), gain) if gain >= GAIN else None


def _longest(layers: Sequence[int], each: Sequence[float], beside: Sequence[float]) -> float:
    return max(b + e * n for n, e, b in zip(layers, each, beside, strict=True))
