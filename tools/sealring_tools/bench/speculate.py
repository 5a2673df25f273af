"""One row with guessed tokens in flight: what they gain, and what wrong ones cost.

On a random model an oracle guesses. It knows the answer, and so many of its guesses are spoilt that
a given share of them is right. A ring without guesses, the ring with each share, and one process
of mlx-lm compute the same text, in turns. On GPUs mlx-lm's turns are before the ring is up and
after it has ended, as a rank whose device has another process does not launch ahead.

On the tiny model nobody knows the answer: guesses are looked up in the prompt and the answer so
far. Its texts are those that a look-up is made for (a passage to repeat, a word again and again),
and some in which no two tokens ever stand together twice (counting, a story), where it can only be
in the way. The same ring runs without guesses in turns.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
from sealring.local.reference import pace
from sealring.local.ring import LocalNode, local_ring
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_tools.bench.batch import Case, Side, make_prompts, take_turns
from sealring_tools.bench.measure import Result
from sealring_tools.bench.yardstick import one_process, token_times
from sealring_trio.errors import OperationError

STREAM: Final = "mlx-lm stream_generate"
PLAIN: Final = "the ring without guesses"
_ALONE: Final = Case(0, 0, 1)  # of mlx-lm in one process
_NEXT: Final = 7  # from a right guess to a wrong one

FLOORS: Final[Mapping[tuple[str, float, str], float]] = {
    ("450m bf16", 0.7, STREAM): 1.3,
    ("450m bf16", 0.9, STREAM): 1.6,
    ("25m f32", 0.7, STREAM): 1.3,
    ("25m f32", 0.9, STREAM): 1.6,
    ("450m bf16", 0.0, PLAIN): 0.97,
    ("25m f32", 0.0, PLAIN): 0.97,
    ("8b bf16", 0.7, STREAM): 1.2,
}
"""The least ratio that is aimed at, by model, share of right guesses and yardstick."""

TEXTS: Final[Mapping[str, tuple[str, float | None]]] = {
    "a sentence": ("Say the following again: the fox and the owl went to the river.", 1.2),
    "a passage": (
        "Say the following again: the cat sat on the mat and the dog sat on the log and the bird "
        "sat in the tree by the river.",
        1.2,
    ),
    "a word again": ("Say hello ten times.", 1.2),
    "counting": ("Count to fifty.", None),
    "a story": ("Tell me a story about a fox and a river.", None),
}
"""What the tiny model is asked, and the least gain of looked-up guesses that is aimed at."""


@attrs.frozen
class Setup:
    """Rings of so many *ranks*, *tokens* of an answer, *turns*, and the *shares* of right guesses.
    *layers* is the split among the ranks, by memory where it is empty. *places* is what each rank
    finds in its environment: its GPU, say. *options* are keys of the nodes' configs. Where the
    arithmetic is not *exact*, a text may be another when several tokens are read at once: that is
    told, and guesses are of less use from there on."""

    ranks: int = 2
    shares: tuple[float, ...] = (0.0, 0.6, 0.7, 0.8, 0.9)
    tokens: int = 128
    turns: int = 5
    layers: tuple[int, ...] = ()
    places: Sequence[Mapping[str, str]] = ()
    options: Mapping[str, str | float] = attrs.field(factory=dict)
    exact: bool = True


def measure(setup: Setup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second of one row, medians of alternating turns, with an oracle's guesses. *model*
    is told as *name*. Where each rank has a device, mlx-lm's is the mean of its medians before and
    after. Raises `OperationError`."""
    case = Case(setup.ranks, 1, 1)
    (text,) = make_prompts(1, 24)
    ids = Tokenizer(model).encode(text)
    stream: dict[Side, Callable[[], float]] = {}
    theirs: list[float] = []

    def alone() -> None:
        with one_process(model) as one:
            side = {(STREAM, _ALONE): partial(one.pace, [ids], setup.tokens, stream=True)}
            theirs.extend(take_turns(side, setup.turns, tell).values())

    if setup.places:
        alone()
    with contextlib.ExitStack() as stack:
        tell("bringing everybody up")
        if not setup.places:
            one = stack.enter_context(one_process(model))
            stream[STREAM, _ALONE] = partial(one.pace, [ids], setup.tokens, stream=True)
        (head, *_) = stack.enter_context(
            local_ring(setup.ranks, model, setup.layers, options=setup.options, places=setup.places)
        )
        _, done = one_answer(head, text, setup.tokens, guesses=())
        answer: Sequence[int] = done["token_ids"]
        sides: dict[Side, Callable[[], float]] = {
            **stream,
            (PLAIN, case): partial(same_answer, head, text, answer, (), None),
        }
        for share in setup.shares:
            guesses = spoilt(answer, share)
            differs = None if setup.exact else tell
            sides[_named(share), case] = partial(same_answer, head, text, answer, guesses, differs)
        found = take_turns(sides, setup.turns, tell)
    if setup.places:
        alone()
        found[STREAM, _ALONE] = statistics.mean(theirs)
    return [
        Result(
            f"{name}, {case.ranks} ranks, {_named(share)}",
            "tokens/s",
            found[_named(share), case],
            found[yardstick, _ALONE if yardstick == STREAM else case],
            yardstick,
            FLOORS.get((name, share, yardstick)),
        )
        for share in setup.shares
        for yardstick in (STREAM, PLAIN)
    ]


