"""One streamed answer of the HTTP API: its pieces as they come, and what is known of it afterwards.

While nothing has come yet, the head breaks its silence with comments (`api.streaming`). Then it is
asked what it waits for, so that a person is told.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import attrs
import httpx2

from sealring_trio.local import client

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"

HEALTH_SECONDS: Final = 5.0

Pieces = Generator[tuple[str, str]]
"""A kind, ``content``, ``reasoning`` or ``waiting``, and a text. The last is not of the answer."""


@attrs.define
class Answer:
    """What has come of one answer.

    *finish* is OpenAI's word for how it ended; empty if it did not. *usage* is as the API tells it,
    at the end. Times are seconds of `time.perf_counter`.
    """

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    began: float = attrs.field(factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the answer; 0 if it was broken off before the head told them."""
        told = self.usage.get("completion_tokens", 0)
        return told if isinstance(told, int) else 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first; 0 if unknown, as when all came at once."""
        took = self.last - self.first if self.first is not None else 0.0
        return max(0, self.tokens - 1) / took if took > 0 else 0.0

    @property
    def first_s(self) -> float | None:
        """Seconds to the first piece; None if there was none."""
        return None if self.first is None else self.first - self.began

    @property
    def took_s(self) -> float:
        """Seconds from the question to the latest piece."""
        return max(0.0, self.last - self.began)

    def told(self, names: Sequence[str]) -> str:
        """How it came, in a few words; *names* are those of the machines that have the layers."""
        told = [f"{self.tokens} tokens"] if self.tokens else []
        if self.tokens_per_s:
            told.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.first_s is not None:
            told.append(f"first after {self.first_s:.1f} s")
        if names:
            told.append(f"by {', '.join(names)}")
        if self.finish == "length":
            told.append("cut off at the most tokens")
        return ", ".join(told)

    def take(self, kind: str, piece: str) -> tuple[str, str]:
        """Add *piece*."""
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        if kind == "reasoning":
            self.reasoning += piece
        else:
            self.content += piece
        return kind, piece


def stream(
    http: httpx2.Client, url: str, path: str, body: Mapping[str, Any], answer: Answer
) -> Pieces:
    """The pieces of the answer to *body*, which also become *answer*. Closing the iterator
    withdraws the request. Raises `OperationError` when the head at *url* does not answer."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        timeout = client.patience(client.SILENCE_SECONDS)
        with http.stream("POST", path, json=asked, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                raise client.refused(response)
            for line in client.lines(response):
                if line.startswith(":") and answer.first is None:
                    yield "waiting", _waits_for(http)
                if (event := client.event_of(line)) is None:
                    continue
                if "error" in event:
                    raise client.broken_off(event)
                answer.usage = event.get("usage") or answer.usage
                for choice in event["choices"]:
                    answer.finish = choice.get("finish_reason") or answer.finish
                    for kind, piece in _pieces(choice):
                        yield answer.take(kind, piece)
            if not answer.finish:
                raise client.broken_off({"error": "the head went away in the middle of the answer"})
    except httpx2.HTTPError as error:
        raise client.unreachable(url, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise client.no_api(url) from None


def _pieces(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts in *choice*, of a chat or of a completion."""
    delta = choice.get("delta", {})
    named = (
        ("reasoning", delta.get("reasoning_content")),
        ("content", delta.get("content")),
        ("content", choice.get("text")),
    )
    return [(kind, encodable(text)) for kind, text in named if isinstance(text, str) and text]


def encodable(text: str) -> str:
    """*text*, in which lone surrogates, which JSON and terminals can bring, are "?": nothing can
    send them, and no file hold them."""
    return text.encode("utf-8", "replace").decode()


def machines(http: httpx2.Client) -> list[str]:
    """The names of the machines that have layers; none if the head does not say."""
    try:
        ranks = http.get("/v1/cluster", timeout=HEALTH_SECONDS).json()["ranks"]
        return [str(rank["name"]) for rank in ranks if rank["layers"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError):
        return []


def _waits_for(http: httpx2.Client) -> str:
    """What the head waits for, in words."""
    try:
        health = http.get("/health", timeout=HEALTH_SECONDS).json()
        faults = [str(why["what"]) for why in health["why"]] or list(map(str, health["faults"]))
    except (httpx2.HTTPError, ValueError, LookupError, TypeError):
        return "waiting for the head"
    return "; ".join(each.rstrip(".") for each in faults) or "waiting for the first token"
