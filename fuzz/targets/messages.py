"""Messages of sealed frames: one encoding each, and documented errors alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealring_protocol.codec.encoding import decode, encode, from_fields, to_fields
from sealring_protocol.errors import RemoteProtocolError

from fuzz.vectors import field

_LONGEST: Final = 4096
"""Bytes of an input; a few vectors are at limits of many KiB."""


def seeds() -> Iterator[bytes]:
    """Every plaintext of the vectors that is not too long for an input."""
    plain = field("messages", "input", "plaintext")
    yield from (data for data in plain if len(data) <= _LONGEST)


def check(data: bytes) -> None:
    """What is taken encodes to the same bytes, from its fields too."""
    try:
        message = decode(data)
    except RemoteProtocolError:
        return
    assert b"".join(encode(message)) == data
    assert b"".join(encode(from_fields(to_fields(message)))) == data
