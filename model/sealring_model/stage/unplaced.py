"""Forwards of a few tokens of one row whose place in the row is told later.

How many tokens a row has when a step comes depends on how many guesses of the step before were
right. A graph that is built, or even launched, before that is known takes the place of its first
token as an array. So until the arrays of the caches grow it has one shape: keys and values are
written at that place in the whole arrays, all of these are attended to, and a mask hides what
stands behind each token. mlx-lm does much the same for the rows of a batch, whose offsets are an
array, too.

A graph that was launched may turn out not to be wanted. It is then given a place behind all tokens
of the row, and what it writes there is written over later. The place is told as its distance from
the last one that there is room for, so that zeros mean that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
from sealring_protocol.control.scheduler.guesses import GUESSES_AHEAD

from sealring_model.errors import FORWARD_ERRORS
from sealring_model.stage.outline import Axis, HopTensor
from sealring_model.stage.stage import Stage

_READ: Final = 3
"""Tokens that the row of a trial has read."""
_TRIED: Final = 2
"""Tokens of the forward that is tried."""
_USUAL: Final = tuple(1 + size for size in GUESSES_AHEAD)
"""Tokens of steps that read guesses."""
_TOLERANCE: Final = 0.05
"""By which outputs of a trial may differ, relative to the largest: where a mask is an array,
another kernel may attend, which adds up in another order."""


class _UnplacedCache:
    """In place of *cache*, an mlx-lm ``KVCache``, in one forward whose first token is at *place*,
    int32 ``(1,)``. The forward leaves its keys and values in *cache*, whose length stays."""

    def __init__(self, cache: Any, place: mx.array) -> None:
        self._cache: Final = cache
        self.offset = place

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write *keys* and *values* ``(1, heads, tokens, width)``; all there are, with room."""
        cache = self._cache
        cache.keys = mx.slice_update(cache.keys, keys, self.offset, axes=(2,))
        cache.values = mx.slice_update(cache.values, values, self.offset, axes=(2,))
        self.offset = self.offset + keys.shape[2]
        return cache.keys, cache.values

    def make_mask(
        self, tokens: int, return_array: bool = True, window_size: int | None = None
    ) -> mx.array:
        """Which keys each of *tokens* tokens sees, bool ``(tokens, keys with room)``. It is an
        array whatever *return_array* asks for."""
        own = (self.offset + mx.arange(tokens))[:, None]
        keys = mx.arange(self._cache.keys.shape[2])
        seen = keys <= own
        return seen if window_size is None else seen & (keys > own - window_size)


def make_room(slots: Sequence[Any], tokens: int) -> tuple[int, bool]:
    """Give *slots* room for *tokens* more. Returns the last place that these can be written at,
    which is behind all that the row has, and whether arrays had to grow."""
    grew = False
    for cache in slots:
        lacking = cache.offset + tokens - cache.keys.shape[2]
        if lacking > 0:
            grew = True
            _grow(cache, -(-lacking // cache.step) * cache.step)
    return min(cache.keys.shape[2] for cache in slots) - tokens, grew


def _grow(cache: Any, more: int) -> None:
    for name in ("keys", "values"):
        array = getattr(cache, name)
        _, heads, _, width = array.shape
        room = mx.zeros((1, heads, more, width), array.dtype)
        setattr(cache, name, mx.concatenate([array, room], axis=2))


def run_unplaced(
    stage: Stage, inputs: Sequence[mx.array], slots: Sequence[Any], place: mx.array
) -> tuple[mx.array, ...]:
    """What *stage* gives for *inputs* of one row that begin at *place*, int32 ``(1,)``. *slots*
    have room; they are written without a change of their lengths."""
    return stage.run(inputs, [_UnplacedCache(cache, place) for cache in slots])


def are_plain(slots: Sequence[Any]) -> bool:
    """Whether *slots* are mlx-lm's plain caches, and have tokens: this can be done with them."""
    return all(type(cache).__name__ == "KVCache" and not cache.empty() for cache in slots)


def can_run_unplaced(stage: Stage) -> bool:
    """Whether *stage* computes the same when its place is an array, and never looks at the value.
    Tries it, also with as many tokens as steps usually read: a GPU takes up to a second for what it
    has not done before."""
    slots = stage.new_caches()
    place, inputs = mx.array([_READ], mx.int32), _inputs(stage, _TRIED)

    def placed(*given: mx.array) -> list[mx.array]:
        return [*stage.run(given, slots), *_written(slots)]

    def placed_late(place: mx.array, *given: mx.array) -> list[mx.array]:
        return [*run_unplaced(stage, given, slots, place), *_written(slots)]

    try:
        mx.eval(stage.run(_inputs(stage, _READ), slots))
        if not are_plain(slots) or not all(map(_has_tokens_first, (*stage.hop_in, *stage.hop_out))):
            return False
        make_room(slots, _TRIED)
        before = [(cache.keys, cache.values) for cache in slots]
        found = mx.compile(placed_late)(place, *inputs)  # refuses a look at values
        for cache, (keys, values) in zip(slots, before, strict=True):
            cache.keys, cache.values = keys, values
        pairs = zip(found, placed(*inputs), strict=True)
        if not all(_is_close(*pair) for pair in pairs):
            return False
        for tokens in _USUAL:
            make_room(slots, tokens)
            mx.eval(run_unplaced(stage, _inputs(stage, tokens), slots, place))
    except FORWARD_ERRORS:
        return False
    return True


def _inputs(stage: Stage, tokens: int) -> list[mx.array]:
    """Inputs of *tokens* tokens that differ, so that it matters which of them a token sees."""
    if stage.hop_in:
        return stage.dummy_inputs(1, tokens)
    return [mx.arange(1, tokens + 1, dtype=mx.uint32)[None]]


def _has_tokens_first(tensor: HopTensor) -> bool:
    """Whether the first tokens of a row come first in *tensor*."""
    return tensor.spec.dims[:2] == (Axis.ROWS, Axis.TOKENS)


def _written(slots: Sequence[Any]) -> list[mx.array]:
    """What the trial wrote to *slots*."""
    own = slice(_READ, _READ + _TRIED)
    return [array[..., own, :] for cache in slots for array in (cache.keys, cache.values)]


def _is_close(found: mx.array, expected: mx.array) -> bool:
    difference, largest = mx.abs(found - expected).max(), mx.abs(expected).max()
    return bool((difference <= _TOLERANCE * largest).item())
