"""The wall clock, in the unit of rosters and logs. All deadlines go by trio's monotonic clock."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
