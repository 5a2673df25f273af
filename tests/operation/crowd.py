"""Clients of a ring that loses machines.

    with machines(3, guests=1) as (*ring, guest):
        key = begin(ring)
        listeners = [Listener(partial(streamed, ring, guest, key, body(n, 200))) for n in range(8)]
        ring[0].kill()
        for listener in listeners: ...

Each stream is asked for by the shipped client (`sealring_client`), with the URLs of all machines. A
listener keeps the times of what it hears, so that its longest silence is known.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import httpx2
from openai import OpenAI
from sealring_client import RingClient

from tests.operation.machines import API_PORT, Machine

PATIENCE: Final = 180.0
"""Seconds after which a stream has failed."""

QUESTIONS: Final = (
    "Tell me a story about a lighthouse.",
    "Count as far as you can.",
    "What is a ring of machines?",
    "Write a letter to a friend.",
    "Name things that are blue.",
    "How does a clock work?",
    "Describe a walk in the rain.",
    "What would you take to an island?",
)


def begin(ring: Sequence[Machine]) -> str:
    """Start *ring* with APIs that every machine reaches. The key for them."""
    head = ring[0]
    for machine in ring:
        machine.configure(api=f"{machine.address}:{API_PORT}", min_ranks=1)
    made = head.run("apikey", "new", "crowd", "--json", "--config", head.config)
    assert made.code == 0, made.err
    for machine in ring:
        machine.start()
    for machine in ring:
        said = "is ready" if machine is head else "passed on to the head"
        machine.wait_for_log(said, PATIENCE)
    key: str = json.loads(made.out)["key"]
    return key


def urls(ring: Sequence[Machine], first: int = 0) -> list[str]:
    """Where the machines of *ring* answer clients, machine *first* before the others."""
    turned = (*ring[first:], *ring[:first])
    return [f"http://{machine.address}:{API_PORT}" for machine in turned]


def body(number: int, tokens: int) -> dict[str, Any]:
    """What stream *number* asks: *tokens* drawn with a seed."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": 1000 + number,
        "temperature": 0.8,
    }


@attrs.define(eq=False)
class Listener:
    """One stream, read in a thread of its own by *read*, which gives its texts."""

    read: Callable[[], Iterator[str]]
    text: str = ""
    times: list[float] = attrs.field(factory=list)
    """When each part of the text came, by the monotonic clock."""
    fault: BaseException | None = None
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for part in self.read():
                self.text += part
                self.times.append(time.monotonic())
        except BaseException as error:  # noqa: BLE001  whatever it is, the test says so
            self.fault = error

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def result(self, seconds: float = PATIENCE) -> str:
        """Its whole text. Raises what went wrong, or `TimeoutError`."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"a stream has not ended, with {len(self.times)} parts so far")
        if self.fault is not None:
            raise self.fault
        return self.text

    def silence(self, begin: float, end: float) -> float:
        """Its longest time without a part, in seconds, between the times *begin* and *end*."""
        times = [begin, *(at for at in self.times if begin < at < end)]
        return max((later - at for at, later in itertools.pairwise(times)), default=0.0)


def streamed(
    ring: Sequence[Machine], guest: Machine, key: str, asked: dict[str, Any], first: int = 0
) -> Iterator[str]:
    """The parts of the text that the shipped client has on the machine *guest*, which asks machine
    *first* of *ring* at first."""
    with (
        guest.inside(),
        RingClient(urls(ring, first), key, resume_seconds=PATIENCE) as client,
    ):
        for event in client.stream("/v1/chat/completions", asked):
            assert "error" not in event, event
            for choice in event.get("choices", ()):
                if part := choice["delta"].get("content"):
                    yield part


def plain(
    ring: Sequence[Machine], guest: Machine, key: str, asked: dict[str, Any], first: int
) -> Iterator[str]:
    """The same with the official client of OpenAI's API, which knows machine *first* alone and
    comes back to nothing."""
    (url, *_) = urls(ring, first)
    with guest.inside(), OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        options = dict(asked)
        more = {"ignore_eos": options.pop("ignore_eos")}
        stream = client.chat.completions.create(**options, stream=True, extra_body=more)
        for event in stream:
            for choice in event.choices:
                if choice.delta.content:
                    yield choice.delta.content


def alone(
    ring: Sequence[Machine], guest: Machine, key: str, asked: dict[str, Any], first: int = 0
) -> str:
    """The text of *asked* in one piece, from machine *first* of *ring*."""
    headers = {"authorization": f"Bearer {key}"}
    url = urls(ring, first)[0]
    with guest.inside(), httpx2.Client(timeout=PATIENCE, trust_env=False) as client:
        answer = client.post(f"{url}/v1/chat/completions", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def head_of(ring: Sequence[Machine], guest: Machine, key: str) -> Machine:
    """The machine of *ring* that is head, as the first says that answers requests."""
    headers = {"authorization": f"Bearer {key}"}
    with guest.inside(), httpx2.Client(timeout=1.0, trust_env=False) as client:
        for url in urls(ring):
            with contextlib.suppress(httpx2.HTTPError):
                found = client.get(f"{url}/v1/cluster", headers=headers)
                if found.status_code == 200:
                    name = found.json()["ranks"][0]["name"]
                    return next(machine for machine in ring if machine.name == name)
    raise LookupError("no machine says who is head")


def all_there(ring: Sequence[Machine]) -> bool:
    """Whether every machine of *ring* serves, or is a witness that nothing is in the way of."""
    try:
        return all(map(_is_there, ring))
    except Exception:  # noqa: BLE001  a node that is starting has no socket yet
        return False


def _is_there(machine: Machine) -> bool:
    facts = machine.status()
    return facts["state"] == "serving" or bool(facts.get("witness") and not facts["why"])
