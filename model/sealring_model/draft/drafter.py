"""Follows the rows of a ring with a small model, and guesses their next tokens.

Each row has caches of its own. They hold the row's tokens and, after these, the guesses. When a
token comes that is not the one guessed, the guesses go and the caches are cut.

A row that samples is guessed by the draw that the ring will make: the same noise, from the row's
seed, choice and the token's position (`sampling.sampler`), over the draft model's probabilities.
The two draws agree more often than two independent ones would, since the noise is common to both.
The noise depends on the width of the logits; so the draft's are made as wide as the ring's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Row

from sealring_model.draft.frames import DraftFrame, DraftFrameKind
from sealring_model.draft.memory import MOST_TOKENS
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.sampling.logit_processors import LogitProcessor, LogitProcessors
from sealring_model.sampling.sampler import sample
from sealring_model.stage.caches import FULL_CACHES, arrays

# ---------------------------------------------------------------------- caches
# The caches of one row of a draft model, which can go back to a shorter row.
#
# Caches that hold every token are trimmed. Others (recurrent states, windows) are kept as they
# were before the guesses, and the row is read from there again. Both are mlx-lm's own. A copy of
# a cache shares its arrays: MLX copies one when it is next written to.


class DraftCaches:
    """Caches of *model* for one row."""

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._now: list[Any] = self._fresh()
        self.length = 0
        """Tokens that they hold."""
        self._kept: tuple[int, list[Any]] | None = None  # at a length, if they cannot be cut

    def read(self, ids: list[int]) -> mx.array:
        """Read *ids*; the logits after the last of them."""
        logits: mx.array = self._model(mx.array([ids], mx.uint32), cache=self._now)
        self.length += len(ids)
        return logits[0, -1]

    def evaluate(self) -> None:
        """Compute the caches."""
        mx.eval(arrays(self._now))

    def keep(self) -> None:
        """What is read from now on may be taken back."""
        if self._full:
            self._kept = None
        else:
            self._kept = self.length, copy.deepcopy(self._now)

    def cut(self, length: int) -> None:
        """Go back to the first *length* tokens, or to fewer of them."""
        if length >= self.length:
            return
        if self._full and self._can_cut:
            for cache in self._now:
                cache.trim(self.length - length)
            self.length = length
        elif self._kept is not None and self._kept[0] <= length:
            self.length, self._now = self._kept[0], copy.deepcopy(self._kept[1])
        else:
            self.length, self._now, self._kept = 0, self._fresh(), None

    @property
    def _full(self) -> bool:
        """Whether they hold every token, and so can always be cut."""
        return all(type(cache).__name__ in FULL_CACHES for cache in self._now)

    @property
    def _can_cut(self) -> bool:
        return all(cache.is_trimmable() for cache in self._now)

    def _fresh(self) -> list[Any]:
        made: list[Any] = mlx_lm("models.cache").make_prompt_cache(self._model)
        return made


DEPTH: Final = 8
"""Tokens that are guessed ahead of a row, at most."""

CHUNK: Final = 256
"""Tokens of a prompt that are read before the next look at what the ring has drawn."""


@attrs.define(eq=False)
class _Row:
    """A row that is followed: its *tokens*, and the *guesses* that follow them. *processors* apply
    its penalties and bias to logits: one for the tokens, and one more after each guess."""

    row: Row
    tokens: list[int]
    caches: DraftCaches
    processors: list[LogitProcessor | None]
    guesses: list[int] = attrs.field(factory=list)

    @property
    def unread(self) -> list[int]:
        """The tokens, and then the guesses, that are not in the caches."""
        known, read = len(self.tokens), self.caches.length
        return self.tokens[read:] + self.guesses[max(0, read - known) :]

    @property
    def wants(self) -> bool:
        """Whether there is something to do for it."""
        return len(self.guesses) < DEPTH


class Drafter:
    """Guesses tokens with *model*, an mlx-lm model, for a ring whose logits are *vocabulary* wide.
    Raises what mlx-lm raises."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._model: Final = model
        self._vocabulary: Final = vocabulary
        self._rows: Final[dict[int, _Row]] = {}

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return any(row.wants for row in self._rows.values())

    def handle(self, frame: DraftFrame) -> None:
        """The head tells of a row."""
        match frame.kind:
            case DraftFrameKind.OPEN if frame.row is not None:
                self._open(frame.uid, frame.row, frame.ids)
            case DraftFrameKind.TOKENS:
                self._tokens(frame.uid, frame.position, frame.ids)
            case DraftFrameKind.CLOSE:
                self._rows.pop(frame.uid, None)
            case _:
                raise ValueError(f"the head does not say {frame.kind.name}")

    def work(self) -> DraftFrame | None:
        """Run the model once for the row that has the fewest guesses. Its guesses, if there is a
        new one; None if only a chunk was read, or there is nothing to do."""
        waiting = {uid: row for uid, row in self._rows.items() if row.wants}
        if not waiting:
            return None
        uid = min(waiting, key=lambda uid: len(waiting[uid].guesses))
        row = waiting[uid]
        unread = row.unread
        if len(unread) > CHUNK:
            row.caches.read(unread[:CHUNK])
            row.caches.evaluate()
            return None
        logits = row.caches.read(unread)
        if row.caches.length == len(row.tokens):
            row.caches.keep()
        row.guesses.append(self._draw(row, logits))
        return DraftFrame(DraftFrameKind.GUESS, uid, len(row.tokens), tuple(row.guesses))

    def _open(self, uid: int, row: Row, tokens: Sequence[int]) -> None:
        processor = LogitProcessors(self._vocabulary).take(0, (row,))
        self._rows[uid] = _Row(row, list(tokens), DraftCaches(self._model), [processor])
        self._make_room()

    def _tokens(self, uid: int, position: int, ids: Sequence[int]) -> None:
        """Row *uid* has *ids* from *position* on. What is known of it already is left aside; a row
        that lacks some is followed no more."""
        row = self._rows.get(uid)
        if row is None:
            return
        if position > len(row.tokens):
            del self._rows[uid]
            return
        for token in ids[len(row.tokens) - position :]:
            self._token(row, token)
        self._make_room()

    def _token(self, row: _Row, token: int) -> None:
        if row.guesses and row.guesses[0] == token:
            row.guesses.pop(0)
            row.processors.pop(0)
        else:
            row.guesses.clear()
            row.caches.cut(len(row.tokens))
            row.processors = [_after(row.processors[0], token)]
        row.tokens.append(token)

    def _make_room(self) -> None:
        while sum(len(row.tokens) for row in self._rows.values()) > MOST_TOKENS:
            del self._rows[max(self._rows, key=lambda uid: len(self._rows[uid].tokens))]

    def _draw(self, row: _Row, logits: mx.array) -> int:
        """The next guess for *row*, from *logits* ``(vocabulary,)`` of the draft model."""
        lacking = self._vocabulary - logits.shape[0]
        if lacking > 0:
            logits = mx.pad(logits, (0, lacking), constant_values=-math.inf)
        logits = logits[None, : self._vocabulary]
        processor = row.processors[-1]
        if processor is not None:
            logits = processor.apply(logits)
        token = sample(logits, [row.row], [len(row.tokens) + len(row.guesses)])
        (guess,) = map(int, token.tolist())  # type: ignore[arg-type]
        row.processors.append(_after(processor, guess))
        return guess


def _after(processor: LogitProcessor | None, token: int) -> LogitProcessor | None:
    """*processor* once *token* has been drawn."""
    if processor is None:
        return None
    after = processor.after(mx.array([token], mx.uint32))
    mx.eval(*after.arrays)
    return after
