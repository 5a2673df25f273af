"""Processes a row's logits before it is sampled: its bias, then its penalties.

The rules are those of vLLM (`vllm/v1/sample`), so that a request means the same here as there:

- bias: added to the logits of the tokens that it names;
- repetition (CTRL: Keskar et al., https://arxiv.org/abs/1909.05858): the logit of every token in
  the row, prompt or output, is divided by it when positive and multiplied when negative;
- frequency and presence (OpenAI's): subtracted from the logit of every token in the output,
  frequency times the token's count, presence once.

A row's tokens are counted on the device. The counts begin with the history in its `Row`. Each
sampling adds its tokens from the array that it made, which nobody has read. So the next decode can
be launched on the counts, as it is on the tokens themselves.

Counts are a rectangle with one line for each penalised row of a batch, at 5 bytes for each token of
the vocabulary. A `LogitProcessor` is a value: a decode takes its batch's when it is launched, and
puts back the next one when its tokens are sampled. So rows that leave in between, or come back
under their old number, disturb nothing. When a batch's rows change, the rectangle is made anew:
lines are copied for rows that stay, and counted from the history for new rows. A batch in which no
row asks for any of this has no processor, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Row

from sealring_model.errors import LedgerError


@attrs.frozen(eq=False)
class _Bias:
    """``values[i]`` is added to the logit of token ``ids[i]`` of the row at ``rows[i]``."""

    rows: mx.array
    ids: mx.array
    values: mx.array

    def apply(self, logits: mx.array) -> mx.array:
        return logits.at[self.rows, self.ids].add(self.values)


@attrs.frozen(eq=False)
class _Counts:
    """Token counts of the penalised rows, which are at *places* among all rows of the batch.

    *prompt* says which tokens are in a row's prompt, *output* how often each was sampled; both are
    ``(penalised, vocabulary)``.
    """

    rows: tuple[Row, ...]
    places: mx.array
    prompt: mx.array
    output: mx.array

    def apply(self, logits: mx.array) -> mx.array:
        drawn = self.output > 0
        repetition = self._column([row.repetition for row in self.rows])
        rest = logits[self.places]
        scaled = mx.where(rest > 0, rest / repetition, rest * repetition)
        rest = mx.where(self.prompt | drawn, scaled, rest)
        rest = rest - self._column([row.frequency for row in self.rows]) * self.output
        rest = rest - self._column([row.presence for row in self.rows]) * drawn
        adjusted = mx.array(logits)
        adjusted[self.places] = rest
        return adjusted

    @staticmethod
    def _column(values: list[float]) -> mx.array:
        return mx.array(values, mx.float32)[:, None]

    def after(self, tokens: mx.array) -> _Counts:
        lines = mx.arange(len(self.rows))
        output = self.output.at[lines, tokens[self.places]].add(1)
        return attrs.evolve(self, output=output)

    def after_ahead(self, tokens: mx.array, right: mx.array) -> _Counts:
        sampled = (mx.arange(len(tokens)) <= right).astype(self.output.dtype)
        lines = mx.zeros(tokens.shape, mx.int32)
        return attrs.evolve(self, output=self.output.at[lines, tokens].add(sampled))

    def line(self, row: Row) -> tuple[mx.array, mx.array] | None:
        """The counts of *row*, if it is one of these: prompt and output, one line each."""
        for at, known in enumerate(self.rows):
            if known is row:
                return self.prompt[at : at + 1], self.output[at : at + 1]
        return None


@attrs.frozen(eq=False)
class LogitProcessor:
    """Processes the logits of *rows*, of which at least one asks for it."""

    rows: tuple[Row, ...]
    bias: _Bias | None
    counts: _Counts | None

    def apply(self, logits: mx.array) -> mx.array:
        """*logits* ``(rows, vocabulary)`` with bias and penalties, in f32."""
        logits = logits.astype(mx.float32)
        if self.bias is not None:
            logits = self.bias.apply(logits)
        if self.counts is not None:
            logits = self.counts.apply(logits)
        return logits

    def after(self, tokens: mx.array) -> LogitProcessor:
        """The processor once *tokens* have been sampled, one for each row."""
        if self.counts is None:
            return self
        return attrs.evolve(self, counts=self.counts.after(tokens))

    def apply_ahead(self, logits: mx.array, guesses: mx.array) -> mx.array:
        """*logits* ``(1 + guesses, vocabulary)`` of the only row with bias and penalties, each as
        if the *guesses* before it had been sampled."""
        adjusted, processor = [], self
        for place in range(len(logits)):
            adjusted.append(processor.apply(logits[place : place + 1]))
            if place < len(guesses):
                processor = processor.after(guesses[place : place + 1])
        return mx.concatenate(adjusted)

    def after_ahead(self, tokens: mx.array, right: mx.array) -> LogitProcessor:
        """The processor once the first of *tokens*, and the *right* ones after it, have been
        sampled for the only row."""
        if self.counts is None:
            return self
        return attrs.evolve(self, counts=self.counts.after_ahead(tokens, right))

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays that change with each sampling, to be evaluated."""
        return () if self.counts is None else (self.counts.output,)


