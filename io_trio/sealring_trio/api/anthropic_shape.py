"""Answers as Anthropic's messages: a list of blocks (thinking, text, tool use), whole and as typed
events."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning

from sealring_trio.api.choices import Delta, Finish
from sealring_trio.api.errors import ApiError
from sealring_trio.api.replies import About, json_bytes
from sealring_trio.node.trace import Trace

Body = dict[str, Any]

_UNSIGNED: Final = "unsigned"
"""The signature of all thinking here: clients send it back, and nobody checks it."""

_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageShape:
    """One message, after a prompt of so many tokens, of *limit* tokens at most: one that is shorter
    and yet cut off was bounded by the model's context. One that is *streamed* keeps nothing of what
    it has sent."""

    def __init__(self, about: About, prompt: int, limit: int | None, *, streamed: bool) -> None:
        self._about = about
        self._prompt = prompt
        self._limit = limit
        self._streamed = streamed
        self.kept = 0
        self._begun = 0
        self._blocks: list[Body] = []
        self._open = ""  # the field of the last block that is being filled
        self._block: Body = {}  # as it began
        self._text = bytearray()  # what it has
        self._sent = False  # whether the arguments of a call are sent as they come
        self._finish = Finish("stop")
        self.silence = self.event({"type": "ping"})

    def opening(self) -> bytes:
        """The message before it has anything."""
        usage = _usage(self._prompt, 0, 0)
        return self.event({"type": "message_start", "message": self._message(usage)}) + self.silence

    def add(self, delta: Delta) -> list[Body]:
        """The events of *delta*, and of the blocks that it ends and begins."""
        events: list[Body] = []
        for part in delta.said:
            match part:
                case Content(text):
                    events += self._write("text", text)
                case Reasoning(text):
                    events += self._write("thinking", text)
                case CallStart():
                    events += self._close() + self._use(part)
                case CallPart(text):
                    events += self._used(text)
                case CallEnd():
                    events += self._close()
        if delta.finish is not None:
            self._finish = delta.finish
            events += self._close()
        return events

    def event(self, body: Body) -> bytes:
        """*body* as an event of its type."""
        return f"event: {body['type']}\ndata: ".encode() + json_bytes(body) + b"\n\n"

    def closing(self, trace: Trace) -> bytes:
        """Why the message ends, and its counts."""
        reason, stop = self._stop(trace)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        ended = {"type": "message_delta", "delta": delta, "usage": _counts(trace)}
        return self.event(ended) + self.event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        """*error* as an event."""
        return self.event(error.anthropic_body())

    def whole(self, trace: Trace) -> tuple[bytes]:
        """The message in one piece."""
        reason, stop = self._stop(trace)
        told = {"stop_reason": reason, "stop_sequence": stop}
        return (json_bytes({**self._message(_counts(trace)), **told}),)

    def _stop(self, trace: Trace) -> tuple[str, str | None]:
        """Why the message ends, and before which stop string."""
        reason = self._finish.reason
        if reason == "stop" and self._finish.stop:
            return "stop_sequence", self._finish.stop
        if reason == "length" and (self._limit is None or trace.tokens < self._limit):
            return "model_context_window_exceeded", None
        return _REASONS[reason], None

    def _message(self, usage: Body) -> Body:
        return {
            "id": self._about.id,
            "type": "message",
            "role": "assistant",
            "model": self._about.model,
            "content": self._blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _write(self, kind: str, text: str) -> list[Body]:
        """Add *text* to a block of *kind*, which may begin with it."""
        events: list[Body] = []
        if self._open != kind:
            events = self._close()
            block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            events.append(self._begin(block))
            self._open, self._block = kind, {"type": kind}
        self._add(text)
        return [*events, self._fill({"type": f"{kind}_delta", kind: text})]

    def _close(self) -> list[Body]:
        """End the block that is open."""
        if not self._open:
            return []
        kind = self._open
        block, text = {**self._block}, self._text.decode()
        events: list[Body] = []
        if kind == "input":
            block[kind] = _object(text)
            if not self._sent:
                events = self._filled(json_bytes(block[kind]).decode())
        else:
            block[kind] = text
        if kind == "thinking":
            block["signature"] = _UNSIGNED
            events.append(self._fill({"type": "signature_delta", "signature": _UNSIGNED}))
        self._keep(block)
        self._open, self._text, self._sent = "", bytearray(), False
        return [*events, self._end()]

    def _use(self, call: CallStart) -> list[Body]:
        """The event of *call*, a block that its arguments fill."""
        self._open = "input"
        block: Body = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        self._block = block
        return [self._begin(block)]

    def _used(self, text: str) -> list[Body]:
        """The events of more *text* of a call's arguments. What is no object is put into one when
        it is whole."""
        if not self._sent:
            self._text += (text if self._text else text.lstrip()).encode()
            if not self._text.startswith(b"{"):
                return []
            text, self._sent, self._text = self._text.decode(), True, bytearray()
        self._add(text)
        return self._filled(text)

    def _add(self, text: str) -> None:
        """Keep *text* of the block, unless it is streamed."""
        if not self._streamed:
            said = text.encode()
            self._text += said
            self.kept += len(said)

    def _filled(self, text: str) -> list[Body]:
        return [self._fill({"type": "input_json_delta", "partial_json": text})]

    def _begin(self, block: Body) -> Body:
        self._begun += 1
        return {"type": "content_block_start", "index": self._last, "content_block": block}

    def _keep(self, block: Body) -> None:
        if not self._streamed:
            self._blocks.append(block)

    def _fill(self, delta: Body) -> Body:
        return {"type": "content_block_delta", "index": self._last, "delta": delta}

    def _end(self) -> Body:
        return {"type": "content_block_stop", "index": self._last}

    @property
    def _last(self) -> int:
        return self._begun - 1


def _object(arguments: str) -> Body:
    """A call's *arguments*, which are an object, or are put into one. Of an object that was cut
    off: its whole members, as clients read it that have it streamed."""
    try:
        given = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
    except ValueError:
        given = arguments
    return given if isinstance(given, dict) else {"arguments": given}


def _counts(trace: Trace) -> Body:
    return _usage(trace.prompt_tokens, trace.cached_tokens, trace.tokens)


def _usage(prompt: int, cached: int, tokens: int) -> Body:
    """The counts as Anthropic has them: what was cached does not count as input."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens,
    }
