"""``POST /v1/chat/completions``: one choice of an answer, with its reasoning and tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from sealring_model.text.tokens import ToolCall
from sealring_protocol.control.scheduler.requests import FinishReason, RequestDone, TokenOut

from sealring_trio.api.parsing import AnswerText, CallText, Content, Part, Reasoning
from sealring_trio.api.replies import TokenBytes, chat_logprobs, finish_reason
from sealring_trio.node.generation import Piece

ReadCall = Callable[[str], Awaitable[list[ToolCall]]]
"""The tool calls in what a model wrote between the marks of one; none if it is no call."""


class ChatChoice:
    """One assistant message on its way to the client, whose tool calls *read_call* reads.

    With *single_call* the answer ends after its first tool call. Log probabilities are told, with
    *bytes_of* each token, when that is given.
    """

    def __init__(
        self,
        index: int,
        text: AnswerText,
        read_call: ReadCall,
        *,
        single_call: bool,
        bytes_of: TokenBytes | None,
    ) -> None:
        self._index = index
        self._text = text
        self._read_call = read_call
        self._single_call = single_call
        self._bytes_of = bytes_of
        self._unsaid: list[TokenOut] = []  # tokens of text that is still held back
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._finish = ""

    @property
    def complete(self) -> bool:
        """Whether it may have one tool call only, and has it."""
        return self._single_call and bool(self._calls)

    def opening(self) -> dict[str, Any]:
        """The delta that says whose message it is."""
        return self._chunk({"role": "assistant", "content": ""}, [], None)

    async def take(self, piece: Piece) -> dict[str, Any] | None:
        """The delta that *piece* adds to the message."""
        self._unsaid += piece.tokens
        delta = await self._delta(self._text.add(piece.text))
        return self._chunk(delta, self._told(), None) if delta else None

    async def finish(self, done: RequestDone) -> dict[str, Any]:
        """The delta with what was held back, and why the message ends."""
        delta = await self._delta(self._text.end())
        stopped = done.reason is FinishReason.STOP
        self._finish = "tool_calls" if self._calls and stopped else finish_reason(done)
        return self._chunk(delta, self._told(), self._finish)

    def whole(self) -> dict[str, Any]:
        """The message in one piece."""
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"}
                for call in self._calls
            ]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._with(self._logprobs),
            "finish_reason": self._finish,
        }

    def _chunk(
        self, delta: dict[str, Any], told: list[dict[str, Any]], finish: str | None
    ) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": self._with(told) if told else None,
            "finish_reason": finish,
        }

    def _with(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        return None if self._bytes_of is None else {"content": told, "refusal": None}

    def _told(self) -> list[dict[str, Any]]:
        if self._bytes_of is None:
            self._unsaid.clear()
            return []
        told = chat_logprobs(self._unsaid, self._bytes_of)
        self._unsaid.clear()
        self._logprobs += told
        return told

    async def _delta(self, parts: list[Part]) -> dict[str, Any]:
        """*parts* as a delta, and added to the message."""
        delta: dict[str, Any] = {}
        for part in parts:
            if self.complete:
                break
            told: Part | list[ToolCall] = part
            if isinstance(part, CallText):
                told = await self._read_call(part.text) or Content(part.otherwise)
            match told:
                case Content(text):
                    self._content.append(text)
                    delta["content"] = delta.get("content", "") + text
                case Reasoning(text):
                    self._reasoning.append(text)
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + text
                case [*calls]:
                    made = (self._call(call) for call in calls if not self.complete)
                    delta.setdefault("tool_calls", []).extend(made)
        return delta

    def _call(self, call: ToolCall) -> dict[str, Any]:
        told = {
            "index": len(self._calls),
            "id": call.id or f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        self._calls.append(told)
        return told
