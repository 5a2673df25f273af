"""Tensors, as values. Their bytes are in `codec.fields`."""

from __future__ import annotations

import enum
from math import prod
from typing import Self

import attrs

from sealring_protocol.codec.wire import Buffer

__all__ = ["DType", "Tensor"]


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
