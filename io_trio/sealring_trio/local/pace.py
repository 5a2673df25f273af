"""How fast tokens came."""

from __future__ import annotations

from collections.abc import Sequence


def pace(times: Sequence[float]) -> float:
    """Tokens a second after the first, from the *times* (s) at which they came."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
