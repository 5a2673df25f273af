"""The links on which chunks of prompts take longer than in the rank before them.

A pipeline reads a prompt at the pace of its slowest part. Where that is a link, larger chunks or
another split help little: fewer bytes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sealring.profiling.parts import RankParts

_LEAST: Final = 0.001
"""Seconds under which a link is not called slow: most of so little are no bytes."""


@attrs.frozen
class SlowLink:
    """A chunk takes *wire* seconds from *rank* to the next one, and *compute* seconds in it."""

    rank: int
    wire: float
    compute: float


def slow_links_of(ranks: Mapping[int, RankParts]) -> list[SlowLink]:
    """The slow links of a pipeline whose *ranks* took so long for chunks of prompts. The last one
    sends nothing of a chunk back but that it is done."""
    return [
        SlowLink(rank, took.wire, took.compute)
        for rank, took in ranks.items()
        if rank + 1 in ranks and took.wire > max(took.compute, _LEAST)
    ]
