"""Runs two things in turns, and takes medians.

The speed of a machine changes within seconds. So both sides of a comparison run in many short
turns, and their medians are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import attrs

ROUNDS: Final = 15
ROUND_SECONDS: Final = 0.08


@attrs.frozen
class Result:
    """One line of a bench: *ours* and *yardstick* in *unit*."""

    name: str
    unit: str
    ours: float
    yardstick: float
    yardstick_name: str
    floor: float | None = None
    """What the ratio should at least be, where that is stated."""
    ceiling: float | None = None
    """What it should be at most, likewise."""

    @property
    def ratio(self) -> float:
        """Ours over the yardstick."""
        return self.ours / self.yardstick

    @property
    def holds(self) -> bool:
        """Whether the ratio reaches its floor, and keeps below its ceiling."""
        high_enough = self.floor is None or self.ratio >= self.floor
        return high_enough and (self.ceiling is None or self.ratio <= self.ceiling)


def alternate(ours: Callable[[], object], yardstick: Callable[[], object]) -> tuple[float, float]:
    """Calls per second of both, medians of `ROUNDS` turns of about `ROUND_SECONDS` each."""
    counts = [_calibrate(ours), _calibrate(yardstick)]
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, count, found in zip((ours, yardstick), counts, rates, strict=True):
            found.append(count / _time(call, count))
    return statistics.median(rates[0]), statistics.median(rates[1])


def _calibrate(call: Callable[[], object]) -> int:
    """The number of calls that fill a turn."""
    count = 1
    while (spent := _time(call, count)) < ROUND_SECONDS / 4:
        count *= 2
    return max(1, int(count * ROUND_SECONDS / spent))


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start
