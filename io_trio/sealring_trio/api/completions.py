"""``POST /v1/completions``: answers as OpenAI's text completions, which are text and nothing
else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs
from sealring_protocol.control.scheduler.requests import TokenOut

from sealring_trio.api.choices import Delta
from sealring_trio.api.parsing import Content
from sealring_trio.api.replies import Chunks, Envelope, TextLogprobs, TokenBytes, logprob_columns
from sealring_trio.api.scores import PromptScores


@attrs.define
class _Text:
    """One choice's text so far."""

    text: list[str]
    logprobs: TextLogprobs | None
    columns: dict[str, list[Any]] = attrs.field(factory=partial(logprob_columns, ()))
    finish: str = ""

    def tell(self, tokens: Sequence[TokenOut]) -> dict[str, Any] | None:
        """The columns of *tokens*, also added to the text's; None if there are none."""
        if self.logprobs is None:
            return None
        columns = self.logprobs.columns(tokens)
        for name, values in columns.items():
            self.columns[name].extend(values)
        return columns if tokens else None


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
        self._texts = [
            _Text([echo], None if most is None else TextLogprobs(bytes_of, most)) for echo in echoes
        ]
        self._scores = scores

    def opening_choices(self) -> list[dict[str, Any]]:
        """The prompts, if they are to be echoed."""
        echoes = (made.text[0] for made in self._texts)
        return [_choice(index, echo, None, None) for index, echo in enumerate(echoes) if echo]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        made = self._texts[delta.index]
        for some in delta.scores:
            self._scores_of(delta.index).add(some)
        text = "".join(part.text for part in delta.said if isinstance(part, Content))
        made.text.append(text)
        if delta.finish is not None:
            made.finish = delta.finish.reason
        return _choice(delta.index, text, made.tell(delta.tokens), made.finish or None)

    def whole_choices(self) -> Iterator[dict[str, Any]]:
        """The continuations in one piece each."""
        return itertools.starmap(self._whole, enumerate(self._texts))

    def _scores_of(self, index: int) -> PromptScores:
        return self._scores[index * len(self._scores) // len(self._texts)]

    def _whole(self, index: int, made: _Text) -> dict[str, Any]:
        columns = None if made.logprobs is None else made.columns
        told: dict[str, Any] = {}
        if self._scores:
            scores = self._scores_of(index)
            if columns is not None:
                columns = scores.before(columns)
            told = scores.listed()
        return {**_choice(index, "".join(made.text), columns, made.finish), **told}


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
