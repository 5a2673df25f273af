"""``POST /v1/completions``: one choice of an answer, which is text and nothing else."""

from __future__ import annotations

from typing import Any

from sealring_protocol.control.scheduler.requests import RequestDone, TokenOut

from sealring_trio.api.replies import TextLogprobs, TokenBytes, finish_reason
from sealring_trio.node.generation import Piece


class TextChoice:
    """One continuation on its way to the client; *echo* is the prompt, where that comes first."""

    complete = False

    def __init__(self, index: int, echo: str, bytes_of: TokenBytes | None) -> None:
        self._index = index
        self._echo = echo
        self._logprobs = TextLogprobs(bytes_of) if bytes_of is not None else None
        self._unsaid: list[TokenOut] = []
        self._text = [echo]
        self._columns: dict[str, list[Any]] = {}
        self._finish = ""

    def opening(self) -> dict[str, Any] | None:
        """The prompt, if it is to be echoed."""
        return self._chunk(self._echo, None) if self._echo else None

    async def take(self, piece: Piece) -> dict[str, Any] | None:
        """What *piece* adds to the continuation."""
        self._unsaid += piece.tokens
        if not piece.text:
            return None
        self._text.append(piece.text)
        return self._chunk(piece.text, None)

    async def finish(self, done: RequestDone) -> dict[str, Any]:
        """Why it ends."""
        self._finish = finish_reason(done)
        return self._chunk("", self._finish)

    def whole(self) -> dict[str, Any]:
        """The continuation in one piece."""
        return {
            "index": self._index,
            "text": "".join(self._text),
            "logprobs": self._columns if self._logprobs is not None else None,
            "finish_reason": self._finish,
        }

    def _chunk(self, text: str, finish: str | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": self._told(),
            "finish_reason": finish,
        }

    def _told(self) -> dict[str, Any] | None:
        unsaid, self._unsaid = self._unsaid, []
        if self._logprobs is None:
            return None
        columns = self._logprobs.columns(unsaid)
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend(values)
        return columns if unsaid else None
