"""``POST /v1/chat/completions``: answers as OpenAI's chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_protocol.control.requests import TokenOut

from sealring.api.choices import Delta
from sealring.api.replies import (
    Chunks,
    Envelope,
    Json,
    TokenBytes,
    add_json,
    chat_logprobs,
    json_bytes,
)
from sealring.api.scores import PromptScores


@attrs.define
class _Message:
    """One choice's message so far: texts as UTF-8, lists as JSON without its brackets. Of a stream
    nothing is kept but the number of *calls*."""

    content: bytearray = attrs.field(factory=bytearray)
    reasoning: bytearray = attrs.field(factory=bytearray)
    called: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)
    calls: int = 0
    call: CallStart | None = None  # that is being written
    arguments: bytearray = attrs.field(factory=bytearray)  # of it
    finish: str = ""

    @property
    def size(self) -> int:
        """Bytes that it has."""
        made = (self.content, self.reasoning, self.called, self.arguments, self.logprobs)
        return sum(map(len, made))


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
        before = message.size
        for part in delta.said:
            match part:
                case Content(text):
                    told["content"] = told.get("content", "") + text
                case Reasoning(text):
                    thought = told.get("reasoning_content", "") + text
                    told["reasoning_content"] = told["reasoning"] = thought
                case CallStart():
                    message.call = part
                    self._add_call(told, {"index": message.calls, **_call(part, "")})
                    message.calls += 1
                case CallPart(text):
                    message.arguments += text.encode() if self.keeps else b""
                    more = {"index": message.calls - 1, "function": {"arguments": text}}
                    self._add_call(told, more)
                case CallEnd():
                    self._end_call(message)
        logprobs = self._logprobs(delta.tokens)
        if delta.finish is not None:
            message.finish = delta.finish.reason
            if self._old and message.finish == "tool_calls":
                message.finish = "function_call"
        if self.keeps:
            message.content += told.get("content", "").encode()
            message.reasoning += told.get("reasoning_content", "").encode()
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

    def _add_call(self, told: dict[str, Any], more: dict[str, Any]) -> None:
        """Add *more* of a call to the delta *told*."""
        if self._old:
            calls = (
                [{"index": 0, "function": told["function_call"]}] if "function_call" in told else []
            )
            more = {**more, "index": 0}
        else:
            calls = told.setdefault("tool_calls", [])
        if calls and calls[-1]["index"] == more["index"]:
            calls[-1]["function"]["arguments"] += more["function"]["arguments"]
        elif self._old:
            told["function_call"] = more["function"]
        else:
            calls.append(more)

    def _end_call(self, message: _Message) -> None:
        """Keep the call that *message* ends with, unless it was streamed."""
        if self.keeps and message.call is not None:
            call = _call(message.call, message.arguments.decode())
            add_json(message.called, [call["function"] if self._old else call])
        message.call, message.arguments = None, bytearray()

    def _logprobs(self, tokens: Sequence[TokenOut]) -> list[dict[str, Any]]:
        return [] if self._most is None else chat_logprobs(tokens, self._bytes_of, self._most)

    def _with(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        return None if self._most is None else {"content": told, "refusal": None}


def _choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: CallStart, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
