"""Attention on CUDA where MLX's own is slow: rows of different lengths, a few tokens of a row, and
prompts of lengths that are new.

The rows of a batch stand in left-padded rectangles, so each of their decodes has a mask. MLX's own
kernel takes no mask. With a mask MLX falls back to batched matrix products, a product with the mask
and a softmax: half a dozen kernels, whose launches take longer than their work. Here it is one
kernel.

A step that reads guesses has a few tokens of one row. MLX gives them to cuDNN, which plans anew
for each number of queries and of keys. That takes 40 to 80 ms, and each step has other keys. Here
they are as many rows with the same keys, of which each sees one more than the row before, or those
that a mask says (see `lookahead`).

Each block of threads has the keys of one row and one head, and all queries that go with them
(grouped queries, arXiv:2305.13245), so that each key and value is read once. A thread has eight
elements of a key, so a warp works on several keys at a time, each by a team of threads. A team
keeps the softmax of the keys that it has seen as their maximum, their sum and a weighted value
(arXiv:1805.02867). These are combined at the end, in the warp and then in the block. All of that is
in f32, whatever the queries are.

Few rows with many keys do not give enough blocks for the device, and the fallback is faster.

More tokens of a row are for cuDNN, which is much faster than the fallback: on an H200 0.13 ms in
place of 0.81 for 512 queries and 8,192 keys. But a plan takes some 40 ms at best, and a use of it
0.2, and nearly each chunk has a length that is new. So the tokens of a row are divided into
blocks, which begin at multiples of their size, and each is a call. Its queries are filled up to the
whole block, and its keys up to the end of it, by one kernel. So there is one plan for each block
that a row may have, and MLX keeps 256. Those of the first blocks are made at once. What follows the
last key is seen by what follows the last query alone, and nobody looks at that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.limits import MAX_GUESSED

_WARPS: Final = 8
_EACH: Final = 8
"""Elements of a key for each thread."""
_WIDTHS: Final = (64, 128, 256)
_TYPES: Final = (mx.bfloat16, mx.float16)
_SHARED: Final = 1024
"""Queries of a block times their width, at most: each warp keeps them in f32, in 48 KiB of shared
memory."""
_KEYS_PER_BLOCK: Final = 32
"""Keys of a row for each block, up to which this kernel is used. On an H200 it was faster there,
from 2 rows with 500 keys to 32 rows with 4,000, and slower for 2 rows with 2,000."""

_FEW: Final = 1 + MAX_GUESSED
"""Tokens of a row for which cuDNN is avoided: the one drawn last, and the most guesses that a step
reads."""

_CUDNN_WIDTH: Final = 128
_LEAST: Final = 32
_BLOCK: Final = 512
"""Tokens of a block. Where a row has no more, it is one block of a power of two."""
_FAR: Final = 16_384
"""From this token of a row on blocks are twice as long, so that a long row needs fewer plans."""
_AT_ONCE: Final = 2048
"""Up to this length a row that is read from its beginning is one block."""
_USUAL: Final = 8192
"""Tokens of a row whose blocks are planned at the first call, which is made as a model is loaded:
that tries a chunk."""

_SOURCE: Final = f"""
    constexpr int WARPS = {_WARPS}, EACH = {_EACH};
    constexpr int LANES = WIDTH / EACH, TEAMS = 32 / LANES, STRIDE = WARPS * TEAMS, AT_ONCE = 4;
    constexpr float LEAST = -1e30f;
    __shared__ float sums[WARPS][QUERIES][WIDTH];
    __shared__ float tops[WARPS][QUERIES], totals[WARPS][QUERIES];

    const int heads = keys_shape[1], length = keys_shape[2];
    const int row = blockIdx.x / heads, head = blockIdx.x % heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int team = lane / LANES, first = (lane % LANES) * EACH;

    const T* key = keys + row * keys_strides[0] + head * keys_strides[1] + first * keys_strides[3];
    const T* value =
        values + row * values_strides[0] + head * values_strides[1] + first * values_strides[3];
    const bool* seen = mask + (mask_shape[0] == 1 ? 0 : row * mask_strides[0]);
    const int sees = length - queries_shape[0] + row + 1;

    float query[QUERIES][EACH], sum[QUERIES][EACH], top[QUERIES], total[QUERIES];
    #pragma unroll
    for (int q = 0; q < QUERIES; q++) {{
        const T* from = queries + row * queries_strides[0] +
            (head * QUERIES + q) * queries_strides[1] + first * queries_strides[3];
        top[q] = LEAST;
        total[q] = 0;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {{
            query[q][e] = static_cast<float>(from[e * queries_strides[3]]) * factor[0];
            sum[q][e] = 0;
        }}
    }}

    for (int begin = warp * TEAMS; begin < length; begin += STRIDE * AT_ONCE) {{
        Eight<T> k[AT_ONCE], v[AT_ONCE];
        bool there[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {{
            const int at = begin + team + i * STRIDE;
            there[i] = at < length && (CAUSAL ? at < sees : seen[at * mask_strides[3]]);
            if (there[i]) {{
                k[i].load(key + at * keys_strides[2], keys_strides[3]);
                v[i].load(value + at * values_strides[2], values_strides[3]);
            }} else {{
                k[i].clear();
                v[i].clear();
            }}
        }}
        #pragma unroll
        for (int q = 0; q < QUERIES; q++) {{
            float score[AT_ONCE], highest = top[q];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {{
                score[i] = 0;
                #pragma unroll
                for (int e = 0; e < EACH; e++) score[i] += query[q][e] * k[i][e];
                #pragma unroll
                for (int by = LANES / 2; by > 0; by /= 2)
                    score[i] += __shfl_xor_sync(0xFFFFFFFF, score[i], by);
                if (there[i]) highest = fmaxf(highest, score[i]);
            }}
            const float less = exp2f(top[q] - highest);
            top[q] = highest;
            total[q] *= less;
            #pragma unroll
            for (int e = 0; e < EACH; e++) sum[q][e] *= less;
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {{
                const float weight = there[i] ? exp2f(score[i] - highest) : 0.0f;
                total[q] += weight;
                #pragma unroll
                for (int e = 0; e < EACH; e++) sum[q][e] += weight * v[i][e];
            }}
        }}
    }}

    #pragma unroll
    for (int q = 0; q < QUERIES; q++) {{
        float highest = top[q];
        #pragma unroll
        for (int by = LANES; by < 32; by *= 2)
            highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, by));
        const float less = exp2f(top[q] - highest);
        total[q] *= less;
        #pragma unroll
        for (int e = 0; e < EACH; e++) sum[q][e] *= less;
        #pragma unroll
        for (int by = LANES; by < 32; by *= 2) {{
            total[q] += __shfl_xor_sync(0xFFFFFFFF, total[q], by);
            #pragma unroll
            for (int e = 0; e < EACH; e++)
                sum[q][e] += __shfl_xor_sync(0xFFFFFFFF, sum[q][e], by);
        }}
        if (lane < LANES) {{
            #pragma unroll
            for (int e = 0; e < EACH; e++) sums[warp][q][first + e] = sum[q][e];
        }}
        if (lane == 0) {{
            tops[warp][q] = highest;
            totals[warp][q] = total[q];
        }}
    }}
    __syncthreads();

    for (int at = threadIdx.x; at < QUERIES * WIDTH; at += blockDim.x) {{
        const int q = at / WIDTH, e = at % WIDTH;
        float highest = LEAST, all = 0, mean = 0;
        for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, tops[w][q]);
        for (int w = 0; w < WARPS; w++) {{
            const float less = exp2f(tops[w][q] - highest);
            all += less * totals[w][q];
            mean += less * sums[w][q][e];
        }}
        out[static_cast<size_t>(blockIdx.x) * QUERIES * WIDTH + at] =
            static_cast<T>(all == 0 ? 0.0f : mean / all);
    }}
