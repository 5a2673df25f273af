"""Log probabilities: of sampled tokens, and of each token of a prompt, given all tokens before it.

They are computed in f32 from the logits as the model gave them, before bias, penalties, temperature
and cuts. A row that wants alternatives gets the likeliest tokens, in falling order.

Those of sampled tokens (`logprobs_of`) are computed together with the tokens, equally many for each
row, so that a row's figures do not depend on the rows beside it. A decode whose rows want none
computes nothing here.

Those of a prompt are its scores (`Scoring`). Logits of all tokens of a chunk at once would take
hundreds of megabytes, so they are made in slices, each of which waits for the one before: the
device drops the logits of a slice before it makes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.codec.messages import NO_LOGPROBS, Row
from sealring_protocol.limits import MAX_LOGPROBS, MAX_SCORES

SLICE: Final = 32 << 20
"""Bytes of the logits of one slice, in f32. What is computed of them takes a few times as much."""


def logprobs_of(logits: mx.array, rows: Sequence[Row], tokens: mx.array) -> LogprobArrays:
    """Log probabilities of *tokens*, sampled from *logits* ``(rows, vocabulary)``, for those of
    *rows* that ask for them: one at least."""
    places = [at for at, row in enumerate(rows) if row.logprobs != NO_LOGPROBS]
    chosen = tuple(rows[at] for at in places)
    where = mx.array(places)
    exact = logits[where].astype(mx.float32)
    exact = exact - mx.logsumexp(exact, axis=-1, keepdims=True)
    own = mx.take_along_axis(exact, tokens[where][:, None], axis=-1)[:, 0]
    return LogprobArrays(chosen, own, *likeliest(exact, any(row.logprobs for row in chosen)))


@attrs.frozen(eq=False)
class LogprobArrays:
    """Log probabilities of one sampling of *rows*, on the device: of the *chosen* tokens,
    ``(rows,)``, and the likeliest *ids* with their *values*, ``(rows, alternatives)``."""

    rows: tuple[Row, ...]
    chosen: mx.array
    ids: mx.array
    values: mx.array

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All arrays, to be evaluated."""
        return (self.chosen, self.ids, self.values)

    def messages(self, n: int) -> tuple[Logprobs, ...]:
        """The LOGPROBS messages of step *n*. Waits for the device."""
        chosen: Any = self.chosen.tolist()
        ids: Any = self.ids.tolist()
        values: Any = self.values.tolist()
        return tuple(
            Logprobs(n, row.uid, chosen[i], *(tuple(a[i][: row.logprobs]) for a in (ids, values)))
            for i, row in enumerate(self.rows)
        )


def likeliest(exact: mx.array, wanted: bool) -> tuple[mx.array, mx.array]:
    """The likeliest tokens by *exact* ``(rows, vocabulary)``, in falling order, with their values:
    `MAX_LOGPROBS` of each row if they are *wanted*, else none."""
    count = min(MAX_LOGPROBS, exact.shape[-1]) if wanted else 0
    if not count:
        return mx.zeros((len(exact), 0), mx.uint32), exact[:, :0]
    ids = mx.argpartition(-exact, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(exact, ids, axis=-1)
    falling = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, falling, axis=-1), mx.take_along_axis(values, falling, axis=-1)


@attrs.frozen
class Scoring:
    """The tokens to score of one step: *targets* of *row*, the first of them at *position*, by a
    model of *vocabulary* tokens."""

    row: Row
    position: int
    targets: tuple[int, ...]
    vocabulary: int

    @property
    def slices(self) -> Iterator[slice]:
        """The tokens whose logits are made at once, one slice after the other."""
        most, count = max(1, SLICE // (4 * self.vocabulary)), len(self.targets)
        return (slice(at, min(count, at + most)) for at in range(0, count, most))

    def score(self, logits_of: Callable[[slice, tuple[mx.array, ...]], mx.array]) -> ScoreArrays:
        """Build the graph of the scores. *logits_of* gives the logits ``(tokens, vocabulary)`` that
        predict the tokens of a slice; they must depend on the arrays that it is given with it."""
        wanted = 0 if self.row.logprobs == NO_LOGPROBS else self.row.logprobs
        parts: list[tuple[mx.array, ...]] = []
        for part in self.slices:
            exact = logits_of(part, parts[-1] if parts else ()).astype(mx.float32)
            exact = exact - mx.logsumexp(exact, axis=-1, keepdims=True)
            targets = mx.array(self.targets[part], mx.uint32)[:, None]
            chosen = mx.take_along_axis(exact, targets, axis=-1)
            ranks = (exact > chosen).sum(axis=-1) + 1
            parts.append((chosen[:, 0], ranks, *likeliest(exact, wanted > 0)))
        return ScoreArrays(self, tuple(parts))


@attrs.frozen(eq=False)
class ScoreArrays:
    """Scores on the device, as *scoring* says. For each slice: log probabilities and ranks of its
    tokens, and of the likeliest tokens in each place the ids and log probabilities."""

    scoring: Scoring
    parts: tuple[tuple[mx.array, ...], ...]

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All arrays, to be evaluated."""
        return tuple(array for part in self.parts for array in part)

    def messages(self, n: int) -> tuple[Scores, ...]:
        """The SCORES messages of step *n*; none for a row that wants no log probabilities. Waits
        for the device."""
        row, count = self.scoring.row, len(self.scoring.targets)
        if row.logprobs == NO_LOGPROBS:
            return ()
        chosen, ranks, ids, values = (self._column(at) for at in range(4))
        messages = []
        for first in range(0, count, MAX_SCORES):
            part = slice(first, first + MAX_SCORES)
            alternatives = min(row.logprobs, len(ids[0]))
            messages.append(
                Scores(
                    n,
                    row.uid,
                    self.scoring.position + first,
                    tuple(chosen[part]),
                    tuple(ranks[part]),
                    _flat(ids[part], alternatives),
                    _flat(values[part], alternatives),
                )
            )
        return tuple(messages)

    def _column(self, at: int) -> list[Any]:
        columns: list[Any] = []
        for part in self.parts:
            values: Any = part[at].tolist()
            columns += values
        return columns


def _flat(rows: Sequence[Sequence[Any]], count: int) -> tuple[Any, ...]:
    return tuple(value for row in rows for value in row[:count])
