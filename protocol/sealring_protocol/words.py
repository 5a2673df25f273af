"""Ranks, durations, progress and reasons in words: for logs, and for people who wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STILL_FETCHED: Final = "layers are still being fetched"
"""How a rank begins to say why it cannot load its layers yet, and the head for all ranks."""

RING_CHANGED: Final = "the ring has other members now"
"""The reason sent to members when the head leaves a member out of the ring, or takes one in."""

_UNITS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def named(ranks: Sequence[str], rank: int) -> str:
    """What people call *rank*: its entry in *ranks*, such as "rank 1 (den)", if it has one."""
    return ranks[rank] if rank < len(ranks) else f"rank {rank}"


def lasting(seconds: float) -> str:
    """*seconds* in one unit, rounded down: "12 s", "3 minutes", "1 hour", "4 days"."""
    for size, name in _UNITS:
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{max(0, int(seconds))} s"


def ago(seconds: float) -> str:
    """How long ago something was: "just now", "12 s ago"."""
    return "just now" if seconds < 1 else f"{lasting(seconds)} ago"


def part_here(here: int, size: int) -> str:
    """How much of *size* bytes is here: "3.1 of 16.0 GB"."""
    unit, width = ("GB", 1e9) if size >= 10**8 else ("MB", 1e6)
    return f"{here / width:.1f} of {size / width:.1f} {unit}"
