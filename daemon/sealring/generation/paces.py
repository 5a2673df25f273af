"""What the head has measured of its ranks, as `sealring plan` needs it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from sealring_protocol.codec.messages import Decode, Prefill
from sealring_protocol.control.effects import StepTiming

ENOUGH: Final = 8
"""Decodes of a number of rows that are looked at, at least: when rows come or go, steps take longer
than those of as many rows do."""


def describe_paces(timings: Iterable[StepTiming]) -> dict[str, Any]:
    """Of the steps with these *timings*, in microseconds: what each rank computes in a decode
    without guesses, by the number of its rows; what the head's second pass does in one of a single
    row; what each rank takes for a token of a prompt (median); and what a decode of one row takes
    beside that. What no step shows is left out, or 0.

    Figures of decodes are means over the same `usual` steps, so they add up to what those took."""
    decodes: dict[int, list[StepTiming]] = defaultdict(list)
    prefills: list[tuple[int, StepTiming]] = []  # with the number of tokens
    for timing in timings:
        if not timing.spent or timing.parallel:
            continue
        if isinstance(timing.work, Decode) and not timing.work.guessed:
            decodes[len(timing.uids)].append(timing)
        elif isinstance(timing.work, Prefill) and not timing.work.scored:
            prefills.append((timing.work.count, timing))
    decodes = {rows: found for rows, found in decodes.items() if len(found) >= ENOUGH}
    kept = {rows: usual(found) for rows, found in sorted(decodes.items())}
    single = kept.get(1, [])
    return {
        "steps": sum(map(len, decodes.values())),
        "decode_us": {str(rows): _by_rank(found) for rows, found in kept.items()},
        "closing_us": _mean(each.closing.compute_us for each in single),
        "prompt_us": _by_token(prefills),
        "away_us": _mean(each.total_us - _computed(each) for each in single),
    }


def usual(found: list[StepTiming]) -> list[StepTiming]:
    """The steps that were *found*, without the slowest tenth, in which the machine did something
    else or a device prepared for a shape, and without the fastest tenth."""
    ordered = sorted(found, key=lambda each: each.total_us)
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut]


def _computed(timing: StepTiming) -> int:
    """What all ranks computed in the step of *timing*, one after the other."""
    return sum(each.compute_us for each in (*timing.spent, timing.closing))


def _mean(found: Iterable[float]) -> float:
    """The mean of what was *found*; 0 of nothing."""
    return round(statistics.fmean([*found] or [0]), 1)


def _by_rank(found: list[StepTiming]) -> list[float]:
    """The mean of what each rank computed in the steps that were *found*."""
    world = min(len(each.spent) for each in found)
    return [_mean(each.spent[rank].compute_us for each in found) for rank in range(world)]


def _by_token(found: list[tuple[int, StepTiming]]) -> list[float]:
    """What each rank takes for a token of a prompt, by the largest chunks that were *found*, with
    the tokens of each."""
    if not found:
        return []
    most = max(count for count, _ in found)
    large = [(count, each) for count, each in found if 2 * count > most]
    world = min(len(each.spent) for _, each in large)
    return [
        statistics.median(each.spent[rank].compute_us / count for count, each in large)
        for rank in range(world)
    ]
