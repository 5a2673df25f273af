"""``POST /v1/chat/completions``: answers as OpenAI's chat completions, whole and in chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from sealring_model.text.tokens import ToolCall
from sealring_protocol.control.scheduler.requests import TokenOut

from sealring_trio.api.choices import Delta
from sealring_trio.api.parsing import Content, Reasoning
from sealring_trio.api.replies import Chunks, Envelope, TokenBytes, chat_logprobs
from sealring_trio.api.scores import PromptScores


@attrs.define
class _Message:
    """One choice's message so far."""

    content: list[str] = attrs.field(factory=list)
    reasoning: list[str] = attrs.field(factory=list)
    calls: list[dict[str, Any]] = attrs.field(factory=list)
    logprobs: list[dict[str, Any]] = attrs.field(factory=list)
    finish: str = ""


class ChatShape(Chunks):
    """The answer of *choices* messages. Log probabilities are told, of *bytes_of* each token, with
    at *most* so many likeliest ones; None: they are not. *scores* are those of the prompt, if they
    are told."""

    def __init__(
        self,
        envelope: Envelope,
        choices: int,
        bytes_of: TokenBytes,
        most: int | None,
        scores: PromptScores | None,
    ) -> None:
        super().__init__(envelope)
        self._bytes_of = bytes_of
        self._most = most
        self._scores = scores
        self._messages = [_Message() for _ in range(choices)]

    def opening_choices(self) -> list[dict[str, Any]]:
        """The deltas that say whose messages these are."""
        delta = {"role": "assistant", "content": ""}
        return [_choice(index, delta, None, None) for index in range(len(self._messages))]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        message = self._messages[delta.index]
        if self._scores is not None:
            for some in delta.scores:
                self._scores.add(some)
        told: dict[str, Any] = {}
        for part in delta.said:
            match part:
                case Content(text):
                    message.content.append(text)
                    told["content"] = told.get("content", "") + text
                case Reasoning(text):
                    message.reasoning.append(text)
                    told["reasoning_content"] = told.get("reasoning_content", "") + text
                case ToolCall():
                    call = _call(part)
                    told.setdefault("tool_calls", []).append({"index": len(message.calls), **call})
                    message.calls.append(call)
        logprobs = self._logprobs(delta.tokens)
        message.logprobs += logprobs
        if delta.finish is not None:
            message.finish = delta.finish.reason
        return _choice(
            delta.index, told, self._with(logprobs) if logprobs else None, message.finish or None
        )

    def whole_choices(self) -> Iterator[dict[str, Any]]:
        """The messages in one piece each."""
        return itertools.starmap(self._whole, enumerate(self._messages))

    def beside(self) -> dict[str, Any]:
        """The scores of the prompt, if they are told."""
        return {} if self._scores is None else self._scores.listed()

    def _whole(self, index: int, made: _Message) -> dict[str, Any]:
        content = "".join(made.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not made.calls else None,
            "refusal": None,
        }
        if made.reasoning:
            message["reasoning_content"] = "".join(made.reasoning)
        if made.calls:
            message["tool_calls"] = made.calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._with(made.logprobs),
            "finish_reason": made.finish,
        }

    def _logprobs(self, tokens: Sequence[TokenOut]) -> list[dict[str, Any]]:
        return [] if self._most is None else chat_logprobs(tokens, self._bytes_of, self._most)

    def _with(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        return None if self._most is None else {"content": told, "refusal": None}


def _choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
