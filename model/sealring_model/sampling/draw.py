"""From logits to tokens, so that a row's text does not depend on the other rows in the batch.

A row's logits are processed first (`LogitProcessor`): its bias, then its penalties. The rules are
those of vLLM (`vllm/v1/sample`), so that a request means the same here as there:

- bias: added to the logits of the tokens that it names;
- repetition (CTRL: Keskar et al., https://arxiv.org/abs/1909.05858): the logit of every token in
  the row, prompt or output, is divided by it when positive and multiplied when negative;
- frequency and presence (OpenAI's): subtracted from the logit of every token in the output,
  frequency times the token's count, presence once.

A row's tokens are counted on the device. The counts begin with the history in its `Row`. Each
sampling adds its tokens from the array that it made, which nobody has read. So the next decode can
be launched on the counts, as it is on the tokens themselves. A batch in which no row asks for any
of this has no processor, and costs nothing.

Then tokens are drawn (`sample`). The order is that of most servers: temperature, then top-k, then
top-p over what top-k left, then min-p, which keeps the tokens that are at least that likely
relative to the likeliest. A greedy row is the plain argmax, and a batch of greedy rows costs
nothing more.

A row that samples draws from its own key, which is derived from (seed, choice, absolute position of
the new token) and nothing else. So the draw is the same for a row alone and among others, and again
after the row was evicted and prefilled anew. It is the Gumbel-max trick (argmax of logits plus
Gumbel noise), with each row's noise made from its own key. Noise for all rows drawn at once from a
stack of keys would be other numbers. Temperature and cuts work on each row's own logits, all rows
together.

Nucleus (top-p) sampling: Holtzman et al., https://arxiv.org/abs/1904.09751. Min-p: Nguyen et al.,
https://arxiv.org/abs/2407.01082.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.encoding import from_fields, to_fields
from sealring_protocol.codec.messages import Row

from sealring_model.errors import LedgerError

if TYPE_CHECKING:
    from sealring_protocol.conformance.files import Json
    from sealring_protocol.conformance.result import Kinds, Result


_KEY: Final = struct.Struct(">QHQ")
_WORDS: Final = struct.Struct(">II")


def sample(logits: mx.array, rows: Sequence[Row], positions: Sequence[int]) -> mx.array:
    """One token for each of *rows*, from *logits* ``(rows, vocabulary)``; uint32 ``(rows,)``.

    ``positions[i]`` is the position of row i's new token, counted from the row's first token.
    """
    greedy = mx.argmax(logits, axis=-1)
    hot = [i for i, row in enumerate(rows) if row.temperature > 0]
    if not hot:
        return greedy
    chosen = [rows[i] for i in hot]
    part = logits if len(hot) == len(rows) else logits[mx.array(hot)]
    keys = [row_key(rows[i], positions[i]) for i in hot]
    drawn = _draw(_cut(_tempered(part, chosen), chosen), keys)
    if len(hot) == len(rows):
        return drawn
    order = list(range(len(rows)))
    for at, i in enumerate(hot):
        order[i] = len(rows) + at
    return mx.concatenate([greedy, drawn])[mx.array(order)]


def row_key(row: Row, position: int) -> tuple[int, int]:
    """The two 32-bit words of *row*'s random key for the token at absolute *position*."""
    content = _KEY.pack(row.seed, row.choice, position)
    words = _WORDS.unpack(hashlib.blake2b(content, digest_size=8, person=b"sealring/row").digest())
    return words[0], words[1]


