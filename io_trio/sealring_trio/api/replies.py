"""What one choice of an answer looks like, for each kind of request.

A choice turns pieces of an answer into deltas. A stream sends each delta as a chunk; an answer in
one piece is their sum. Both forms come from one source, so they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs
from sealring_protocol.control.scheduler.requests import FinishReason, RequestDone, TokenOut

from sealring_trio.node.generation import Piece
from sealring_trio.node.trace import Trace

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}

TokenBytes = Callable[[int], bytes]


class Choice(Protocol):
    """One answer on its way to the client."""

    def opening(self) -> dict[str, Any] | None:
        """The first chunk's choice, before any text; None if there is none."""

    async def take(self, piece: Piece) -> dict[str, Any] | None:
        """The chunk's choice for *piece*; None if nothing of it can be sent yet."""

    async def finish(self, done: RequestDone) -> dict[str, Any]:
        """The last chunk's choice."""

    @property
    def complete(self) -> bool:
        """Whether nothing more may come, whatever the model would add."""

    def whole(self) -> dict[str, Any]:
        """The choice in one piece, after `finish`."""


@attrs.define
class Envelope:
    """The fields around the choices: the same in every chunk of an answer."""

    id: str
    kind: str
    chunk_kind: str
    created: int
    model: str
    fingerprint: str
    usage_in_chunks: bool = False

    def chunk(self, choices: Sequence[dict[str, Any]], usage: Any = None) -> bytes:
        """An event of a stream."""
        body = self._around(self.chunk_kind, choices)
        if self.usage_in_chunks:
            body["usage"] = usage
        return event(body)

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """An answer in one piece."""
        return {**self._around(self.kind, choices), "usage": usage}

    def _around(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }


def event(body: dict[str, Any]) -> bytes:
    """*body* as a server-sent event."""
    return (
        b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


def usage(trace: Trace) -> dict[str, Any]:
    """The counts of a request that has been answered."""
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": trace.tokens,
        "total_tokens": trace.prompt_tokens + trace.tokens,
        "prompt_tokens_details": {"cached_tokens": trace.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": trace.accepted,
            "rejected_prediction_tokens": trace.rejected,
        },
    }


def finish_reason(done: RequestDone) -> str:
    """OpenAI's word for how *done* ended."""
    return _FINISH[done.reason]


def chat_logprobs(tokens: Iterable[TokenOut], bytes_of: TokenBytes) -> list[dict[str, Any]]:
    """Log probabilities as chat completions tell them, one entry for each token."""
    entries = []
    for token in tokens:
        if (told := token.logprobs) is not None:
            best = zip(told.ids, told.values, strict=True)
            entries.append(
                {
                    **_entry(token.token, told.chosen, bytes_of),
                    "top_logprobs": [_entry(other, value, bytes_of) for other, value in best],
                }
            )
    return entries


def _entry(token: int, value: float, bytes_of: TokenBytes) -> dict[str, Any]:
    data = bytes_of(token)
    return {
        "token": data.decode(errors="replace"),
        "logprob": _finite(value),
        "bytes": list(data),
    }


def _finite(value: float) -> float:
    """*value*, or -9999 for an infinity or NaN, which JSON lacks and a model that overflows gives.
    OpenAI's servers give the same number for a token that cannot be drawn."""
    return value if value > -9999.0 else -9999.0


@attrs.define
class TextLogprobs:
    """Log probabilities as text completions tell them: columns, with each token's offset."""

    bytes_of: TokenBytes
    offset: int = 0

    def columns(self, tokens: Iterable[TokenOut]) -> dict[str, Any]:
        """The columns of *tokens*."""
        names: list[str] = []
        values: list[float] = []
        best: list[dict[str, float]] = []
        offsets: list[int] = []
        for token in tokens:
            if (told := token.logprobs) is None:
                continue
            name = self._name(token.token)
            names.append(name)
            values.append(_finite(told.chosen))
            pairs = zip(told.ids, told.values, strict=True)
            tops = {self._name(other): _finite(value) for other, value in pairs}
            best.append({**tops, name: _finite(told.chosen)} if tops else {})
            offsets.append(self.offset)
            self.offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": values,
            "top_logprobs": best,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")
