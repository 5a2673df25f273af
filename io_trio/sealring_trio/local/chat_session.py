"""A conversation with a model that is served: its history, and one streamed answer at a time.

An answer that is stopped half-way stays in the history as far as it came, as both sides have seen
it. A question that got no answer at all does not stay.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import attrs
import httpx2

from sealring_trio.local import client


@attrs.define
class ChatSession:
    """One conversation over *http*, whose server is at *url*. *settings* go into each request."""

    http: httpx2.Client
    url: str
    model: str
    settings: dict[str, Any] = attrs.field(factory=dict)
    system: str = ""
    history: list[dict[str, str]] = attrs.field(factory=list)

    def reset(self) -> None:
        """Forget what has been said, but for the system prompt."""
        self.history.clear()

    def ask(self, text: str) -> Generator[tuple[str, str]]:
        """The pieces of the answer to *text*: a kind, ``content`` or ``reasoning``, and a text.

        Closing the iterator stops the answer. Raises `OperationError` when the server does not
        answer.
        """
        question = {"role": "user", "content": text}
        opening = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "model": self.model,
            "messages": [*opening, *self.history, question],
            "stream": True,
            **self.settings,
        }
        content = ""
        try:
            for delta in self._deltas(body):
                if piece := delta.get("reasoning_content"):
                    yield "reasoning", piece
                if piece := delta.get("content"):
                    content += piece
                    yield "content", piece
        finally:
            if content:
                self.history += [question, {"role": "assistant", "content": content}]

    def _deltas(self, body: dict[str, Any]) -> Iterator[dict[str, str]]:
        try:
            with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise client.refused(response)
                for event in client.events(response.iter_lines()):
                    if "error" in event:
                        raise client.broken_off(event)
                    for choice in event["choices"]:
                        yield _texts(choice["delta"])
        except httpx2.HTTPError as error:
            raise client.unreachable(self.url, error) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise client.no_api(self.url) from None


def _texts(delta: dict[str, Any]) -> dict[str, str]:
    """The texts in *delta*. Lone surrogates, which JSON can carry, become "?": they cannot be
    encoded, so the next request could not send them back."""
    texts = {name: value for name, value in delta.items() if isinstance(value, str)}
    return {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}
