"""How long the rows of a batch wait for one that joins them.

``uv run python -m tests.join_times`` prints milliseconds until a row of 4,000 tokens stands in a
batch of four rows of 300, in four layers, and their first token has been written: as this project
joins them, and as mlx-lm does. Both take turns; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from sealring_model.stage.caches import extended

LAYERS, HEADS, WIDTH = 4, 4, 64
TURNS = 9


def read(tokens: int) -> Any:
    """The cache of one row that has read so many *tokens*, in one layer."""
    cache = KVCache()
    cache.update_and_fetch(*(mx.random.normal((1, HEADS, tokens, WIDTH)) for _ in range(2)))
    mx.eval(cache.keys, cache.values)
    return cache


def write(caches: Sequence[Any], rows: int) -> None:
    """Write one token of each of *rows*."""
    token = mx.zeros((rows, HEADS, 1, WIDTH))
    for cache in caches:
        cache.update_and_fetch(token, token)
    mx.eval([(cache.keys, cache.values) for cache in caches])


def theirs(slots: list[Any], merged: list[Any]) -> list[Any]:
    """mlx-lm's own way."""
    for cache, joiners in zip(slots, merged, strict=True):
        cache.extend(joiners)
    return slots


def milliseconds(join: Callable[[list[Any], list[Any]], list[Any]]) -> float:
    """One join."""
    batch = [KVCache.merge([read(300) for _ in range(4)]) for _ in range(LAYERS)]
    write(batch, 4)
    joiners = [read(4000) for _ in range(LAYERS)]
    begin = time.perf_counter()
    found = join(batch, [KVCache.merge([cache]) for cache in joiners])
    mx.eval([(cache.keys, cache.values) for cache in found])
    write(found, 5)
    return 1000 * (time.perf_counter() - begin)


def main() -> None:
    """Print all of it."""
    turns = [(milliseconds(extended), milliseconds(theirs)) for _ in range(TURNS)]
    ours, its = (statistics.median(side) for side in zip(*turns, strict=True))
    print(f"here {ours:.0f} ms, mlx-lm's extend {its:.0f} ms: {its / ours:.2f} times as long")


if __name__ == "__main__":
    main()
