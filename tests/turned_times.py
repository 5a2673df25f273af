"""What it brings on a CPU under Linux that matrices lie as they are multiplied.

``uv run python -m tests.turned_times`` prints milliseconds of a linear layer (in f32 and bf16), of
attention and of an embedding's look-up (in f32), of so many tokens at once: with the matrix as it
is stored, turned, and their ratio. Both take turns; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import mlx.core as mx
from sealring_model.stage.turned import turned

TURNS = 15


def milliseconds(*sides: Callable[[], mx.array]) -> list[float]:
    """The median of each of *sides*, in turns."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS):
        for side, taken in zip(sides, times, strict=True):
            begin = time.perf_counter()
            mx.eval(side())
            taken.append(1000 * (time.perf_counter() - begin))
    return [statistics.median(taken) for taken in times]


def linear(wide: int, out: int, tokens: int, dtype: mx.Dtype) -> list[float]:
    """A layer from *wide* to *out* numbers."""
    weight = mx.random.normal((out, wide)).astype(dtype)
    other = turned(weight)
    inputs = mx.random.normal((1, tokens, wide)).astype(dtype)
    mx.eval(weight, other, inputs)
    return milliseconds(lambda: inputs @ weight.T, lambda: inputs @ other.T)


def lookup(vocabulary: int, wide: int, tokens: int) -> list[float]:
    """The embeddings of *tokens*."""
    weight = mx.random.normal((vocabulary, wide))
    other = turned(weight)
    ids = mx.random.randint(0, vocabulary, (1, tokens))
    mx.eval(weight, other, ids)
    return milliseconds(lambda: weight[ids], lambda: other[ids])


def attention(heads: int, kv_heads: int, length: int, tokens: int) -> list[float]:
    """Attention of the last *tokens* over *length* keys, which are turned each time."""
    queries = mx.random.normal((1, tokens, heads, 64)).swapaxes(1, 2)
    keys = mx.random.normal((1, kv_heads, length, 64))
    mx.eval(queries, keys)
    mask = "causal" if tokens > 1 else None
    attend = mx.fast.scaled_dot_product_attention
    return milliseconds(
        lambda: attend(queries, keys, keys, scale=0.125, mask=mask),
        lambda: attend(queries, turned(keys), keys, scale=0.125, mask=mask),
    )


def main() -> None:
    """Print all of it."""
    for dtype in (mx.float32, mx.bfloat16):
        for wide, out in ((512, 1408), (1024, 2816)):
            for tokens in (1, 8, 64):
                one, other = linear(wide, out, tokens, dtype)
                what = f"{dtype}, {wide} to {out}, {tokens} tokens"
                print(f"{what}: {one:.2f}, {other:.2f} turned: {one / other:.2f}")
    for tokens in (1, 64):
        one, other = lookup(32000, 1024, tokens)
        print(f"look-up of 1024, {tokens} tokens: {one:.2f}, {other:.2f} turned: {one / other:.2f}")
    for heads, kv_heads in ((8, 4), (16, 16)):
        for length in (300, 2048):
            for tokens in (1, 4, 8, 64):
                one, other = attention(heads, kv_heads, length, tokens)
                what = (
                    f"attention, {heads} heads, {kv_heads} of keys, {length} keys, {tokens} tokens"
                )
                print(f"{what}: {one:.2f}, {other:.2f} turned: {one / other:.2f}")


if __name__ == "__main__":
    main()
