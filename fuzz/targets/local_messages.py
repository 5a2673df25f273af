"""Messages between a node and its engine, and tensors by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.fields import decode_tensor, encode_tensor
from sealring_protocol.codec.wire import Reader
from sealring_protocol.errors import RemoteProtocolError

from fuzz.vectors import field

_TENSOR_AT = 77  # where the tensors of a step without lists begin


def seeds() -> Iterator[bytes]:
    """Every plaintext of the vectors; of steps with one tensor, that tensor."""
    yield from field("local_messages", "input", "plaintext")
    for data in field("messages", "input", "plaintext"):
        if data[:1] == b"\x0a" and data[75:77] == b"\1\0":
            yield data[_TENSOR_AT:]


def check(data: bytes) -> None:
    """What is taken, as a message or as a tensor, encodes to the same bytes."""
    try:
        message = decode_local(data)
    except RemoteProtocolError:
        pass
    else:
        assert b"".join(encode(message)) == data
    reader = Reader(data)
    try:
        tensor = decode_tensor(reader)
    except RemoteProtocolError:
        return
    assert tensor.nbytes + 16 * tensor.sealed == len(tensor.data)
    assert b"".join(encode_tensor(tensor)) == data[: reader.position]
