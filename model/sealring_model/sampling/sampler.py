"""From logits to tokens, so that a row's text does not depend on the other rows in the batch.

A row that samples draws from its own key, which is derived from (seed, choice, absolute position of
the new token) and nothing else. So the draw is the same for a row alone and among others, and again
after the row was evicted and prefilled anew. It is the Gumbel-max trick (argmax of logits plus
Gumbel noise), with each row's noise made from its own key. Noise for all rows drawn at once from a
stack of keys would be other numbers. Temperature and cuts come before that; they work on each row's
own logits, all rows together.

The order is that of most servers: temperature, then top-k, then top-p over what top-k left, then
min-p, which keeps the tokens that are at least that likely relative to the likeliest. A greedy row
is the plain argmax, and a batch of greedy rows costs nothing more.

Nucleus (top-p) sampling: Holtzman et al., https://arxiv.org/abs/1904.09751. Min-p: Nguyen et al.,
https://arxiv.org/abs/2407.01082.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
from sealring_protocol.codec.messages import Row

_KEY: Final = struct.Struct(">QHQ")
_WORDS: Final = struct.Struct(">II")


def row_key(row: Row, position: int) -> tuple[int, int]:
    """The two 32-bit words of *row*'s random key for the token at absolute *position*."""
    content = _KEY.pack(row.seed, row.choice, position)
    words = _WORDS.unpack(hashlib.blake2b(content, digest_size=8, person=b"sealring/row").digest())
    return words[0], words[1]


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


def _column(values: list[float]) -> mx.array:
    return mx.array(values, mx.float32)[:, None]


def _tempered(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Logits divided by temperature in f32, the likeliest at 0, so that no temperature
    overflows."""
    exact = logits.astype(mx.float32)
    scale = _column([1.0 / max(row.temperature, 1e-6) for row in rows])
    return (exact - exact.max(axis=-1, keepdims=True)) * scale


def _cut(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """*logits* with minus infinity for the tokens that a row's top-k, top-p and min-p cut."""
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