"""

_HEADER: Final = f"""
template <typename T>
struct alignas(16) Eight {{
    T of[{_EACH}];
    __device__ void load(const T* from, long long step) {{
        if (step == 1 && reinterpret_cast<size_t>(from) % 16 == 0)
            *reinterpret_cast<uint4*>(of) = *reinterpret_cast<const uint4*>(from);
        else
            for (int e = 0; e < {_EACH}; e++) of[e] = from[e * step];
    }}
    __device__ void clear() {{ *reinterpret_cast<uint4*>(of) = uint4{{0, 0, 0, 0}}; }}
    __device__ float operator[](int e) const {{ return static_cast<float>(of[e]); }}
}};
"""

_FILL: Final = f"""
    constexpr int EACH = {_EACH};
    const int rows = queries_shape[0], heads = queries_shape[1], kv_heads = keys_shape[1];
    const int ahead = numbers[0], many = numbers[1], length = numbers[2];
    const long long of_queries = 1LL * rows * many * heads * (WIDTH / EACH);
    const long long of_keys = 1LL * rows * kv_heads * length * (WIDTH / EACH);
    const long long of_values = 1LL * rows * kv_heads * length * (WIDE / EACH);
    long long at = 1LL * blockIdx.x * blockDim.x + threadIdx.x;
    if (at < of_queries) {{
        const long long token = at / (WIDTH / EACH) / heads;
        fill<WIDTH>(
            queries, queries_strides[0], queries_strides[2], queries_strides[1], queries_strides[3],
            token / many, token % many - ahead, at / (WIDTH / EACH) % heads, queries_shape[2],
            at, filled_queries);
        return;
    }}
    at -= of_queries;
    if (at < of_keys) {{
        const long long head = at / (WIDTH / EACH) / length;
        fill<WIDTH>(
            keys, keys_strides[0], keys_strides[2], keys_strides[1], keys_strides[3],
            head / kv_heads, at / (WIDTH / EACH) % length, head % kv_heads, keys_shape[2],
            at, filled_keys);
        return;
    }}
    at -= of_keys;
    if (at < of_values) {{
        const long long head = at / (WIDE / EACH) / length;
        fill<WIDE>(
            values, values_strides[0], values_strides[2], values_strides[1], values_strides[3],
            head / kv_heads, at / (WIDE / EACH) % length, head % kv_heads, values_shape[2],
            at, filled_values);
    }}
