"""``POST /v1/chat/completions``: answers as OpenAI's chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from sealring_model.text.tokens import ToolCall
from sealring_protocol.control.scheduler.requests import TokenOut

from sealring_trio.api.choices import Delta
from sealring_trio.api.parsing import Content, Reasoning
from sealring_trio.api.replies import (
    Chunks,
    Envelope,
    Json,
    TokenBytes,
    add_json,
    chat_logprobs,
    json_bytes,
)
from sealring_trio.api.scores import PromptScores


@attrs.define
class _Message:
    """One choice's message so far: texts as UTF-8, lists as JSON without its brackets. Of a stream
    nothing is kept but the number of *calls*."""

    content: bytearray = attrs.field(factory=bytearray)
    reasoning: bytearray = attrs.field(factory=bytearray)
    called: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)
    calls: int = 0
    finish: str = ""

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return sum(map(len, (self.content, self.reasoning, self.called, self.logprobs)))


class ChatShape(Chunks):
    """The answer of *choices* messages. Log probabilities are told, of *bytes_of* each token, with
    at *most* so many likeliest ones; None: they are not. *scores* are those of the prompt, if they
    are told. A call is told as that of a function if the client is *old*."""

    def __init__(
        self,
        envelope: Envelope,
        choices: int,
        bytes_of: TokenBytes,
        most: int | None,
        scores: PromptScores | None,
        *,
        old: bool = False,
    ) -> None:
        super().__init__(envelope)
        self._bytes_of = bytes_of
        self._most = most
        self._scores = scores
        self._old = old
        self._messages = [_Message() for _ in range(choices)]

    def opening_choices(self) -> list[dict[str, Any]]:
        """The deltas that say whose messages these are."""
        delta = {"role": "assistant", "content": ""}
        return [_choice(index, delta, None, None) for index in range(len(self._messages))]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        message = self._messages[delta.index]
        if self._scores is not None:
            self.kept += sum(map(self._scores.add, delta.scores))
        told: dict[str, Any] = {}
        calls: list[dict[str, Any]] = []
        for part in delta.said:
            match part:
                case Content(text):
                    told["content"] = told.get("content", "") + text
                case Reasoning(text):
                    thought = told.get("reasoning_content", "") + text
                    told["reasoning_content"] = told["reasoning"] = thought
                case ToolCall():
                    calls.append(_call(part))
        if calls:
            first = message.calls
            listed = [{"index": at, **call} for at, call in enumerate(calls, first)]
            told |= {"function_call": calls[0]["function"]} if self._old else {"tool_calls": listed}
            message.calls += len(calls)
        logprobs = self._logprobs(delta.tokens)
        if delta.finish is not None:
            message.finish = delta.finish.reason
            if self._old and message.finish == "tool_calls":
                message.finish = "function_call"
        if self.keeps:
            before = message.size
            message.content += told.get("content", "").encode()
            message.reasoning += told.get("reasoning_content", "").encode()
            add_json(message.called, [each["function"] for each in calls] if self._old else calls)
            add_json(message.logprobs, logprobs)
            self.kept += message.size - before
        return _choice(
            delta.index, told, self._with(logprobs) if logprobs else None, message.finish or None
        )

    def whole_choices(self) -> Iterator[Iterator[Json]]:
        """The messages in one piece each."""
        return (self._whole(index, made) for index, made in enumerate(self._messages))

    def beside(self) -> Iterator[Json]:
        """The scores of the prompt, if they are told."""
        return iter(()) if self._scores is None else self._scores.listed()

    def _whole(self, index: int, made: _Message) -> Iterator[Json]:
        content = made.content.decode()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not made.calls else None,
            "refusal": None,
        }
        if made.reasoning:
            message["reasoning_content"] = message["reasoning"] = made.reasoning.decode()
        yield b'{"index":%d,"message":' % index + json_bytes(message)[:-1]
        if made.calls and self._old:
            yield from (b',"function_call":', made.called)
        elif made.calls:
            yield from (b',"tool_calls":[', made.called, b"]")
        yield b'},"logprobs":'
        if self._most is None:
            yield b"null"
        else:
            yield from (b'{"content":[', made.logprobs, b'],"refusal":null}')
        yield b',"finish_reason":%b}' % json_bytes(made.finish)

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
