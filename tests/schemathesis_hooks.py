"""Bounds what Schemathesis' requests make a ring generate, and sends a part of them to be answered:
random model names would all be refused alike."""

from __future__ import annotations

from typing import Any

import schemathesis

IDS = 100

MOST = 3
"""Tokens of an answer, and choices of a request."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Replace what would take long in the body of *case*, and most names of models."""
    body = case.body
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return
    body["model"] = "tiny" if len(body["model"]) % 8 else body["model"]
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name, -1)
        if value is None or (isinstance(value, (int, float)) and (value > MOST or value == -1)):
            body[name] = MOST
    if isinstance(body.get("n"), int) and body["n"] > MOST:
        body["n"] = MOST
    if isinstance(body.get("suffix"), str):
        body["suffix"] = ""  # the tiny model fills no gaps
    for name in ("prompt", "stop_token_ids"):
        if name in body:
            body[name] = _known(body[name])


def _known(value: Any) -> Any:
    """*value* with ids that the tiny model's vocabulary has."""
    if isinstance(value, list):
        return [_known(each) for each in value[:8]]
    return value % IDS if isinstance(value, int) and not isinstance(value, bool) else value
