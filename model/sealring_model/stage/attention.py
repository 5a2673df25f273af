"""Attention on CUDA where MLX's own is slow: rows of different lengths, and a few tokens of a row.

The rows of a batch stand in left-padded rectangles, so each of their decodes has a mask. MLX's own
kernel takes no mask. With a mask MLX falls back to batched matrix products, a product with the mask
and a softmax: half a dozen kernels, whose launches take longer than their work. Here it is one
kernel.

A step that reads guesses has a few tokens of one row. MLX gives them to cuDNN, which plans anew
for each number of queries and of keys. That takes 60 to 80 ms, and each step has other keys. Here
they are as many rows with the same keys, of which each sees one more than the row before, or those
that a mask says (see `lookahead`).

Each block of threads has the keys of one row and one head, and all queries that go with them
(grouped queries, arXiv:2305.13245), so that each key and value is read once. A thread has eight
elements of a key, so a warp works on several keys at a time, each by a team of threads. A team
keeps the softmax of the keys that it has seen as their maximum, their sum and a weighted value
(arXiv:1805.02867). These are combined at the end, in the warp and then in the block. All of that is
in f32, whatever the queries are.

Few rows with many keys do not give enough blocks for the device, and the fallback is faster.
"""

from __future__ import annotations

import functools
from typing import Any, Final

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
