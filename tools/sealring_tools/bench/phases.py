"""The time of many requests by phase, from their traces."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

PARTS: Final = (
    "body",
    "parse",
    "tokenise",
    "queue",
    "prefill",
    "compute",
    "sample",
    "wait",
    "seal",
    "hop",
    "turn",
    "detokenise",
    "first_token",
    "total",
)
"""The phases that a trace tells, in their order; *compute* is told for each rank."""

_OF_TOKENS: Final = ("prefill", "first_token")
"""Those that end with the first token, which an answer without any has not."""


@attrs.frozen
class Spread:
    """How long something took, in milliseconds."""

    mean: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of *values*, at least one."""
        ordered = sorted(values)
        return cls(
            statistics.fmean(ordered),
            statistics.median(ordered),
            ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)],
            ordered[-1],
        )


def decompose(traces: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Spread], list[str]]:
    """The spread of each phase over *traces*, and what is missing in words."""
    values: dict[str, list[float]] = {}
    missing: dict[str, int] = {}
    for trace in traces:
        for name, value in _flat(trace["phases_ms"]):
            if value is None and name in _OF_TOKENS and not trace["tokens"]:
                continue
            if value is None:
                missing[name] = missing.get(name, 0) + 1
            else:
                values.setdefault(name, []).append(value)
    faults = [f"{count} traces have no {_words(name)}" for name, count in missing.items()]
    return {_words(name): Spread.of(found) for name, found in values.items()}, faults


def _flat(phases: Mapping[str, Any]) -> Iterable[tuple[str, float | None]]:
    for part in PARTS:
        if part != "compute":
            yield part, phases.get(part)
            continue
        ranks = phases.get(part) or [None]
        yield from ((f"compute of rank {rank}", spent) for rank, spent in enumerate(ranks))


def _words(name: str) -> str:
    return name.replace("_", " ")