"""

_FILL_HEADER: Final = f"""
template <int WIDTH, typename T>
__device__ void fill(
    const T* from, long long of_row, long long of_token, long long of_head, long long of_element,
    long long row, long long token, long long head, int tokens, long long at, T* to) {{
    const int element = at % (WIDTH / {_EACH}) * {_EACH};
    Eight<T> eight;
    if (token >= 0 && token < tokens)
        eight.load(
            from + row * of_row + token * of_token + head * of_head + element * of_element,
            of_element);
    else
        eight.clear();
    *reinterpret_cast<uint4*>(to + at * {_EACH}) = *reinterpret_cast<const uint4*>(eight.of);
}}
"""

_PER_NAT: Final = 1.4426950408889634
"""The binary logarithm of e: the device computes powers of two."""


@functools.cache
def _kernel() -> Any:
    make: Any = mx.fast.cuda_kernel
    return make(
        name="sealring_attention",
        input_names=["queries", "keys", "values", "mask", "factor"],
        output_names=["out"],
        source=_SOURCE,
        header=_HEADER,
        ensure_row_contiguous=False,
    )


@functools.cache
def _fill_kernel() -> Any:
    make: Any = mx.fast.cuda_kernel
    return make(
        name="sealring_fill",
        input_names=["queries", "keys", "values", "numbers"],
        output_names=["filled_queries", "filled_keys", "filled_values"],
        source=_FILL,
        header=_HEADER + _FILL_HEADER,
        ensure_row_contiguous=False,
    )


@functools.cache
def _factor(scale: float) -> mx.array:
    return mx.array([scale * _PER_NAT])


@functools.cache
def _no_mask() -> mx.array:
    return mx.array([[[[True]]]])


def fits(queries: mx.array, keys: mx.array, values: mx.array, mask: object) -> bool:
    """Whether `attend` takes these arguments, and is faster."""
    if not isinstance(mask, mx.array) or mask.dtype != mx.bool_ or mask.ndim != 4:
        return False
    rows, _, tokens, _ = queries.shape
    _, kv_heads, length, _ = keys.shape
    return (
        tokens == 1
        and _takes(queries, keys, values)
        and mask.shape in {(rows, 1, 1, length), (1, 1, 1, length)}
        and length <= _KEYS_PER_BLOCK * rows * kv_heads
    )


def few(queries: mx.array, keys: mx.array, values: mx.array, mask: object) -> bool:
    """Whether these are the last few tokens of one row, in causal order."""
    rows, _, tokens, _ = queries.shape
    return (
        isinstance(mask, str)
        and mask == "causal"
        and rows == 1
        and 1 < tokens <= _FEW
        and tokens <= keys.shape[2]
        and _takes(queries, keys, values)
    )


def few_masked(queries: mx.array, keys: mx.array, values: mx.array, mask: object) -> bool:
    """Whether these are a few tokens of one row, of which a mask says what each sees."""
    rows, _, tokens, _ = queries.shape
    return (
        isinstance(mask, mx.array)
        and mask.dtype == mx.bool_
        and mask.shape == (tokens, keys.shape[2])
        and rows == 1
        and tokens <= _FEW
        and _takes(queries, keys, values)
    )


def is_planned(queries: mx.array, keys: mx.array, values: mx.array, mask: object) -> bool:
    """Whether these are the last tokens of rows, in causal order, for which cuDNN makes a plan."""
    return (
        isinstance(mask, str)
        and mask == "causal"
        and 1 < queries.shape[2] <= keys.shape[2]
        and queries.dtype == keys.dtype == values.dtype
        and queries.dtype in _TYPES
        and max(queries.shape[3], values.shape[3]) <= _CUDNN_WIDTH
        and queries.shape[3] % _EACH == values.shape[3] % _EACH == 0
    )


@attrs.frozen
class AttentionBlock:
    """The tokens of a row from *first* to *last* (excluded), and from *begin* to *end* (excluded)
    those that a plan is for."""

    first: int
    last: int
    begin: int
    end: int


def blocks(tokens: int, length: int) -> Iterator[AttentionBlock]:
    """The blocks of the last *tokens* of a row of *length*."""
    first = length - tokens
    while first < length:
        size = _size(first, length)
        begin = first // size * size
        last = min(length, begin + size)
        yield AttentionBlock(first, last, begin, begin + size)
        first = last


def _size(first: int, length: int) -> int:
    """The tokens of the block in which *first* is, of a row of *length*."""
    if length <= _BLOCK:
        return max(_LEAST, 1 << (length - 1).bit_length())
    if not first and length <= _AT_ONCE:
        return -(-length // _BLOCK) * _BLOCK
    return _BLOCK if first < _FAR else 2 * _BLOCK


def _takes(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether the kernel is written for such heads."""
    rows, heads, _, width = queries.shape
    _, kv_heads, length, _ = keys.shape
    return (
        width in _WIDTHS
        and queries.dtype in _TYPES
        and keys.shape == values.shape == (rows, kv_heads, length, width)
        and queries.dtype == keys.dtype == values.dtype
        and heads % kv_heads == 0
        and heads // kv_heads * width <= _SHARED
        and length > 0
    )


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array
) -> mx.array:
    """What `mx.fast.scaled_dot_product_attention` gives for arguments that `fits` is true of:
    *queries* ``(rows, heads, 1, width)``, *keys* and *values* ``(rows, kv_heads, length, width)``
    and *mask* ``(rows or 1, 1, 1, length)``. Of a row that sees no key, zeros."""
    return _launch(queries, keys, values, scale, mask, causal=False)