class LogitProcessors:
    """The processor of every batch that has one."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary: Final = vocabulary
        self._by_batch: Final[dict[int, LogitProcessor]] = {}

    def take(self, batch: int, rows: tuple[Row, ...]) -> LogitProcessor | None:
        """The processor for the next sampling of *batch*, whose rows are *rows*; None if no row
        asks for one.

        Raises `LedgerError` for a token beyond the vocabulary.
        """
        processor = self.following(self._by_batch.get(batch), rows)
        if processor is None:
            self._by_batch.pop(batch, None)
        return processor

    def following(
        self, before: LogitProcessor | None, rows: tuple[Row, ...]
    ) -> LogitProcessor | None:
        """The processor for a sampling of *rows* that follows one after which it was *before*; None
        if no row asks for one.

        Raises `LedgerError` for a token beyond the vocabulary.
        """
        if before is not None and _same(before.rows, rows):
            return before
        if not any(row.bias or row.penalised for row in rows):
            return None
        counts = None if before is None else before.counts
        return LogitProcessor(rows, self._bias(rows), self._counts(rows, counts))

    def put(self, batch: int, processor: LogitProcessor) -> None:
        """The next sampling of *batch* starts from *processor*."""
        self._by_batch[batch] = processor

    def forget_batch(self, batch: int) -> None:
        """*batch* is empty."""
        self._by_batch.pop(batch, None)

    def _bias(self, rows: Sequence[Row]) -> _Bias | None:
        entries = [(at, *entry) for at, row in enumerate(rows) for entry in row.bias]
        if not entries:
            return None
        places, ids, values = zip(*entries, strict=True)
        return _Bias(mx.array(places), self._known(ids), mx.array(values, mx.float32))

    def _counts(self, rows: Sequence[Row], before: _Counts | None) -> _Counts | None:
        places = [at for at, row in enumerate(rows) if row.penalised]
        if not places:
            return None
        chosen = tuple(rows[at] for at in places)
        lines = [(before and before.line(row)) or self._fresh(row) for row in chosen]
        prompt, output = (mx.concatenate(list(part)) for part in zip(*lines, strict=True))
        return _Counts(chosen, mx.array(places), prompt, output)

    def _fresh(self, row: Row) -> tuple[mx.array, mx.array]:
        given = len(row.history) - row.generated
        prompt, output = (
            mx.zeros((1, self._vocabulary), mx.int32).at[0, self._known(ids)].add(1)
            for ids in (row.history[:given], row.history[given:])
        )
        return prompt > 0, output

    def _known(self, ids: tuple[int, ...]) -> mx.array:
        if ids and max(ids) >= self._vocabulary:
            raise LedgerError(f"token id {max(ids)} is beyond the vocabulary")
        return mx.array(ids, mx.uint32)


def _same(before: tuple[Row, ...], rows: tuple[Row, ...]) -> bool:
    """Whether the rows are identical objects. A row that came back is another, with another
    history."""
    return len(before) == len(rows) and all(a is b for a, b in zip(before, rows, strict=True))