class LogitProcessors:
    """The processor of every batch that has one.

    A processor is a value: a decode takes its batch's when it is launched, and puts back the next
    one when its tokens are sampled. So rows that leave in between, or come back under their old
    number, disturb nothing. When a batch's rows change, its counts are made anew: lines are copied
    for rows that stay, and counted from the history for new rows.
    """

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
    ``(penalised, vocabulary)``, which takes 5 bytes for each token of the vocabulary and row.
    """

    rows: tuple[Row, ...]
    places: mx.array
    prompt: mx.array
    output: mx.array

    def apply(self, logits: mx.array) -> mx.array:
        drawn = self.output > 0
        repetition = _column([row.repetition for row in self.rows])
        rest = logits[self.places]
        scaled = mx.where(rest > 0, rest / repetition, rest * repetition)
        rest = mx.where(self.prompt | drawn, scaled, rest)
        rest = rest - _column([row.frequency for row in self.rows]) * self.output
        rest = rest - _column([row.presence for row in self.rows]) * drawn
        adjusted = mx.array(logits)
        adjusted[self.places] = rest
        return adjusted

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


def _column(values: list[float]) -> mx.array:
    return mx.array(values, mx.float32)[:, None]


def _tempered(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Logits divided by temperature in f32, the likeliest at 0, so that no temperature
    overflows."""
    exact = logits.astype(mx.float32)
    scale = _column([1.0 / max(row.temperature, 1e-6) for row in rows])
    return (exact - exact.max(axis=-1, keepdims=True)) * scale


def _cut(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    if any(row.top_k or row.top_p < 1 for row in rows):
        logits = _cut_sorted(logits, rows)
    if any(row.min_p > 0 for row in rows):
        floor = _column(
            [math.log(min(row.min_p, 1)) if row.min_p > 0 else -math.inf for row in rows]
        )
        logits = mx.where(logits < floor, -math.inf, logits)
    return logits


def _cut_sorted(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Top-k, then top-p: one threshold for each row, found in its sorted logits."""
    size = logits.shape[-1]
    falling = -mx.sort(-logits, axis=-1)
    ranks = mx.arange(size)[None]
    last = mx.array([min(row.top_k or size, size) for row in rows])[:, None]
    within = ranks < last
    likely = mx.softmax(mx.where(within, falling, -math.inf), axis=-1)
    before = mx.cumsum(likely, axis=-1) - likely
    # A top_p of 1 keeps all tokens however the sum rounds; the likeliest token always stays.
    share = _column([row.top_p if row.top_p < 1 else math.inf for row in rows])
    kept = within & ((before < share) | (ranks == 0))
    threshold = mx.where(kept, falling, math.inf).min(axis=-1, keepdims=True)
    return mx.where(logits < threshold, -math.inf, logits)


def _draw(logits: mx.array, keys: Sequence[tuple[int, int]]) -> mx.array:
    size = logits.shape[-1:]
    noise = [mx.random.gumbel(size, key=mx.array(key, mx.uint32)) for key in keys]
    return mx.argmax(logits + mx.stack(noise), axis=-1)


def _same(before: tuple[Row, ...], rows: tuple[Row, ...]) -> bool:
    """Whether the rows are identical objects. A row that came back is another, with another
    history."""
    return len(before) == len(rows) and all(a is b for a, b in zip(before, rows, strict=True))


def _vector_row(fields: Json) -> Any:
    """A ROW with these fields, and the defaults of all others."""
    return from_fields({**to_fields(Row(1)), **fields})


def _run_key(given: Json, result: Result) -> None:
    row = _vector_row({"temperature": 1.0, "seed": given["seed"], "choice": given["choice"]})
    result.output = {"key": list(row_key(row, int(given["position"])))}


def _run_draw(given: Json, result: Result) -> None:
    row = _vector_row(given["row"])
    logits = mx.array([given["logits"]], mx.float32)
    processor = LogitProcessors(logits.shape[1]).take(0, (row,))
    adjusted = logits if processor is None else processor.apply(logits)
    token: Any = sample(adjusted, [row], [int(given["position"])]).item()
    result.output = {"token": token}


VECTORS: Final[Kinds] = {"sampling-key": _run_key, "draw": _run_draw}
"""How the vectors of section 11.4 are run: a row's key, and the token that it is given."""
