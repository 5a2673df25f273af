"""Rows x groups x ranks on real rings, beside mlx-lm's batches in one process and its own pipeline.

All sides have the same model, the same prompts and the same number of tokens, and take turns in one
run, so that a slow spell of the machine affects all of them. Our ring is driven as any client
drives it, through the control socket of real node processes, and its tokens are counted at the
client; mlx-lm's tokens are counted in its own loop.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
from sealring.local.ring import LocalNode, local_ring
from sealring_model.text.tokens import Tokenizer
from sealring_tools.bench.measure import Result
from sealring_tools.bench.yardstick import joint_pace, one_process, own_split, token_times
from sealring_trio.errors import OperationError

STREAM: Final = "mlx-lm stream_generate"
BATCH: Final = "mlx-lm BatchGenerator"
PIPELINE: Final = "mlx-lm pipeline"
RING: Final = "ring"
ONE_ROW: Final = "1 row on this ring"

FLOORS: Final[Mapping[tuple[str, str, str], float]] = {
    ("450m bf16", "2 ranks, 2 groups, 8 rows", PIPELINE): 1.4,
    ("450m bf16", "2 ranks, 2 groups, 8 rows", BATCH): 1.3,
    ("450m bf16", "2 ranks, 2 groups, 1 row", STREAM): 0.82,
    ("450m bf16", "2 ranks, 2 groups, 4 rows", ONE_ROW): 2.5,
    ("25m bf16", "2 ranks, 2 groups, 8 rows", PIPELINE): 1.25,
    ("25m bf16", "2 ranks, 2 groups, 8 rows", BATCH): 1.1,
    ("25m f32", "2 ranks, 2 groups, 8 rows", PIPELINE): 1.25,
    ("25m f32", "2 ranks, 2 groups, 8 rows", BATCH): 1.1,
}
"""The least ratio that is aimed at, by model, case and yardstick."""

_TEXT: Final = "Once upon a time there was a ring, and each of its ranks knew but its own layers. "


@attrs.frozen
class Case:
    """So many rows, spread over so many groups, on so many ranks. What is 0 is not told."""

    ranks: int
    groups: int
    rows: int

    def __str__(self) -> str:
        counts = ((self.ranks, "rank"), (self.groups, "group"), (self.rows, "row"))
        told = [(count, noun) for count, noun in counts if count]
        return ", ".join(f"{count} {noun}{'s' if count != 1 else ''}" for count, noun in told)


Side: TypeAlias = tuple[str, Case]
"""One who takes turns: `RING` or the name of a yardstick, and what it is given. mlx-lm in one
process has one rank, and none of mlx-lm's has groups."""


@attrs.frozen
class Setup:
    """What to measure: every combination of *rows*, *groups* and *ranks*, in so many *turns*, with
    *tokens* for each row after about *prompt* tokens. *layers* is the split among the ranks, by
    memory where it is empty."""

    rows: tuple[int, ...] = (1, 4, 8)
    groups: tuple[int, ...] = (2,)
    ranks: tuple[int, ...] = (2,)
    turns: int = 3
    tokens: int = 48
    prompt: int = 8
    layers: tuple[int, ...] = ()


