"""How fast tokens came."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def token_times(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """When each token came: seconds of `time.perf_counter`, from the *events* of a ``generate``."""
    times: list[float] = []
    for event in events:
        if event["event"] == "text":
            times += [time.perf_counter()] * event["count"]
    return times


def pace(times: Sequence[float]) -> float:
    """Tokens a second after the first, from the *times* (s) at which they came; 0 if all came at
    once, as tokens without a text do."""
    took = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / took if took else 0.0


def joint_pace(times: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all rows together, from the *times* (s) of each row's tokens.

    Only the time in which all of them run counts: from when the last has begun until the first has
    ended. Within it each row's own pace is taken, so that it does not matter how the edges fall.
    """
    begin = max(row[0] for row in times)
    end = min(row[-1] for row in times)
    return sum(pace([at for at in row if begin <= at <= end]) for row in times)
