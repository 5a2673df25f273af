"""What the scripts of Python clients share: they run in the client's own environment, which has
nothing of sealring's.

A script names each thing that it tries with `feature`, and ends with `run`, which prints one line
of JSON for each: the API that was used, the feature, and why it failed, or nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any, Literal

TINY = os.environ["RING_TINY"]
"""Where the ring of the small trained model serves, without ``/v1``."""

SCRIPTED = os.environ["RING_SCRIPTED"]
"""Where the ring of the model serves whose every answer is known."""

KEY = os.environ["RING_KEY"]
"""The key of both."""

STORY = "Tell me a story about a fox named Pip."
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
"""A PNG of one pixel."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""The arguments of the tool ``get_weather``."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "warm": {"type": "boolean"},
    },
    "required": ["city", "warm"],
    "additionalProperties": False,
}
"""What a structured answer looks like; `City` of the scripts is the same."""

CityName = Literal["Paris", "Rome"]

PATIENCE = 60.0

_features: list[tuple[str, str, Callable[[], Any]]] = []


def feature(api: str, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """The function tries the feature *name* over *api*; it raises what is wrong."""

    def keep(function: Callable[[], Any]) -> Callable[[], Any]:
        _features.append((api, name, function))
        return function

    return keep


def run() -> None:
    """Try everything, or what the arguments name, and tell."""
    for api, name, function in _features:
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        why = ""
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(asyncio.wait_for(function(), PATIENCE))
            else:
                function()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            at = traceback.extract_tb(error.__traceback__)[-1]
            told = " ".join(str(error).split())[:600]
            why = f"{type(error).__name__}: {told} (at {os.path.basename(at.filename)}:{at.lineno})"
            if os.environ.get("RING_VERBOSE"):
                traceback.print_exc()
        print(json.dumps({"api": api, "feature": name, "why": why}), flush=True)


def equal(got: Any, wanted: Any) -> None:
    """Both are the same."""
    if got != wanted:
        raise AssertionError(f"{got!r}, and not {wanted!r}")


def holds(true: Any, what: Any) -> None:
    """Something is true of *what*."""
    if not true:
        raise AssertionError(f"not so: {what!r}")


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], function: Callable[[], Any],
           *words: str) -> Any:  # fmt: skip
    """*function* raises *kind*, and the error's text has the *words*."""
    try:
        got = function()
    except kind as error:
        text = str(error)
        for word in words:
            holds(word.lower() in text.lower(), f"{word!r} in {text}")
        return error
    raise AssertionError(f"no error, but {got!r}")


def is_city(value: Any) -> None:
    """*value* is what `SCHEMA` says."""
    holds(set(value) == {"city", "warm"}, value)
    holds(value["city"] in ("Paris", "Rome") and isinstance(value["warm"], bool), value)


def under_way() -> int:
    """How many requests the scripted ring works on."""
    ask = urllib.request.Request(
        f"{SCRIPTED}/v1/requests", headers={"authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(ask, timeout=PATIENCE) as answer:
        told = json.load(answer)
    rows = told["data"]
    return sum(row["state"] in ("parse", "queued", "prefill", "decode") for row in rows)


def ends() -> None:
    """The ring notices that nobody listens any more."""
    end = time.monotonic() + PATIENCE
    while under_way():
        holds(time.monotonic() < end, "the request goes on")
