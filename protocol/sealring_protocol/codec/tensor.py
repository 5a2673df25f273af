"""Tensors on the wire: a small header, which determines the length of the data after it.

``dtype u8 · sealed u8 · dimensions u8 · zero u8 · counter u64 · shape u32 each · data``

The data is row-major and little-endian, as every machine that computes stores it. Its length is not
sent, because it follows from the dtype, the shape, and whether it is sealed with a tag.
"""

from __future__ import annotations

import enum
import struct
from math import prod
from typing import Final, Self

import attrs

from sealring_protocol.codec.wire import Buffer, Reader, layout
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import AEAD_TAG, MAX_DIMENSIONS, MAX_SEALED_BODY

_HEAD: Final = layout("TENSOR")
_SHAPES: Final = [struct.Struct(f">{n}I") for n in range(MAX_DIMENSIONS + 1)]
_HEADS: Final = [struct.Struct(f">BBBBQ{n}I") for n in range(MAX_DIMENSIONS + 1)]


class DType(enum.IntEnum):
    """Element types, with their codes on the wire."""

    width: int
    """Bytes of one element."""

    F32 = 1, 4
    F16 = 2, 2
    BF16 = 3, 2
    U32 = 4, 4

    def __new__(cls, code: int, width: int) -> Self:
        """The type with *code* on the wire and *width* bytes."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.width = width
        return made


__all__ = ["DType", "Tensor"]

_BY_CODE: Final = {int(dtype): dtype for dtype in DType}


@attrs.frozen
class Tensor:
    """One tensor: row-major elements of *dtype* in *shape*, as bytes in *data*.

    If *sealed*, *data* is a ciphertext and its tag, made with the activation secret at *counter*;
    otherwise *counter* is 0.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: Buffer
    sealed: bool = False
    counter: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, without a tag."""
        return prod(self.shape) * self.dtype.width


def encode_tensor(tensor: Tensor) -> list[Buffer]:
    """The header, and the data uncopied. Raises `LocalProtocolError` if they contradict each
    other."""
    dtype, shape, data, sealed = tensor.dtype, tensor.shape, tensor.data, tensor.sealed
    expected = prod(shape) * dtype.width + AEAD_TAG * sealed
    if len(data) != expected:
        raise LocalProtocolError(
            f"a {dtype.name} tensor of shape {shape} takes {expected} bytes, not {len(data)}"
        )
    dimensions = len(shape)
    if dimensions > MAX_DIMENSIONS:
        raise LocalProtocolError(f"{dimensions} dimensions; the limit is {MAX_DIMENSIONS}")
    if tensor.counter and not sealed:
        raise LocalProtocolError("a plain tensor has no counter")
    return [_HEADS[dimensions].pack(dtype, sealed, dimensions, 0, tensor.counter, *shape), data]


def decode_tensor(reader: Reader) -> Tensor:
    """The next tensor; its data is a view of the reader's buffer. Raises `RemoteProtocolError` or
    `LimitExceeded`."""
    code, sealed, dimensions, zero, counter = reader.unpack(_HEAD)
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise RemoteProtocolError(f"unknown dtype {code}")
    if dimensions > MAX_DIMENSIONS:
        raise LimitExceeded(f"{dimensions} dimensions; the limit is {MAX_DIMENSIONS}")
    if sealed > 1 or zero or (counter and not sealed):
        raise RemoteProtocolError("a tensor header has a field out of range")
    shape = reader.unpack(_SHAPES[dimensions])
    nbytes = prod(shape) * dtype.width
    if nbytes > MAX_SEALED_BODY:
        raise LimitExceeded(f"a tensor declares {nbytes} bytes")
    data = reader.view(nbytes + AEAD_TAG * sealed)
    return Tensor(dtype, shape, data, bool(sealed), counter)
