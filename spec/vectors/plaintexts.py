"""Bytes of messages, and how to change them."""

from __future__ import annotations

import struct
from typing import Final

from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.local_messages import (
    LocalMessage,
)
from sealring_protocol.codec.messages import (
    Message,
)

from spec.vectors.model import Json

NAN: Final = b"\x7f\xf8"  # how IEEE 754 binary64 begins
NOT_A_NUMBER: Final = NAN.ljust(8, b"\0")
INFINITE: Final = b"\x7f\xf0".ljust(8, b"\0")


def flat(message: Message | LocalMessage) -> bytes:
    """The plaintext of *message*."""
    return b"".join(encode(message))


def put(data: bytes, at: int, field: bytes) -> bytes:
    """*data* with *field* in the place of what was at *at*."""
    at %= len(data)
    return data[:at] + field + data[at + len(field) :]


def u16(value: int) -> bytes:
    """Two bytes."""
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """Eight bytes."""
    return value.to_bytes(8, "big")


def grown(data: bytes, at: int, count: bytes, entries: int) -> bytes:
    """*data* with another *count* at *at*, and *entries* bytes of zeros behind: what it counts."""
    return put(data, at, count) + bytes(entries)


def plaintext_input(data: bytes) -> Json:
    """The input of a vector: a long tail of zeros is told by its length."""
    start = len(data.rstrip(b"\0"))
    zeros = len(data) - start
    if zeros < _LONG_TAIL:
        return {"plaintext": data.hex()}
    return {"plaintext": data[:start].hex(), "zeros": zeros}


_LONG_TAIL: Final = 1000


def f64(value: float) -> bytes:
    """IEEE 754 binary64, big-endian."""
    return struct.pack(">d", value)
