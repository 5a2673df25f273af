"""A conversation with a model that is served: its history, and one streamed answer at a time.

An answer that is stopped half-way stays in the history as far as it came, as both sides have seen
it. A question that got no answer at all does not stay; it can be asked again (`ChatSession.again`).
"""

from __future__ import annotations

from typing import Any

import attrs

from sealring.local.answering import CHAT, Answer, Pieces, Tell, encodable, stream
from sealring.local.head_client import HeadClient


@attrs.define
class ChatSession:
    """One conversation over *http*, whose server is at *url*. *settings* go into each request.

    *unanswered* is the latest question if nothing came back. *answer* is the latest answer, also
    one that failed.
    """

    http: HeadClient
    url: str
    model: str
    settings: dict[str, Any] = attrs.field(factory=dict)
    system: str = ""
    history: list[dict[str, str]] = attrs.field(factory=list)
    unanswered: str = ""
    answer: Answer = attrs.field(factory=Answer)

    def clear(self) -> None:
        """Forget what has been said, but for the system prompt."""
        self.history.clear()
        self.unanswered = ""

    def undo(self) -> str:
        """Forget the latest question with what was answered; that question, empty if there is
        none."""
        if question := self.unanswered:
            self.unanswered = ""
            return question
        while self.history:
            message = self.history.pop()
            if message["role"] == "user":
                return message["content"]
        return ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation in OpenAI's form, with the system prompt."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *self.history]

    def ask(self, text: str, tell: Tell) -> Pieces:
        """The pieces of the answer to *text*; *tell* hears what is waited for. Closing the iterator
        stops the answer. Raises `OperationError` when the server does not answer."""
        question = {"role": "user", "content": encodable(text)}
        body = {"model": self.model, "messages": [*self.messages, question], **self.settings}
        self.answer = answer = Answer()
        self.unanswered = question["content"]
        try:
            yield from stream(self.http, self.url, CHAT, body, answer, tell)
        finally:
            if answer.content:
                self.history += [question, {"role": "assistant", "content": answer.content}]
                self.unanswered = ""
