"""What the ring did with the rows: their tokens, and the fingerprints that its ranks claim."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
from sealring_trio.errors import OperationError

from sealring.service.verification import AskedRow

_CHUNK: Final = 512
"""Tokens of the largest prefill chunk."""

_LONGEST: Final = 3 * _CHUNK
"""Tokens of the longest prompt."""

_MOST: Final = 50
"""Short rows, at most: a verification has 64 rows."""

_TOKENS: Final = 8
_THOROUGH: Final = 4
"""A thorough verification has so many times as much of everything."""


def plan_rows(
    vocabulary: int,
    context: int,
    windows: Sequence[int],
    ranks: int,
    *,
    seed: int,
    thorough: bool = False,
) -> list[AskedRow]:
    """Rows for a model of a *vocabulary* and a *context* of so many tokens, with sliding *windows*,
    in a ring of *ranks*, chosen so that every mechanism of a ring is used.

    Prompts are random token ids: they reach every embedding, need no tokenizer, and no cache has
    them. One row alone reads a prompt of several chunks, and beyond a sliding window where the
    model has one. Then so many short rows that batches form, which rows join at different steps and
    leave; then second turns of rows that begin with what the first left in the caches, all of it or
    a part. A longer row reaches later positions. At last a row is asked again, alone, with guesses
    of its tokens, of which some are wrong and have to be taken back.
    """
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    scale = _THOROUGH if thorough else 1
    tokens = _TOKENS * scale
    room = max(1, context - 2 * tokens - 16)  # a second turn fits behind the longest prompt

    def row(count: int, tokens: int, **more: Any) -> AskedRow:
        ids = [draw.randrange(vocabulary) for _ in range(min(count, room))]
        return AskedRow(prompt=ids, tokens=tokens, **more)

    reach = [window for window in windows if window < (4096 * scale)]
    long = max([_CHUNK + _CHUNK // 4, *(window + window // 4 for window in reach)])
    rows = [
        row(1, tokens),
        row(long, tokens, after=(0, 1)),
    ]
    # A ring has two groups a rank: with so many rows each group has a batch.
    first = len(rows)
    for number in range(min(4 * ranks + 2, _MOST)):
        size = draw.randrange(2, 48)
        after = (first + number - 1, 1) if number % 3 == 2 else (1, 1)
        leaves = 3 if number % 4 == 1 else None
        rows.append(row(size, tokens + number % 3, after=after, leaves=leaves))
    rows.append(row(5, tokens, continues=0))
    rows.append(row(9, tokens, continues=1))
    rows.append(row(_LONGEST * scale, tokens, after=(first, 1)))
    # Where caches cannot be cut, the first of these has its cache kept as it leaves the other row.
    half, longest = len(rows[1].prompt) // 2, len(rows) - 1
    for number in range(2):
        behind = (len(rows) - 1, tokens) if number else None
        rows.append(row(9, tokens, continues=longest, cut=half, after=behind))
    short = row(20, 4 * tokens, after=(1, 1))
    rows.append(short)
    again = short.model_copy(update={"after": None, "alone": True, "guesses": len(rows) - 1})
    return [*rows, again, again.model_copy(update={"logprobs": False})]


Fingerprint = tuple[float, float, float]
"""A fingerprint: two projections, and the root mean square."""

Ask = Callable[[str, dict[str, Any]], Iterator[dict[str, Any]]]
"""Sends a request, by its name and fields, to the head; yields the lines of its answer."""


@attrs.frozen
class Drawn:
    """A *token* that the ring drew: its log probability (*chosen*; None if that was not asked for),
    and those of the *ids* that the ring found likeliest."""

    token: int
    chosen: float | None
    ids: tuple[int, ...]
    values: tuple[float, ...]


@attrs.define
class RingRow:
    """A row as the ring ran it; the first *cached* tokens of its *prompt* came from a snapshot, and
    so many guesses were *wrong* and taken back."""

    prompt: tuple[int, ...] = ()
    drawn: list[Drawn] = attrs.field(factory=list)
    cached: int = 0
    wrong: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its prompt, and what was drawn."""
        return (*self.prompt, *(each.token for each in self.drawn))


@attrs.frozen
class Claim:
    """The *numbers* that *rank* claims of one tensor (*part*) at one *position* of *row*, in step
    *n* of *epoch*: of what its layers gave (*given*), or of what they received. With *closing* it
    is the head's second pass."""

    epoch: int
    n: int
    rank: int
    closing: bool
    given: bool
    row: int
    position: int
    part: int
    numbers: Fingerprint


