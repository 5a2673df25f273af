"""What it costs to hold an answer to a form: the same ring answers with a grammar and without, in
turns.

The grammar ``(.|\\n)*`` allows every text, so both sides draw the same tokens, and the difference
is all that masks cost: the tokens read on the CPU, the bits made there, and their part of the
graph. A grammar of JSON shows what bits of a real form cost beside that; its texts are others, of
as many tokens. Tokens are counted at a client of the API.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
from sealring.local import client
from sealring.local.reference import pace
from sealring.local.ring import LocalApi, local_api
from sealring_tools.bench.batch import Case, Side, take_turns
from sealring_tools.bench.measure import Result
from sealring_trio.errors import OperationError

FREE: Final = "the same ring without"
FLOOR: Final = 0.97

FORMS: Final[Mapping[str, Any]] = {
    "any text": {"regex": r"(.|\n)*"},
    "JSON": {"json": {"type": "array", "items": {"type": "string"}, "minItems": 1000}},
}
"""What the answers are held to."""


@attrs.frozen
class Setup:
    """Rings of so many *ranks*, *tokens* of an answer, and *turns* of each side."""

    ranks: int = 1
    tokens: int = 128
    turns: int = 5


def measure(setup: Setup, model: Path, name: str, tell: Callable[[str], None]) -> list[Result]:
    """Tokens a second of one row with each of `FORMS`, medians of alternating turns. *model* is
    told as *name*. Raises `OperationError`."""
    case = Case(setup.ranks, 1, 1)
    with local_api(setup.ranks, model, report=tell) as api:
        sides: dict[Side, Callable[[], float]] = {
            (side, case): partial(_pace, api, setup.tokens, form)
            for side, form in {FREE: None, **FORMS}.items()
        }
        found = take_turns(sides, setup.turns, tell)
    return [
        Result(
            f"{name}, {setup.ranks} rank{'s' if setup.ranks != 1 else ''}, {side}",
            "tokens/s",
            found[side, case],
            found[FREE, case],
            FREE,
            FLOOR,
        )
        for side in FORMS
    ]


def _pace(api: LocalApi, tokens: int, form: Any) -> float:
    """The pace of one streamed answer that is held to *form*."""
    body: dict[str, Any] = {
        "model": api.model,
        "prompt": "Once upon a time there was a ring",
        "max_tokens": tokens,
        "min_tokens": tokens,
        "temperature": 1,
        "seed": 1,
        "logprobs": 0,  # so that each token has a chunk, whatever its text
        "stream": True,
    }
    if form is not None:
        body["structured_outputs"] = form
    times: list[float] = []
    with (
        httpx2.Client(**client.settings(api.url, "")) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: {"):
                told = json.loads(line.removeprefix("data: "))
                if "error" in told:
                    raise OperationError(told["error"]["message"], "See the log of the head.")
                columns = told["choices"][0]["logprobs"] if told["choices"] else None
                times += [time.perf_counter()] * len((columns or {"tokens": ()})["tokens"])
    if len(times) < tokens // 2:
        raise OperationError(f"only {len(times)} tokens came", "Report it.")
    return pace(times)