def attend_few(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | None = None,
) -> mx.array:
    """The same for arguments that `few` is true of, or with *mask* `few_masked`: *queries*
    ``(1, heads, tokens, width)``, *mask* ``(tokens, length)``."""
    tokens = queries.shape[2]
    found = _launch(
        queries.transpose(2, 1, 0, 3),
        mx.broadcast_to(keys, (tokens, *keys.shape[1:])),
        mx.broadcast_to(values, (tokens, *values.shape[1:])),
        scale,
        _no_mask() if mask is None else mask[:, None, None],
        causal=mask is None,
    )
    return found.transpose(2, 1, 0, 3)


def attend_planned(
    theirs: Callable[..., mx.array],
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    **others: Any,
) -> mx.array:
    """What *theirs*, MLX's own, gives for arguments that `is_planned` is true of, and *others*."""
    tokens, length = queries.shape[2], keys.shape[2]
    before, parts = length - tokens, []
    for of in blocks(tokens, length):
        filled = _fill(
            queries[:, :, of.first - before : of.last - before],
            keys[:, :, : of.last],
            values[:, :, : of.last],
            of.first - of.begin,
            of.end - of.last,
        )
        whole = theirs(*filled, mask="causal", **others)
        parts.append(whole[:, :, of.first - of.begin : of.last - of.begin].transpose(0, 2, 1, 3))
    found = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
    return found.transpose(0, 2, 1, 3)