@attrs.define
class RingAnswers:
    """Everything that came of one run: the ring's *names*, *strategy*, *bounds*, digest of its
    *model* and sliding *windows*, its rows, and claims in the order of steps. Ranks that were
    *silent* sent nothing of what they gave in so many steps. All of them are places of the ring;
    *ranks* are the roster's, where they are others."""

    names: tuple[str, ...] = ()
    strategy: str = ""
    model: str = ""
    bounds: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    rows: list[RingRow] = attrs.field(factory=list)
    claims: list[Claim] = attrs.field(factory=list)
    batches: int = 0
    silent: dict[int, int] = attrs.field(factory=dict)
    ranks: tuple[int, ...] = ()

    def rank(self, place: int) -> int:
        """The roster's rank of *place*."""
        return self.ranks[place] if self.ranks else place

    def called(self, place: int) -> str:
        """The rank at *place*, for people."""
        return f"rank {self.rank(place)} ({self.names[place]})"


@attrs.define
class _Due:
    """The *steps* and ranks of *epoch* whose fingerprints are still to come. Ranks that hold all
    layers give nothing of a prefill: those steps are *empty*."""

    epoch: int = 0
    steps: set[tuple[int, int]] = attrs.field(factory=set)
    empty: set[int] = attrs.field(factory=set)

    def begins(self, step: dict[str, Any], ring: RingAnswers) -> None:
        """A *step* begins, of which every rank of *ring* is to send numbers."""
        if step["epoch"] != self.epoch:  # an epoch that broke sends no more
            self.epoch = step["epoch"]
            self.steps.clear()
            self.empty.clear()
        if len(ring.bounds) == 2 and not step["decode"]:
            self.empty.add(step["n"])
        self.steps |= {(step["n"], rank) for rank in range(len(ring.names))}

    def came(self, numbers: dict[str, Any]) -> None:
        """A rank sent *numbers*."""
        gave = numbers["given"]["shape"][0] > 0 or numbers["n"] in self.empty
        if gave and not numbers["closing"]:
            self.steps.discard((numbers["n"], numbers["rank"]))


def run_rows(
    ask: Ask, rows: Sequence[AskedRow], *, checked: bool, waiting: Callable[[str], None]
) -> RingAnswers:
    """Have the ring run *rows*. Raises `OperationError` if it does not."""
    answers = RingAnswers(rows=[RingRow() for _ in rows])
    steps: dict[tuple[int, int], tuple[list[list[int | None]], int]] = {}
    due = _Due()
    request = {"checked": checked, "rows": [row.model_dump() for row in rows]}
    for event in ask("verify", request):
        match event["event"]:
            case "waiting":
                waiting(event["text"])
            case "ring":
                answers.names = tuple(event["names"])
                answers.ranks = tuple(event.get("ranks", ()))  # an earlier release has all
                answers.strategy, answers.bounds = event["strategy"], tuple(event["bounds"])
                answers.windows, answers.model = tuple(event["windows"]), event["model"]
            case "row":
                answers.rows[event["row"]].prompt = tuple(event["prompt"])
            case "cached":
                answers.rows[event["row"]].cached = event["tokens"]
            case "token":
                answers.rows[event["row"]].drawn.append(_drawn(event))
            case "left":
                answers.rows[event["row"]].wrong = event.get("wrong", 0)
            case "step":
                steps[event["epoch"], event["n"]] = event["rows"], event["tokens"]
                due.begins(event, answers)
                answers.batches = max(answers.batches, len(event["rows"]))
            case "numbers":
                answers.claims += _claims(event, *steps[event["epoch"], event["n"]])
                due.came(event)
    for _, rank in due.steps:
        answers.silent[rank] = answers.silent.get(rank, 0) + 1
    answers.claims.sort(key=lambda claim: (claim.epoch, claim.n))
    if not all(row.drawn for row in answers.rows):
        raise OperationError("the ring gave a row no token", "Its log may say why.")
    return answers


def _drawn(event: dict[str, Any]) -> Drawn:
    ids, values = tuple(event.get("ids", ())), tuple(event.get("values", ()))
    return Drawn(event["token"], event.get("chosen"), ids, values)


def _claims(
    event: dict[str, Any], rows: Sequence[Sequence[int | None]], tokens: int
) -> Iterator[Claim]:
    for given in (False, True):
        packed = event["given" if given else "received"]
        numbers = unpacked(packed["data"])
        for part in range(packed["shape"][0]):
            for row, first in rows:
                for position in range(tokens):
                    claimed = next(numbers)
                    if row is not None and first is not None:
                        yield Claim(
                            event["epoch"],
                            event["n"],
                            event["rank"],
                            event["closing"],
                            given,
                            row,
                            first + position,
                            part,
                            claimed,
                        )


def unpacked(data: str) -> Iterator[Fingerprint]:
    """The fingerprints in *data*, base64 of f32."""
    return struct.iter_unpack("<3f", base64.b64decode(data))
