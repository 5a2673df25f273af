"""A load on an HTTP API: a number of requests, of which some run at once, from several users.

Each request is made from its number alone, so any of them can be made again, alone, and must give
the same answer. Every other one draws at a temperature, from a seed of its own. No two prompts
begin alike, since a shared prefix would be read from the cache and not measured.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import httpx2
import trio
from sealring.local import client
from sealring_client import event_of

_WORDS: Final = re.findall(
    r"\w+",
    "followed laughing together somebody tomorrow penguins squirrel hedgehog feathers elephant "
    "language machines opposite princess sentence shepherd alphabet bathroom chapters cupboard "
    "gardener something favourite questions elephants grassland backwards sentences squirrels",
)
"""Words that the model that ships with sealring has one token for, so that long texts fit into its
context."""

_ENDING: Final = " Tell me a story."


@attrs.frozen
class Load:
    """*chars* is the size of a prompt, *rings* over how many it is spread."""

    name: str
    requests: int
    concurrency: int
    users: int = 1
    chars: int = 200
    stream: bool = True
    max_tokens: int = 64
    rings: int = 1


SCENARIOS: Final = {
    load.name: load
    for load in (
        Load("streaming", 30, 5),
        Load("whole", 20, 5, stream=False),
        Load("two-models", 50, 10, rings=2),
        Load("burst", 60, 20),
        Load("users", 40, 15, users=10),
        Load("large", 100, 100, chars=10_000, max_tokens=32),
    )
}
"""Loads with names, each of which must go without an error."""


@attrs.frozen
class Target:
    """An API, the model it has, and the keys of its users, which are taken in turn."""

    url: str
    model: str
    keys: tuple[str, ...]


@attrs.frozen
class Ask:
    """One request: its *number*, where it goes, whose it is, and its body."""

    number: int
    target: Target
    key: str
    body: dict[str, Any]


@attrs.frozen
class Outcome:
    """What came of it, as the client saw it: the answer's *text* and why it ended, or an *error*;
    seconds to its first text and to its end."""

    ask: Ask
    id: str = ""
    text: str = ""
    finish: str = ""
    error: str = ""
    first_s: float | None = None
    total_s: float = 0.0

    @property
    def answer(self) -> tuple[str, str]:
        """What must be the same whenever the request is made."""
        return self.text, self.finish


def asks(load: Load, targets: Sequence[Target]) -> list[Ask]:
    """The requests of *load*, spread over the *targets*."""
    return [_ask(load, number, targets[number % len(targets)]) for number in range(load.requests)]


def _ask(load: Load, number: int, target: Target) -> Ask:
    key = target.keys[number % len(target.keys)] if target.keys else ""
    if not target.keys and load.users > 1:
        key = f"user-{number % load.users}"  # where no key is needed, users take turns by any
    drawn = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt(number, load.chars)}],
        "max_completion_tokens": load.max_tokens,
        "stream": load.stream,
        **drawn,
    }
    return Ask(number, target, key, body)


def prompt(number: int, chars: int) -> str:
    """Text number *number*, of *chars* characters or a little more."""
    words = random.Random(number)
    text = f"Request {number}:"
    while len(text) + len(_ENDING) < chars:
        text += f" {words.choice(_WORDS)}"
    return text + _ENDING


async def run(todo: Sequence[Ask], concurrency: int) -> list[Outcome]:
    """Send all of *todo*, *concurrency* at once; returns their outcomes in order."""
    outcomes: list[Outcome | None] = [None] * len(todo)
    left = iter(enumerate(todo))
    async with opened(todo) as clients, trio.open_nursery() as nursery:
        for _ in range(min(concurrency, len(todo))):
            nursery.start_soon(_work, clients, left, outcomes)
    return [outcome for outcome in outcomes if outcome is not None]


Clients = dict[tuple[str, str], httpx2.AsyncClient]


def opened(todo: Sequence[Ask]) -> _Opened:
    """A client for each user of each API of *todo*, closed with the block."""
    return _Opened({(ask.target.url, ask.key) for ask in todo})


class _Opened:
    def __init__(self, users: set[tuple[str, str]]) -> None:
        everybody = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._clients = {
            (url, key): httpx2.AsyncClient(**client.settings(url, key), limits=everybody)
            for url, key in users
        }

    async def __aenter__(self) -> Clients:
        return self._clients

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            for each in self._clients.values():
                await each.aclose()


async def _work(
    clients: Clients, left: Iterator[tuple[int, Ask]], outcomes: list[Outcome | None]
) -> None:
    for place, ask in left:
        outcomes[place] = await send(clients[ask.target.url, ask.key], ask)


async def send(http: httpx2.AsyncClient, ask: Ask) -> Outcome:
    """The outcome of *ask*. Errors of the server or the network are in it, and not raised."""
    began = time.perf_counter()
    try:
        if ask.body["stream"]:
            return await _streamed(http, ask, began)
        return await _whole(http, ask, began)
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        return Outcome(ask, error=what, total_s=time.perf_counter() - began)


async def _whole(http: httpx2.AsyncClient, ask: Ask, began: float) -> Outcome:
    response = await http.post("/v1/chat/completions", json=ask.body)
    total = time.perf_counter() - began
    if response.status_code != 200:
        return _refused(ask, response, total)
    body = response.json()
    (choice,) = body["choices"]
    text = choice["message"]["content"]
    return Outcome(ask, body["id"], text, choice["finish_reason"], total_s=total)


async def _streamed(http: httpx2.AsyncClient, ask: Ask, began: float) -> Outcome:
    name, parts, finish, error, first = "", [], "", "", None
    async with http.stream("POST", "/v1/chat/completions", json=ask.body) as response:
        if response.status_code != 200:
            await response.aread()
            return _refused(ask, response, time.perf_counter() - began)
        async for line in response.aiter_lines():
            if (event := event_of(line)) is None:
                continue
            if "error" in event:
                error = str(event["error"]["message"])  # and nothing follows
                continue
            name = event["id"]
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    parts.append(piece)
                finish = choice["finish_reason"] or finish
    total = time.perf_counter() - began
    if not (finish or error):
        error = "the stream ended early"
    return Outcome(ask, name, "".join(parts), finish, error, first, total)


def _refused(ask: Ask, response: httpx2.Response, total: float) -> Outcome:
    return Outcome(
        ask, error=f"{response.status_code}: {client.message_of(response)}", total_s=total
    )
