"""``POST /v1/completions``: answers as OpenAI's text completions, which are text and nothing
else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from sealring_model.text.readers import Content

from sealring.api.choices import Delta
from sealring.api.replies import (
    Chunks,
    Columns,
    Envelope,
    Json,
    TextLogprobs,
    TokenBytes,
    json_bytes,
)
from sealring.api.scores import PromptScores


@attrs.define
class _Text:
    """One choice's text so far, as UTF-8, and its columns. Of a stream nothing is kept."""

    text: bytearray
    logprobs: TextLogprobs | None
    columns: Columns = attrs.field(factory=Columns)
    finish: str = ""


class TextShape(Chunks):
    """Continuations on their way to the client: one for each of *echoes*, which are the prompts
    where those come first. Log probabilities are told, of *bytes_of* each token, with at *most* so
    many likeliest ones; None: they are not. *scores* are those of the prompts, if they are told;
    each serves equally many continuations, one after the other."""

    def __init__(
        self,
        envelope: Envelope,
        echoes: Sequence[str],
        bytes_of: TokenBytes,
        most: int | None,
        scores: Sequence[PromptScores],
    ) -> None:
        super().__init__(envelope)
        self._echoes = echoes
        self._texts = [
            _Text(
                bytearray(echo.encode(errors="replace") if self.keeps else b""),
                None if most is None else TextLogprobs(bytes_of, most),
            )
            for echo in echoes
        ]
        self._scores = scores

    def opening_choices(self) -> list[dict[str, Any]]:
        """The prompts, if they are to be echoed."""
        return [_choice(index, echo, None, None) for index, echo in enumerate(self._echoes) if echo]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        made = self._texts[delta.index]
        if delta.scores:
            self.kept += sum(map(self._scores_of(delta.index).add, delta.scores))
        text = "".join(part.text for part in delta.said if isinstance(part, Content))
        if delta.finish is not None:
            made.finish = delta.finish.reason
        columns = None if made.logprobs is None else made.logprobs.columns(delta.tokens)
        if self.keeps:
            said = text.encode()
            made.text += said
            before = made.columns.size
            if columns is not None:
                made.columns.add(columns)
            self.kept += len(said) + made.columns.size - before
        told = columns if delta.tokens else None
        return _choice(delta.index, text, told, made.finish or None)

    def whole_choices(self) -> Iterator[Iterator[Json]]:
        """The continuations in one piece each."""
        return (self._whole(index, made) for index, made in enumerate(self._texts))

    def _scores_of(self, index: int) -> PromptScores:
        return self._scores[index * len(self._scores) // len(self._texts)]

    def _whole(self, index: int, made: _Text) -> Iterator[Json]:
        scores = self._scores_of(index) if self._scores else None
        yield b'{"index":%d,"text":%b,"logprobs":' % (index, json_bytes(made.text.decode()))
        if made.logprobs is None:
            yield b"null"
        elif scores is None:
            yield from made.columns.whole()
        else:
            yield from scores.before(made.columns)
        yield b',"finish_reason":%b' % json_bytes(made.finish)
        if scores is not None:
            yield from scores.listed()
        yield b"}"


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
