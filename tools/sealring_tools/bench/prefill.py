"""Reading long prompts: rings of several sizes, beside mlx-lm in one process.

All sides have the same model and are given the same prompts, in turns, and each is timed by whoever
asks it: from the request until its first token. A pipeline reads several chunks of a prompt at
once, one on each stage, so it gains from ranks even with one request.

With rows *beside*, as many other rows decode on the ring meanwhile. The yardstick stays one process
that does nothing but read, and the longest that a row waited for a token is told too, beside what
it may wait: its longest wait before the prompt came, and the scheduler's bound.

A device may plan anew for each length that it has not read yet. With *new_lengths* the prompts of
each turn are longer than those of the turn before, so that every one has such a length.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import attrs
from sealring.local.reference import Reference, one_process
from sealring.local.ring import LocalNode, local_ring
from sealring_model.machine import PROCESSORS
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.requests import SchedulerConfig
from sealring_tools.bench.measure import Result
from sealring_tools.bench.texts import text_of
from sealring_trio.errors import OperationError

YARDSTICK: Final = "mlx-lm, one process"
MAY_WAIT: Final = "before the prompt, and the bound"

FLOOR: Final = 1.85
"""The least ratio that is aimed at on two ranks, from `FLOOR_TOKENS` on."""
FLOOR_BESIDE: Final = 1.5
"""The same while eight other rows decode."""
FLOOR_TOKENS: Final = 4000

LONGER: Final = 7
"""Tokens by which prompts of new lengths differ from turn to turn."""

_BEFORE: Final = 8
"""Tokens that each row beside gets before the prompt comes."""


@attrs.frozen
class Setup:
    """What to measure: prompts of so many *tokens* on each number of *ranks*, in so many *turns*,
    with so many rows *beside* that decode meanwhile. With *new_lengths* each turn's are `LONGER`
    tokens longer. *places* is what each rank finds in its environment: its GPU, say."""

    tokens: tuple[int, ...] = (512, 2048, 8192)
    ranks: tuple[int, ...] = (1, 2, 4)
    beside: int = 0
    turns: int = 3
    new_lengths: bool = False
    places: Sequence[Mapping[str, str]] = ()


@attrs.frozen
class Reading:
    """How one prompt was read: *seconds* until its first token, and the longest time (s) that a row
    beside *waited* for a token meanwhile and *before*."""

    seconds: float
    waited: float = 0.0
    before: float = 0.0


Side: TypeAlias = tuple[int, int]
"""Ranks (0: one process of mlx-lm) and tokens."""


def measure(setup: Setup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Seconds to the first token and tokens a second, medians of alternating turns. *model* is told
    as *name*. Raises `OperationError`."""
    with contextlib.ExitStack() as stack:
        tell("bringing everybody up")
        single = stack.enter_context(one_process(model))
        options = {"rows": setup.beside + 1}
        heads = {
            ranks: stack.enter_context(
                local_ring(ranks, model, options=options, places=setup.places)
            )[0]
            for ranks in setup.ranks
        }
        found = _take_turns(setup, Tokenizer(model), single, heads, tell)
    return [
        result
        for ranks, tokens in itertools.product(setup.ranks, setup.tokens)
        for result in _case(setup, name, found, (ranks, tokens))
    ]


def _case(
    setup: Setup, name: str, found: dict[Side, list[Reading]], side: Side
) -> Iterator[Result]:
    ranks, tokens = side
    ours, its = found[side], found[0, tokens]
    what = f"{name}, {_ring(ranks)}, {tokens:,} tokens"
    if setup.beside:
        what += f" beside {setup.beside} rows"
    if setup.new_lengths:
        what += ", new lengths"
    seconds, alone = (statistics.median(each.seconds for each in of) for of in (ours, its))
    floor = None
    if ranks == 2 and tokens >= FLOOR_TOKENS:
        floor = FLOOR_BESIDE if setup.beside else FLOOR
    yield Result(what, "tokens/s", tokens / seconds, tokens / alone, YARDSTICK, floor)
    yield Result(what, "s to the first token", seconds, alone, YARDSTICK)
    if setup.beside:
        waited = max(each.waited for each in ours)
        may = max(each.before for each in ours) + SchedulerConfig().chunk_seconds
        yield Result(f"{what}, longest wait", "s", waited, may, MAY_WAIT, ceiling=1.0)


