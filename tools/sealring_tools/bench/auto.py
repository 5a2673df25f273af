"""How soon a ring with the strategy `auto` answers, beside one with `pp`, and what a trial takes.

Each ring is started, asked at once, and timed from its start to the end of that answer. The ring
with `auto` is then left idle until it has tried tensor parallelism, or said why not: what it was
away for is told. Rings of both strategies take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from sealring.local.ring import LocalNode, local_ring
from sealring_protocol.control.head.trial import UNTRIED
from sealring_tools.bench.measure import Result

PROMPT: Final = "Tell me a story about a fox and a river."
OPTIONS: Final[Mapping[str, str | float]] = {"collectives": "shared-loopback", "guesses": False}
"""Without guesses: the head goes by tokens that follow no guess, and a text that repeats itself has
few of them."""

LOOK_SECONDS: Final = 0.1
CEILING: Final = 1.25
"""What the ratio of the times should be at most: the rings begin alike."""


@attrs.frozen
class AutoSetup:
    """So many *turns* of rings of *ranks*; answers of so many *tokens*; how many *seconds* to wait
    for what the ring says of tensor parallelism."""

    ranks: int = 2
    turns: int = 1
    tokens: int = 48
    seconds: float = 120.0


def measure(setup: AutoSetup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Seconds from the start of a ring to the end of its first answer, medians of both strategies.
    *model* is told as *name*."""
    took: dict[str, list[float]] = {"auto": [], "pp": []}
    for _ in range(setup.turns):
        for strategy, seconds in took.items():
            options: dict[str, str | float] = {**OPTIONS, "strategy": strategy}
            began = time.monotonic()
            with local_ring(setup.ranks, model, options=options) as (head, *_):
                fields = {"prompt": PROMPT, "raw": True, "max_tokens": setup.tokens}
                list(head.ask("generate", fields))
                seconds.append(time.monotonic() - began)
                tell(f"{strategy}: {seconds[-1]:.1f} s from the start to the end of an answer")
                if strategy == "auto":
                    tell(_decided(head, setup.seconds))
    return [
        Result(
            f"{name}, {setup.ranks} ranks, auto, start to answer",
            "s",
            statistics.median(took["auto"]),
            statistics.median(took["pp"]),
            "pp",
            ceiling=CEILING,
        )
    ]


def _decided(head: LocalNode, seconds: float) -> str:
    """What the idle ring of *head* does about tensor parallelism, in words."""
    began, away = time.monotonic(), 0.0
    while time.monotonic() - began < seconds:
        looked = time.monotonic()
        time.sleep(LOOK_SECONDS)
        status: dict[str, Any] = head.status()
        serving = status["state"] == "serving"
        away += 0.0 if serving else time.monotonic() - looked
        if serving and UNTRIED not in status["reason"]:
            idle = time.monotonic() - began
            return f"{idle:.1f} s later, away for {away:.1f} s of it: {status['reason']}"
    return f"nothing was decided within {seconds:.0f} s"
