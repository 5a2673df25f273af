"""Tensor parallelism over real nodes, beside mlx-lm's own, with the same model.

Both have as many ranks, started directly, and the same prompts, and take turns in one run. Ours
runs twice: with its sums beside the sealed links (``trusted-link``), as mlx-lm's own go, and
through them. See `batch` for how either side is driven and counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from sealring.local.ring import local_ring
from sealring_model.text.tokens import Tokenizer
from sealring_tools.bench.batch import Case, Side, make_prompts, ring_pace, take_turns
from sealring_tools.bench.measure import Result
from sealring_tools.bench.yardstick import own_split

STREAM: Final = "mlx-lm tensor parallel, stream"
BATCH: Final = "mlx-lm tensor parallel"
OURS: Final[Mapping[str, str]] = {"trusted-link": "trusted link", "sealed": "sealed"}

FLOOR: Final = 1.0
"""The least ratio that is aimed at where both send their sums in the same way."""


@attrs.frozen
class Setup:
    """What to measure: each number of *rows* on so many *ranks*, in so many *turns*, with *tokens*
    for each row after about *prompt* tokens."""

    rows: tuple[int, ...] = (1, 4, 8)
    ranks: int = 2
    turns: int = 3
    tokens: int = 64
    prompt: int = 32


def measure(setup: Setup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second over all rows, greedy, medians of alternating turns: ours, either way,
    beside mlx-lm's. *model* is told as *name*. Raises `OperationError`."""
    with contextlib.ExitStack() as stack:
        tell("bringing everybody up")
        found = take_turns(_sides(setup, model, stack), setup.turns, tell)
    return [
        Result(
            f"{name}, {case}, {told}",
            "tokens/s",
            found[way, case],
            found[_yardstick(case)],
            _yardstick(case)[0],
            FLOOR if way == "trusted-link" else None,
        )
        for case in _cases(setup)
        for way, told in OURS.items()
    ]


def _cases(setup: Setup) -> list[Case]:
    return [Case(setup.ranks, 1, rows) for rows in setup.rows]


def _yardstick(case: Case) -> Side:
    return (STREAM if case.rows == 1 else BATCH, case)


def _sides(
    setup: Setup, model: Path, stack: contextlib.ExitStack
) -> dict[Side, Callable[[], float]]:
    """Everybody who takes a turn, and how; the processes end with *stack*."""
    texts = make_prompts(max(setup.rows), setup.prompt)
    tokenizer = Tokenizer(model)
    ids = [tokenizer.encode(text) for text in texts]
    theirs = stack.enter_context(own_split(model, setup.ranks, "tensor"))
    heads = {}
    for way in OURS:
        options: dict[str, str | float] = {
            "strategy": "tp",
            "collectives": way,
            "groups": 1,
            "rows": max(setup.rows),
        }
        heads[way] = stack.enter_context(local_ring(setup.ranks, model, options=options))[0]
    sides: dict[Side, Callable[[], float]] = {}
    for case in _cases(setup):
        rows, stream = case.rows, case.rows == 1
        sides[_yardstick(case)] = partial(theirs.pace, ids[:rows], setup.tokens, stream=stream)
        for way, head in heads.items():
            sides[way, case] = partial(ring_pace, head, texts[:rows], setup.tokens)
    return sides
