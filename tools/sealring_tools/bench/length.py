"""The time of a token late in a long text beside early in it.

A ring that sent its whole text round for every token, or copied its caches, would slow down with
each. Attention itself reads a longer cache, in one process as in a ring, so both are measured: a
ring that adds nothing grows as one process does. All four take turns, for a machine changes its
pace within minutes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from sealring.local.reference import one_process
from sealring.local.ring import LocalNode, local_ring
from sealring_model.text.tokens import Tokenizer
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import write_random_model
from sealring_tools.bench.texts import text_of
from sealring_tools.bench.yardstick import token_times

EARLY: Final = 100
LATE: Final = 1000
"""Tokens that stand before those that are measured."""

TOKENS: Final = 48
TURNS: Final = 7

Ask = Callable[[str], Sequence[float]]
"""Continues a text by `TOKENS`; returns the times (s) at which they came."""


def measure() -> list[Result]:
    """Milliseconds per token, late beside early, of a ring of two and of one process."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        model = write_random_model(Path(folder))
        tokenizer = Tokenizer(model)
        early, late = (text_of(tokenizer, tokens - TOKENS // 2) for tokens in (EARLY, LATE))
        with local_ring(2, model) as (head, _), one_process(model) as single:
            asked: dict[str, Ask] = {
                "ring of 2": lambda text: _ask(head, text),
                "one process (mlx-lm)": lambda text: single.generate(text, TOKENS, raw=True).times,
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
            for turn in range(TURNS):
                for name, ask in asked.items():
                    found[name].append(
                        (_pace(ask(f"{turn} {early}")), _pace(ask(f"{turn} {late}")))
                    )
    return [_result(name, pairs) for name, pairs in found.items()]


def _result(name: str, pairs: Sequence[tuple[float, float]]) -> Result:
    early, late = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Result(f"{name}, after {LATE:,} tokens", "ms/token", late, early, f"after {EARLY}")


def _pace(times: Sequence[float]) -> float:
    """Median milliseconds between tokens, from the *times* (s) of all."""
    return statistics.median(1e3 * (b - a) for a, b in pairwise(times))


def _ask(head: LocalNode, text: str) -> list[float]:
    request = {"prompt": text, "raw": True, "max_tokens": TOKENS}
    return token_times(head.ask("generate", request))