def _fill(
    queries: mx.array, keys: mx.array, values: mx.array, ahead: int, behind: int
) -> tuple[mx.array, mx.array, mx.array]:
    """The three with so many zeros *behind*, and the *queries* with some *ahead*, too. Plans are
    for a layout, too: the heads of a query stand side by side, and keys and values in order."""
    rows, heads, tokens, width = queries.shape
    kv_heads, length, wide = keys.shape[1], keys.shape[2] + behind, values.shape[3]
    many = ahead + tokens + behind
    count = rows * (many * heads * width + kv_heads * length * (width + wide)) // _EACH
    queries, keys, values = _fill_kernel()(
        inputs=[queries, keys, values, _numbers(ahead, many, length)],
        output_shapes=[
            (rows, many, heads, width),
            (rows, kv_heads, length, width),
            (rows, kv_heads, length, wide),
        ],
        output_dtypes=[queries.dtype] * 3,
        grid=(count, 1, 1),
        threadgroup=(min(count, 256), 1, 1),
        template=[("T", queries.dtype), ("WIDTH", width), ("WIDE", wide)],
    )
    return queries.transpose(0, 2, 1, 3), keys, values


@functools.lru_cache(maxsize=1024)
def _numbers(*numbers: int) -> mx.array:
    return mx.array(numbers, mx.int32)


@functools.cache
def _plan(
    theirs: Callable[..., mx.array], heads: int, kv_heads: int, width: int, dtype: mx.Dtype
) -> None:
    """Make the plans of the blocks of usual rows."""
    lengths = [32, 64, 128, 256, *range(_BLOCK, _AT_ONCE + 1, _BLOCK)]
    shapes = [(n, n) for n in lengths]
    shapes += [(_BLOCK, n) for n in range(2 * _BLOCK, _USUAL + 1, _BLOCK)]
    for tokens, length in shapes:
        queries = mx.zeros((1, heads, tokens, width), dtype)
        keys = mx.zeros((1, kv_heads, length, width), dtype)
        mx.eval(attend_planned(theirs, queries, keys, keys, scale=1.0))


def _launch(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array,
    *,
    causal: bool,
) -> mx.array:
    """`attend`; or, if *causal*, the rows are the last tokens of one row, and *mask* is not
    read."""
    rows, heads, _, width = queries.shape
    kv_heads = keys.shape[1]
    threads = 32 * _WARPS
    (out,) = _kernel()(
        inputs=[queries, keys, values, mask, _factor(scale)],
        output_shapes=[queries.shape],
        output_dtypes=[queries.dtype],
        grid=(threads * rows * kv_heads, 1, 1),
        threadgroup=(threads, 1, 1),
        template=[
            ("T", queries.dtype),
            ("QUERIES", heads // kv_heads),
            ("WIDTH", width),
            ("CAUSAL", causal),
        ],
    )
    return out


@functools.cache
def install() -> None:
    """Have every model of this process use `attend` where it fits, if there is CUDA and the kernel
    compiles. Launches the kernel once, so `LaunchSettings.choose` must have been called before."""
    fast: Any = mx.fast
    theirs = fast.scaled_dot_product_attention
    if not mx.cuda.is_available() or not _compiles():
        return

    def attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *,
        scale: float,
        mask: Any = None,
        sinks: Any = None,
        **others: Any,
    ) -> mx.array:
        """Takes the arguments of MLX's own, the first three by position."""
        if sinks is None and not others:
            if fits(queries, keys, values, mask):
                return attend(queries, keys, values, scale, mask)
            if few(queries, keys, values, mask):
                return attend_few(queries, keys, values, scale)
            if few_masked(queries, keys, values, mask):
                return attend_few(queries, keys, values, scale, mask)
        if is_planned(queries, keys, values, mask) and not others:
            if keys.shape == values.shape:
                heads, _, width = queries.shape[1:]
                _plan(theirs, heads, keys.shape[1], width, queries.dtype)
            return attend_planned(theirs, queries, keys, values, scale=scale, sinks=sinks)
        found: mx.array = theirs(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks, **others
        )
        return found

    fast.scaled_dot_product_attention = attention


def _compiles() -> bool:
    tiny = mx.zeros((1, 1, 1, _WIDTHS[0]), _TYPES[0])
    try:
        mx.eval(attend(tiny, tiny, tiny, 1.0, mx.ones((1, 1, 1, 1), mx.bool_)))
    except RuntimeError:
        return False
    return True
