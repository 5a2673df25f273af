"""Between MLX arrays and tensors on the wire.

Out: the memory of an evaluated, contiguous array is the tensor's data, and is not copied. In: one
copy, made without MLX's device and seen through an unsigned view, because the buffer protocol has
no bfloat16. Nothing is ever cast: a ring fixes the dtype of its hidden states when its ranks say
HELLO, and another dtype is refused.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final, Literal

import mlx.core as mx
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

from sealring_model.errors import IntegrityError

MLX_DTYPES: Final = {
    DType.F32: mx.float32,
    DType.F16: mx.float16,
    DType.BF16: mx.bfloat16,
    DType.U32: mx.uint32,
}
_BY_MLX: Final = {dtype: code for code, dtype in MLX_DTYPES.items()}
_UNSIGNED: Final[dict[int, Literal["H", "I"]]] = {2: "H", 4: "I"}


def dtype_of(dtype: mx.Dtype) -> DType:
    """*dtype* as messages name it. Raises `KeyError` if they cannot."""
    return _BY_MLX[dtype]


def outgoing(array: mx.array) -> mx.array:
    """*array* laid out for `data_of`, as a part of its graph."""
    return mx.contiguous(array)


def memory_of(array: mx.array) -> memoryview:
    """The memory of *array*, which must be evaluated and contiguous. May be filled before its
    use."""
    return memoryview(array)  # type: ignore[arg-type]


def data_of(array: mx.array) -> memoryview:
    """The bytes of *array*, row-major, uncopied. It must come from `outgoing`, and be evaluated."""
    return memory_of(array).cast("B")


def from_data(dtype: DType, shape: tuple[int, ...], data: Buffer) -> mx.array:
    """An array of *shape* with a copy of *data*.

    Raises `IntegrityError` if *data* has not the size of *dtype* and *shape*.
    """
    return words_of(dtype, shape, data).view(MLX_DTYPES[dtype])


def words_of(dtype: DType, shape: tuple[int, ...], data: Buffer) -> mx.array:
    """The same array as unsigned integers of the same width, evaluated."""
    check_size(dtype, shape, data)
    words: Any = memoryview(data).cast("B").cast(_UNSIGNED[dtype.width], shape)
    return mx.array(words)


def check_size(dtype: DType, shape: tuple[int, ...], data: Buffer) -> None:
    """Raise `IntegrityError` if *data* has not the size of *dtype* and *shape*."""
    size = prod(shape) * dtype.width
    if len(data) != size:
        raise IntegrityError(f"{len(data)} bytes of hidden state where {size} belong")


def start(*values: mx.array) -> None:
    """Launch *values*. Does not wait for them."""
    mx.async_eval(*values)  # type: ignore[no-untyped-call]