def measure_lookup(setup: Setup, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second of the tiny model's answers with looked-up guesses, beside the same ring
    without."""
    sides: dict[Side, Callable[[], float]] = {}
    case = Case(setup.ranks, 1, 1)
    with local_ring(setup.ranks, tiny.path(), options=setup.options) as (head, *_):
        for about, (text, _) in TEXTS.items():
            for guesses, side in ((None, about), ((), f"{about}, without")):
                sides[side, case] = partial(_chat, head, text, guesses)
        found = take_turns(sides, setup.turns, tell)
    return [
        Result(
            f"tiny, {case.ranks} ranks, {about}",
            "tokens/s",
            found[about, case],
            found[f"{about}, without", case],
            PLAIN,
            floor,
        )
        for about, (_, floor) in TEXTS.items()
    ]


def spoilt(answer: Sequence[int], share: float) -> tuple[int, ...]:
    """*answer*, of which only a *share* is left as it is: the same places each time."""
    chance = Random(str(share))
    return tuple(token if chance.random() < share else token ^ _NEXT for token in answer)


def _named(share: float) -> str:
    return f"{share:.0%} of guesses right"


def same_answer(
    head: LocalNode,
    text: str,
    answer: Sequence[int],
    guesses: tuple[int, ...],
    differs: Callable[[str], None] | None,
) -> float:
    """The pace of the ring with *guesses*. If they change the *answer*, *differs* is told; if there
    is none, raises `OperationError`."""
    found, done = one_answer(head, text, len(answer), guesses=guesses)
    ids = done["token_ids"]
    if ids == answer:
        return found
    if differs is None:
        raise OperationError("guesses changed a text", "This is a fault of sealring: report it.")
    at = next((n for n, pair in enumerate(zip(ids, answer, strict=False)) if len({*pair}) > 1), 0)
    differs(f"from token {at} on the text is another, for a batch of another shape was computed")
    return found


def _chat(head: LocalNode, text: str, guesses: tuple[int, ...] | None) -> float:
    return one_answer(head, text, 128, raw=False, guesses=guesses)[0]


def one_answer(
    head: LocalNode,
    text: str,
    tokens: int,
    *,
    raw: bool = True,
    guesses: tuple[int, ...] | None,
) -> tuple[float, dict[str, Any]]:
    """The pace of one answer, and its last event."""
    events: list[dict[str, Any]] = []
    request = {"prompt": text, "raw": raw, "max_tokens": tokens}
    times = token_times(_kept(head.ask("generate", request | {"guesses": guesses}), events))
    return pace(times), events[-1]


def _kept(events: Any, kept: list[dict[str, Any]]) -> Any:
    for event in events:
        kept.append(event)
        yield event
