"""What a row gives at every position, in few numbers: fingerprints at each cut, and scores.

A *score* is of a token that the ring drew: how likely it is here, the likeliest token here, and how
likely the ring's alternatives are. Log probabilities are in f32, from the logits as the model gave
them. The *unit* is that in the last place of the larger of two, in the logits' dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import mlx.core as mx

from sealring_model.engine.fingerprints import of_hop, of_logits
from sealring_model.stage.outline import HopTensor

CHUNK: Final = 2048
"""Tokens of a prompt that are read at once, as mlx-lm does."""

_OTHER_CHUNK: Final = 96
"""The same where a row is read a second time, to see what rounding alone does."""


@attrs.frozen
class CheckedRow:
    """A row of the ring: its *tokens*, of which the first *prompt* are its prompt, and for each
    further one the ids that the ring found likeliest (*alternatives*)."""

    tokens: tuple[int, ...]
    prompt: int
    alternatives: tuple[tuple[int, ...], ...]

    def pieces(self, *, otherwise: bool = False) -> Iterator[tuple[int, ...]]:
        """What is read at once: chunks of the prompt without its last token, then single tokens.
        The last token of all is not read. *otherwise*: in smaller chunks to the end, two tokens at
        least where there are two."""
        read, chunk = self.prompt - 1, CHUNK
        if otherwise:
            read, chunk = len(self.tokens) - 1, _OTHER_CHUNK
        for begin in range(0, read, chunk):
            yield self.tokens[begin : min(read, begin + chunk)]
        for token in self.tokens[read:-1]:
            yield (token,)

    def drawn(self, position: int) -> int | None:
        """The number of the token that was drawn when the one at *position* was read."""
        number = position + 1 - self.prompt
        return number if number >= 0 else None


@attrs.define
class RowNumbers:
    """What one row gave: fingerprints at each cut ``(tensors, tokens, 3)``, of the logits of each
    token that was drawn ``(3,)``, and scores."""

    cuts: list[mx.array | None] = attrs.field(factory=list)
    logits: list[mx.array] = attrs.field(factory=list)
    scores: list[dict[str, Any]] = attrs.field(factory=list)

    def draw(self, row: CheckedRow, position: int, logits: mx.array) -> None:
        """After the token at *position* was read there were *logits* ``(vocabulary,)``."""
        number = row.drawn(position)
        if number is not None:
            self.logits.append(logits_numbers(logits))
            token = row.tokens[position + 1]
            self.scores.append(score(logits, token, row.alternatives[number]))


def hop_numbers(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> mx.array | None:
    """The fingerprints of what one row passed on, ``(tensors, tokens, 3)``."""
    found = of_hop(tensors, arrays)
    return None if found is None else found[:, 0]


def logits_numbers(logits: mx.array) -> mx.array:
    """The fingerprint of *logits* ``(vocabulary,)``, ``(3,)``."""
    return of_logits(logits[None])[0, 0, 0]


def differences(one: mx.array, other: mx.array) -> mx.array:
    """By how much fingerprints of *other* ``(..., tokens, 3)`` differ from those of *one*, relative
    to the root mean square, over all tensors: ``(tokens,)``."""
    sizes = mx.abs(one - other).max(axis=-1) / mx.maximum(mx.abs(one[..., 2]), 1e-30)
    return sizes.reshape(-1, sizes.shape[-1]).max(axis=0)


def score(logits: mx.array, token: int, alternatives: Sequence[int]) -> dict[str, Any]:
    """The score of *token* by *logits* ``(vocabulary,)``."""
    exact = logits.astype(mx.float32)
    exact = exact - mx.logsumexp(exact)
    best = mx.argmax(logits).item()
    wanted: Any = exact[mx.array([best, token, *alternatives], mx.uint32)].tolist()
    size = max(1.0, abs(wanted[0]), abs(wanted[1]))
    unit = float(mx.finfo(logits.dtype).eps) * 2.0 ** math.floor(math.log2(size))
    return {
        "best": best,
        "best_value": wanted[0],
        "chosen": wanted[1],
        "values": wanted[2:],
        "unit": unit,
    }
