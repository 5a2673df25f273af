"""Durations in words: for logs, and for people who wait."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"))


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