def measure(setup: Setup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second over all rows, greedy, medians of alternating turns: each case beside each
    of its yardsticks. *model* is told as *name*. Raises `OperationError`."""
    with contextlib.ExitStack() as stack:
        tell("bringing everybody up")
        found = take_turns(_sides(setup, model, stack), setup.turns, tell)
    return [
        Result(
            f"{name}, {case}",
            "tokens/s",
            found[RING, case],
            found[side],
            yardstick,
            FLOORS.get((name, str(case), yardstick)),
        )
        for case in _cases(setup)
        for yardstick, side in _yardsticks(case)
        if side in found
    ]


def take_turns(
    sides: Mapping[Side, Callable[[], float]], turns: int, tell: Callable[[str], None]
) -> dict[Side, float]:
    """The median pace of each of *sides*, in so many alternating *turns* after one to warm up. Each
    pace is told of as it is found.

    Raises `OperationError`.
    """
    paces: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(turns + 1):
        for side, run in sides.items():
            pace = checked(side[0], run())
            told = f"turn {turn} of {turns}" if turn else "to warm up"
            tell(f"{told}: {side[0]}, {side[1]}: {pace:.1f} tokens/s")
            if turn:
                paces[side].append(pace)
    return {side: statistics.median(each) for side, each in paces.items()}


def checked(name: str, pace: float) -> float:
    """*pace*, measured for *name*. Raises `OperationError` if it is 0."""
    if not pace:
        raise OperationError(
            f"{name}: one row had ended before another began",
            "There is nothing to measure then. Give them more --tokens.",
        )
    return pace


def _cases(setup: Setup) -> list[Case]:
    return list(itertools.starmap(Case, itertools.product(setup.ranks, setup.groups, setup.rows)))


def _yardsticks(case: Case) -> Iterator[tuple[str, Side]]:
    """The yardsticks of *case*, by name."""
    if case.rows == 1:
        yield STREAM, (STREAM, Case(1, 1, 1))
    yield BATCH, (BATCH, Case(1, 1, case.rows))
    if case.ranks > 1:
        yield PIPELINE, (PIPELINE, Case(case.ranks, 1, case.rows))
    if case.rows > 1:
        yield ONE_ROW, (RING, Case(case.ranks, case.groups, 1))


def _sides(
    setup: Setup, model: Path, stack: contextlib.ExitStack
) -> dict[Side, Callable[[], float]]:
    """Every side that takes turns, and how it is asked; the processes end with *stack*."""
    texts = make_prompts(max(setup.rows), setup.prompt)
    tokenizer = Tokenizer(model)
    ids = [tokenizer.encode(text) for text in texts]
    one = stack.enter_context(one_process(model))
    pipelines = {
        ranks: stack.enter_context(own_split(model, ranks, "pipeline"))
        for ranks in setup.ranks
        if ranks > 1
    }
    sides: dict[Side, Callable[[], float]] = {}
    for ranks, groups in itertools.product(setup.ranks, setup.groups):
        layers = setup.layers if len(setup.layers) == ranks else ()
        options = {"groups": groups, "rows": max(setup.rows)}
        nodes = stack.enter_context(local_ring(ranks, model, layers, options=options))
        for rows in setup.rows:
            case = Case(ranks, groups, rows)
            for yardstick, side in _yardsticks(case):
                if side[0] == RING:
                    continue
                children = pipelines[ranks] if yardstick == PIPELINE else one
                stream = yardstick == STREAM
                sides[side] = partial(children.pace, ids[:rows], setup.tokens, stream=stream)
            sides[RING, case] = partial(ring_pace, nodes[0], texts[:rows], setup.tokens)
    return sides


def make_prompts(count: int, tokens: int) -> list[str]:
    """*count* texts of about *tokens* tokens, which are words; no two begin alike."""
    words = _TEXT.split()
    return [
        " ".join(itertools.islice(itertools.cycle([f"Row {row}:", *words]), max(1, tokens)))
        for row in range(count)
    ]


def ring_pace(head: LocalNode, texts: list[str], tokens: int) -> float:
    """Tokens a second over all rows of a ring that continues each of the *texts*."""
    with ThreadPoolExecutor(len(texts)) as threads:
        times = list(threads.map(partial(_row_times, head, tokens), texts))
    return joint_pace(times)


def _row_times(head: LocalNode, tokens: int, text: str) -> list[float]:
    """When the tokens of one row came. Raises `OperationError` when they are not all there."""
    request = {"prompt": text, "raw": True, "max_tokens": tokens}
    times = token_times(head.ask("generate", request))
    if len(times) < tokens:
        raise OperationError(
            f"the model ended a row after {len(times)} of {tokens} tokens",
            "Rows of different lengths cannot be compared. Give another model, or fewer tokens.",
        )
    return times
