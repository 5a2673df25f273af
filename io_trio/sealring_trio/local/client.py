"""The client's end of the HTTP API, for the commands that use one: plain calls and their errors.

The API speaks OpenAI's dialect; what a client has to know of it beyond HTTP is how errors look and
how a stream is cut into events, and both are here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import httpx2

from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.config import DEFAULT_API

DEFAULT_URL: Final = f"http://{DEFAULT_API}"
KEY_VARIABLES: Final = ("SEALRING_API_KEY", "OPENAI_API_KEY")

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 900.0
"""Silence after which an answer is given up. The head itself gives up earlier."""

_DATA: Final = "data: "
_DONE: Final = "[DONE]"


def api_key(given: str | None) -> str:
    """The key to present: the one *given*, or the environment's, or none."""
    if given is not None:
        return given
    return next((value for name in KEY_VARIABLES if (value := os.environ.get(name))), "")


def base_url(given: str) -> str:
    """*given* without what people add to it. Raises `UserError` when it is no URL."""
    text = given if "://" in given else f"http://{given}"
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"'{given}' is no URL of an API", f"Give one like {DEFAULT_URL}")
    return text.rstrip("/").removesuffix("/v1")


def settings(url: str, key: str) -> dict[str, Any]:
    """The arguments of an HTTP client for the API at *url*, with *key* if there is one."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    # Proxies of the environment are for the world outside, not for machines of one's own.
    return {"base_url": url, "headers": headers, "timeout": timeout, "trust_env": False}


def told(response: httpx2.Response) -> str:
    """The message of an error answer."""
    return _error(response).get("message") or f"it answered {response.status_code}"


def _error(response: httpx2.Response) -> dict[str, str]:
    try:
        error = response.json()["error"]
        return {name: str(value) for name, value in error.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def unreachable(url: str, error: httpx2.HTTPError) -> OperationError:
    """The error for a server at *url* that nobody reaches."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return OperationError(
            f"no head answers at {url}", "Start one: sealring serve. Or give its address: --url"
        )
    return OperationError(
        f"the head at {url} went away: {error or type(error).__name__}", "Try again."
    )


def refused(response: httpx2.Response) -> OperationError:
    """The error for a request that the API refused."""
    message = told(response)
    if response.status_code == 401:
        return OperationError(message, f"Give it with --api-key, or in {KEY_VARIABLES[0]}.")
    if _error(response).get("code") == "context_length_exceeded":
        return OperationError(message, "Ask for less; in a conversation, begin again: /reset")
    return OperationError(message, "The head's log says more.")


def broken_off(event: dict[str, Any]) -> OperationError:
    """The error for an answer that ended with *event*, an error."""
    error = event["error"]
    known = error.get("message") if isinstance(error, dict) else error
    message = str(known or "the answer broke off")
    return OperationError(message, "The head's log says more. Ask again.")


def model_at(client: httpx2.Client, url: str) -> dict[str, Any]:
    """What the server at *url* tells of its model; its name is under ``id``. Raises
    `OperationError`."""
    try:
        response = client.get("/v1/models")
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from None
    if response.status_code != 200:
        raise refused(response)
    try:
        card = response.json()["data"][0]
        return {**card, "id": str(card["id"])}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise no_api(url) from None


def no_api(url: str) -> OperationError:
    """The error for a server at *url* that does not speak OpenAI's dialect."""
    return OperationError(
        f"what answers at {url} is no such API", "Give the head's address with --url."
    )


def event_of(line: str) -> dict[str, Any] | None:
    """The event in a *line* of a stream; None for a line that has none."""
    if not line.startswith(_DATA) or line == _DATA + _DONE:
        return None
    event: dict[str, Any] = json.loads(line.removeprefix(_DATA))
    return event


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events in the *lines* of a stream."""
    for line in lines:
        if (event := event_of(line)) is not None:
            yield event
