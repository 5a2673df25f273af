"""What `sealring plan` says, beside what rings give in the same minutes.

A ring of one and a ring of two ranks of this machine take turns with one stream. Then both heads
are asked what they measured meanwhile: for the way that each runs, and by the ring of two for its
first rank alone. What a plan says without any node, by some layers that it runs itself, is taken
after each turn. Nothing is guessed ahead, as a plan counts tokens without guesses. So a ratio is
off by what the plan has wrong, and less by an hour's other work.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring.files.models import engine_info, structure
from sealring.forecast import Workload, ways
from sealring.local.paces import known_machines
from sealring.local.ring import LocalNode, local_ring
from sealring_tools.bench.measure import Result
from sealring_tools.bench.yardstick import token_times
from sealring_trio.errors import OperationError
from sealring_trio.files.models import describe_model

PROMPT: Final = "Tell me a story about a fox and a river."
OPTIONS: Final = {"guesses": False}
WARM: Final = 4
"""Tokens of an answer before the first turn."""

FLOOR: Final = 0.8
CEILING: Final = 1.2
"""What the ratio of a figure that is no estimate should be, at least and at most."""


@attrs.frozen
class PlanSetup:
    """So many *turns*, with so many *tokens* each. *places* is what each rank finds in its
    environment."""

    turns: int = 5
    tokens: int = 64
    places: Sequence[Mapping[str, str]] = ()


def measure(setup: PlanSetup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second of one stream, by a plan and by a ring, over all turns. *model* is told as
    *name*."""
    say = _Plan(model)
    with contextlib.ExitStack() as stack:
        tell("bringing a ring of one and one of two up")
        rings = {
            ranks: stack.enter_context(
                local_ring(ranks, model, options=OPTIONS, places=setup.places)
            )[0]
            for ranks in (1, 2)
        }
        for head in rings.values():
            _ask(head, WARM)
        took: dict[int, list[float]] = {1: [], 2: []}
        estimates: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(setup.turns):
            for ranks, head in rings.items():
                took[ranks].append(_ask(head, setup.tokens))
            for ranks, said in say(None).items():
                estimates[ranks].append(said)
            told = ", ".join(
                f"{_count(ranks)} {(setup.tokens - 1) / took[ranks][-1]:.1f}"
                f" (estimate {estimates[ranks][-1]:.1f})"
                for ranks in rings
            )
            tell(f"turn {turn + 1} of {setup.turns}, tokens/s: {told}")
        of_one, of_two = (say(head.status()) for head in rings.values())
    given = {
        ranks: setup.turns * (setup.tokens - 1) / sum(seconds) for ranks, seconds in took.items()
    }
    found = [
        (1, "measured", of_one[1]),
        (2, "measured", of_two[2]),
        (1, "estimate by a ring of two", of_two[1]),
        (1, "estimate without a node", statistics.median(estimates[1])),
        (2, "estimate without a node", statistics.median(estimates[2])),
    ]
    results = []
    for ranks, how, said in found:
        bounds = (FLOOR, CEILING) if how == "measured" else ()
        text = f"{name}, {_count(ranks)}, {how}"
        results.append(Result(text, "tokens/s", said, given[ranks], "the ring", *bounds))
    return results


class _Plan:
    """What a plan says of the *model*."""

    def __init__(self, model: Path) -> None:
        self._info = describe_model(model)
        self._structure = structure(self._info)

    def __call__(self, facts: Mapping[str, Any] | None) -> dict[int, float]:
        """Tokens a second of one stream, by the number of machines: of the first alone, and of all
        in a pipeline. By the *facts* of a head, or without any for two machines like this one."""
        asked = Workload(1024, 1)
        rooms = [1 << 34] * (2 if facts is None else int(facts["world"]))
        known = known_machines(self._info, self._structure, rooms, facts, 2)
        engine = engine_info(self._info, self._structure, rooms[0])
        found = ways(engine, self._structure.costs, known.machines, known.network, asked)
        first = known.machines[0].name
        return {
            len(way.machines): way.one
            for way in found
            if way.strategy == "pp" or way.machines == (first,)
        }


def _count(ranks: int) -> str:
    return "one rank" if ranks == 1 else "two ranks"


def _ask(head: LocalNode, tokens: int) -> float:
    """Seconds from the first of so many *tokens* to the last. Raises `OperationError` if the model
    ends sooner."""
    fields = {"prompt": PROMPT, "raw": True, "max_tokens": tokens}
    times = token_times(head.ask("generate", fields))
    if len(times) < tokens:
        raise OperationError(
            f"the model ended an answer after {len(times)} of {tokens} tokens",
            "Ask for fewer --tokens, or take another model.",
        )
    return times[-1] - times[0]