def _ring(ranks: int) -> str:
    """A ring's name, which says where its ranks have less than a processor each."""
    noun = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return noun if ranks <= PROCESSORS else f"{noun} on {PROCESSORS} processors"


def _take_turns(
    setup: Setup,
    tokenizer: Tokenizer,
    single: Reference,
    heads: dict[int, LocalNode],
    tell: Callable[[str], None],
) -> dict[Side, list[Reading]]:
    readers: dict[int, Callable[[str], Reading]] = {0: partial(_single, single, tokenizer)}
    for ranks, head in heads.items():
        readers[ranks] = (
            partial(_beside, head, setup.beside) if setup.beside else partial(_ours, head)
        )
    for reader in readers.values():  # to warm up
        reader(text_of(tokenizer, min(256, *setup.tokens)))
    found: dict[Side, list[Reading]] = {}
    for turn, tokens in itertools.product(range(1, setup.turns + 1), setup.tokens):
        # No two begin alike: what was read for one is not to serve another.
        more = LONGER * turn if setup.new_lengths else 0
        text = f"{turn} {tokens} {text_of(tokenizer, tokens - 8 + more)}"
        for ranks, reader in readers.items():
            reading = reader(text)
            found.setdefault((ranks, tokens), []).append(reading)
            side = _ring(ranks) if ranks else YARDSTICK
            told = f", longest wait beside {reading.waited:.3f} s" if ranks and setup.beside else ""
            tell(
                f"turn {turn} of {setup.turns}: {side}, {tokens:,} tokens: "
                f"{reading.seconds:.2f} s{told}"
            )
    return found


def _single(single: Reference, tokenizer: Tokenizer, text: str) -> Reading:
    ids = tokenizer.encode(text)
    start = time.perf_counter()
    single.generate(ids, 1, raw=True)
    return Reading(time.perf_counter() - start)


def _ours(head: LocalNode, text: str) -> Reading:
    start = time.perf_counter()
    for event in head.ask("generate", {"prompt": text, "raw": True, "max_tokens": 1}):
        if event["event"] in ("text", "done"):
            break
    return Reading(time.perf_counter() - start)


# ------------------------------------------------------------------- rows beside


class _Row(threading.Thread):
    """One row that decodes until it is told to *stop*, and the *times* of its tokens."""

    def __init__(self, head: LocalNode, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"row {number}")
        self._head: Final = head
        self._prompt: Final = f"Row {number}, which goes on and on while others are read in."
        self._done: Final = stop
        self._fault: OperationError | None = None
        self.times: list[float] = []

    def run(self) -> None:
        request = {"prompt": self._prompt, "raw": True, "max_tokens": 4000}
        try:
            for event in self._head.ask("generate", request):
                if event["event"] == "text":
                    self.times += [time.perf_counter()] * event["count"]
                if self._done.is_set():  # which ends the request, as its client leaves
                    return
        except OperationError as error:
            self._fault = error

    def check(self) -> None:
        """Raise `OperationError` if it ended before it was told to."""
        if self._fault is not None:
            raise self._fault
        if not self.is_alive():
            raise OperationError(
                "a row beside the prompt had ended too early", "Ask for fewer --tokens."
            )

    def longest(self, begin: float, end: float) -> float:
        """Its longest wait (s) for a token, of those that were waited for between *begin* and
        *end*."""
        waits = [b - a for a, b in pairwise([*self.times, end]) if b > begin and a < end]
        return max(waits, default=0.0)


def _beside(head: LocalNode, beside: int, text: str) -> Reading:
    """Have *text* read while as many other rows decode."""
    stop = threading.Event()
    rows = [_Row(head, number, stop) for number in range(beside)]
    for row in rows:
        row.start()
    try:
        while any(len(row.times) < _BEFORE for row in rows):
            for row in rows:
                row.check()
            time.sleep(0.01)
        begin = time.perf_counter()
        # From when all of them decoded.
        settled = max(row.times[0] for row in rows)
        seconds = _ours(head, text).seconds
        end = time.perf_counter()
        for row in rows:
            row.check()
    finally:
        stop.set()
        for row in rows:
            row.join()
    return Reading(
        seconds,
        max(row.longest(begin, end) for row in rows),
        max(row.longest(settled, begin) for row in rows),
    )
