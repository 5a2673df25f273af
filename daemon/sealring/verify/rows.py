"""The rows that a verification has the ring run, chosen so that every mechanism of a ring is used.

Prompts are random token ids: they reach every embedding, need no tokenizer, and no cache has them.
One row alone reads a prompt of several chunks, and beyond a sliding window where the model has one.
Then so many short rows that batches form, which rows join at different steps and leave; then second
turns of rows that begin with what the first left in the caches, all of it or a part. A longer row
reaches later positions. At last a row is asked again, alone, with guesses of its tokens, of which
some are wrong and have to be taken back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import attrs

_CHUNK: Final = 512
"""Tokens of the largest prefill chunk."""

_LONGEST: Final = 3 * _CHUNK
"""Tokens of the longest prompt."""

_MOST: Final = 50
"""Short rows, at most: a verification has 64 rows."""

_TOKENS: Final = 8
_THOROUGH: Final = 4
"""A thorough verification has so many times as much of everything."""


@attrs.frozen
class PlannedRow:
    """A row as the control socket's `verify` takes it; see `node.verification.AskedRow`."""

    prompt: tuple[int, ...]
    tokens: int
    continues: int | None = None
    cut: int | None = None
    after: tuple[int, int] | None = None
    alone: bool = False
    leaves: int | None = None
    guesses: int | None = None
    logprobs: bool = True

    def asked(self) -> dict[str, Any]:
        """Its fields for the control socket."""
        return attrs.asdict(self)


def plan_rows(
    vocabulary: int,
    context: int,
    windows: Sequence[int],
    ranks: int,
    *,
    seed: int,
    thorough: bool = False,
) -> list[PlannedRow]:
    """Rows for a model of a *vocabulary* and a *context* of so many tokens, with sliding *windows*,
    in a ring of *ranks*."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    scale = _THOROUGH if thorough else 1
    tokens = _TOKENS * scale
    room = max(1, context - 2 * tokens - 16)  # a second turn fits behind the longest prompt

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(min(count, room)))

    reach = [window for window in windows if window < (4096 * scale)]
    long = max([_CHUNK + _CHUNK // 4, *(window + window // 4 for window in reach)])
    rows = [
        PlannedRow(ids(1), tokens),
        PlannedRow(ids(long), tokens, after=(0, 1)),
    ]
    # A ring has two groups a rank: with so many rows each group has a batch.
    first = len(rows)
    for number in range(min(4 * ranks + 2, _MOST)):
        size = draw.randrange(2, 48)
        after = (first + number - 1, 1) if number % 3 == 2 else (1, 1)
        leaves = 3 if number % 4 == 1 else None
        rows.append(PlannedRow(ids(size), tokens + number % 3, after=after, leaves=leaves))
    rows.append(PlannedRow(ids(5), tokens, continues=0))
    rows.append(PlannedRow(ids(9), tokens, continues=1))
    rows.append(PlannedRow(ids(_LONGEST * scale), tokens, after=(first, 1)))
    # Where caches cannot be cut, the first of these has its cache kept as it leaves the other row.
    half, longest = len(rows[1].prompt) // 2, len(rows) - 1
    for number in range(2):
        behind = (len(rows) - 1, tokens) if number else None
        rows.append(PlannedRow(ids(9), tokens, continues=longest, cut=half, after=behind))
    short = PlannedRow(ids(20), 4 * tokens, after=(1, 1))
    rows.append(short)
    again = attrs.evolve(short, after=None, alone=True, guesses=len(rows) - 1)
    return [*rows, again, attrs.evolve(again, logprobs=False)]
