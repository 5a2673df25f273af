"""Messages of sealed frames: one encoding each, and documented errors alone."""

from __future__ import annotations

from collections.abc import Iterator

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.conformance.fields import from_fields, to_fields
from sealring_protocol.errors import RemoteProtocolError

from fuzz.vectors import field


def seeds() -> Iterator[bytes]:
    """Every plaintext of the vectors."""
    yield from field("messages", "input", "plaintext")


def check(data: bytes) -> None:
    """What is taken encodes to the same bytes, from its fields too."""
    try:
        message = decode(data)
    except RemoteProtocolError:
        return
    assert b"".join(encode(message)) == data
    assert b"".join(encode(from_fields(to_fields(message)))) == data
