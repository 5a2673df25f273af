"""One streamed answer of the HTTP API: its pieces as they come, and what is known of it afterwards.

While nothing has come yet, the head breaks its silence with comments (`http.streaming`). Then, and
when the head itself falls silent, it is asked what it does, so that a person is told.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

import attrs
import httpx2
from sealring_protocol.limits import MAX_TOKENS

from sealring.local import client
from sealring.local.client import HeadClient

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"

ASK_SECONDS: Final = 3.0
"""Seconds that a head has to say what it does. A person waits, and it takes no work."""

MAX_ANSWER: Final = 64 << 20
"""Characters of an answer. A million tokens have some 5 million."""

_WORDS: Final = 1000
"""Characters of what the head says that it does."""

Pieces = Generator[tuple[str, str]]
"""A kind, ``content`` or ``reasoning``, and a text."""

Tell = Callable[[str], None]
"""Is told what is waited for."""


@attrs.define
class StreamedAnswer:
    """What has come of one answer.

    *finish* is OpenAI's word for how it ended; empty if it did not. It is *limited* if max_tokens
    was asked for. *usage* is as the API tells it, at the end. Times are seconds
    of `time.perf_counter`.
    """

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    limited: bool = False
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    began: float = attrs.field(factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the answer; 0 if it was broken off before the head told them."""
        return self.count("completion_tokens")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 if unknown."""
        return self.count("prompt_tokens")

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt that the head knew already."""
        return self.count("prompt_tokens_details", "cached_tokens")

    def count(self, *path: str) -> int:
        """The number at *path* in the usage; 0 for what is none, as any server may say."""
        told: Any = self.usage
        for name in path:
            told = told.get(name) if isinstance(told, dict) else None
        return told if isinstance(told, int) and 0 <= told <= MAX_TOKENS else 0

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
        if self.cut_off:
            told.append(self.cut_off)
        return ", ".join(told)

    @property
    def cut_off(self) -> str:
        """Where it was cut off, in words; empty if it has an end."""
        if self.finish != "length":
            return ""
        return "cut off at max_tokens" if self.limited else "cut off where the context ends"

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
    http: HeadClient,
    url: str,
    path: str,
    body: Mapping[str, Any],
    answer: StreamedAnswer,
    tell: Tell,
) -> Pieces:
    """The pieces of the answer to *body*, which also become *answer*; *tell* hears what the head
    does while none comes. Closing the iterator withdraws the request. Raises `OperationError` when
    the head at *url* does not answer."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer.limited = "max_tokens" in body or "max_completion_tokens" in body
    name = f"sealring-{secrets.token_hex(8)}"
    more: dict[str, Any] = {
        "headers": {"x-request-id": name},
        "timeout": client.patience(client.SILENCE_SECONDS),
    }

    def look() -> None:
        tell(_doing(http, name, begun=answer.first is not None))

    try:
        with http.noticing(look), http.stream("POST", path, json=asked, **more) as response:
            if response.status_code != 200:
                end = time.monotonic() + client.CARD_SECONDS
                raise client.refused(client.whole(response, end))
            for line in client.lines(response):
                if line.startswith(":") and answer.first is None:
                    look()
                if (event := client.event_of(line)) is None:
                    continue
                if "error" in event:
                    raise client.broken_off(event)
                if isinstance(usage := event.get("usage"), dict):
                    answer.usage = usage
                for choice in event["choices"]:
                    answer.finish = choice.get("finish_reason") or answer.finish
                    for kind, piece in _pieces(choice):
                        yield answer.take(kind, piece)
                if len(answer.content) + len(answer.reasoning) > MAX_ANSWER:
                    raise client.broken_off({"error": "the answer does not end"})
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


def machines(http: HeadClient) -> list[str]:
    """The names of the machines that have layers; none if the head does not say."""
    try:
        return [str(rank["name"]) for rank in _told(http, "/v1/cluster")["ranks"] if rank["layers"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _doing(http: HeadClient, name: str, *, begun: bool) -> str:
    """What the head does with the request that is called *name*, in words."""
    try:
        health = _told(http, "/health")
        whys = [*health["why"], *health.get("starved", [])]
        faults = [str(why.get("what") or why["text"]) for why in whys]
        faults = faults or list(map(str, health["faults"]))
        if not faults and not begun:
            faults = [str(_told(http, f"/v1/requests/{name}/trace")["doing"])]
    except httpx2.HTTPError:
        return "the head does not answer: it may be stopped, or the way to it is cut"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        faults = []
    told = "; ".join(each.rstrip(".") for each in faults if each)[:_WORDS]
    return told or ("waiting for more" if begun else "waiting for the first token")


def _told(http: HeadClient, path: str) -> Any:
    """What the head says at *path*, soon and not too long. Raises `httpx2.HTTPError`, or
    `ValueError` for what is no such thing."""
    return client.soon(http, path, ASK_SECONDS).json()
