"""How the time per token grows with the text: late in a long answer beside early in it.

A ring that sent its whole text round for every token, or copied its caches, would slow down with
each. Attention itself reads a longer cache, in one process as in a ring; so both are measured, in
turns, and a ring that adds nothing has the ratio that one process has.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from sealring_trio.bench.measure import Result
from sealring_trio.bench.random_model import write_random_model
from sealring_trio.local_ring import LocalNode, local_ring
from sealring_trio.single import single_process

TOKENS: Final = 1000
EARLY: Final = slice(100, 300)
LATE: Final = slice(800, 1000)
TURNS: Final = 3
PROMPT: Final = "Tell me a long story about a fox and a river."


def measure() -> list[Result]:
    """Milliseconds per token, late beside early, of a ring of two and of one process."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        model = write_random_model(Path(folder))
        with local_ring(2, model) as (head, _), single_process(model) as single:
            ring: list[tuple[float, float]] = []
            alone: list[tuple[float, float]] = []
            for _ in range(TURNS):
                ring.append(_early_and_late(_ask(head)))
                alone.append(_early_and_late(single.generate(PROMPT, TOKENS).times))
    return [_result("ring of 2", ring), _result("one process (mlx-lm)", alone)]


def _result(name: str, pairs: Sequence[tuple[float, float]]) -> Result:
    early, late = (statistics.median(column) for column in zip(*pairs, strict=True))
    what = f"{name}, tokens {LATE.start} to {LATE.stop}"
    return Result(what, "ms/token", late, early, f"tokens {EARLY.start} to {EARLY.stop}")


def _early_and_late(times: Sequence[float]) -> tuple[float, float]:
    """Median milliseconds between tokens in both stretches, from the *times* (s) of all."""
    gaps = [1e3 * (b - a) for a, b in pairwise(times)]
    return statistics.median(gaps[EARLY]), statistics.median(gaps[LATE])


def _ask(head: LocalNode) -> list[float]:
    times: list[float] = []
    for event in head.ask({"do": "generate", "prompt": PROMPT, "max_tokens": TOKENS}):
        if event["event"] == "text":
            times += [time.perf_counter()] * event["count"]
    return times
