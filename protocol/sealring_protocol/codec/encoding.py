"""The encoding of every message: one for each value, and a decoder that accepts nothing else.

`encode` returns a message as a list of parts, so that large tensors are not copied before they are
sealed. `decode` reads a plaintext; tensors are views of it. The first byte is the message's code.
The counts of lists are in the fixed part at the front, so the steps of a running ring, which have
no lists, cost one `struct` call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.local_readers import (
    decode_group,
    decode_grouped,
    decode_hop,
    decode_info,
    decode_loaded,
    decode_logprobs,
    decode_row_over,
    decode_row_ready,
    decode_scores,
)
from sealring_protocol.codec.local_writers import (
    encode_group,
    encode_grouped,
    encode_hop,
    encode_info,
    encode_loaded,
    encode_logprobs,
    encode_row_over,
    encode_row_ready,
    encode_scores,
)
from sealring_protocol.codec.messages import (
    Accept,
    Bootstrap,
    CannotServe,
    Checked,
    Close,
    Get,
    Hello,
    Message,
    Piece,
    Ping,
    Pong,
    Prepared,
    Ready,
    Row,
    Step,
    StepDone,
    Tunnel,
    Waiting,
)
from sealring_protocol.codec.readers import (
    decode_accept,
    decode_bootstrap,
    decode_cannot,
    decode_checked,
    decode_close,
    decode_done,
    decode_get,
    decode_hello,
    decode_piece,
    decode_ping,
    decode_pong,
    decode_prepared,
    decode_ready,
    decode_step,
    decode_tunnel,
    decode_waiting,
)
from sealring_protocol.codec.row_codec import decode_row, encode_row
from sealring_protocol.codec.wire import Buffer, Reader
from sealring_protocol.codec.writers import (
    encode_accept,
    encode_bootstrap,
    encode_cannot,
    encode_checked,
    encode_close,
    encode_done,
    encode_get,
    encode_hello,
    encode_piece,
    encode_prepared,
    encode_progress,
    encode_ready,
    encode_step,
    encode_tunnel,
    encode_waiting,
)
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["decode", "decode_local", "encode"]

_T = TypeVar("_T")

_ENCODERS: Final[dict[type[Any], Callable[[Any], list[Buffer]]]] = {
    Accept: encode_accept,
    Ping: encode_progress,
    Pong: encode_progress,
    Close: encode_close,
    Hello: encode_hello,
    Prepared: encode_prepared,
    Ready: encode_ready,
    Bootstrap: encode_bootstrap,
    Step: encode_step,
    StepDone: encode_done,
    CannotServe: encode_cannot,
    Checked: encode_checked,
    EngineInfo: encode_info,
    HopKey: encode_hop,
    Row: encode_row,
    Loaded: encode_loaded,
    Logprobs: encode_logprobs,
    Scores: encode_scores,
    RowOver: encode_row_over,
    RowReady: encode_row_ready,
    Group: encode_group,
    Grouped: encode_grouped,
    Tunnel: encode_tunnel,
    Waiting: encode_waiting,
    Get: encode_get,
    Piece: encode_piece,
}

DECODERS: Final[dict[int, Callable[[Reader], Message]]] = {
    MessageCode.ACCEPT: decode_accept,
    MessageCode.PING: decode_ping,
    MessageCode.PONG: decode_pong,
    MessageCode.CLOSE: decode_close,
    MessageCode.HELLO: decode_hello,
    MessageCode.PREPARED: decode_prepared,
    MessageCode.READY: decode_ready,
    MessageCode.BOOTSTRAP: decode_bootstrap,
    MessageCode.STEP: decode_step,
    MessageCode.STEP_DONE: decode_done,
    MessageCode.CANNOT_SERVE: decode_cannot,
    MessageCode.CHECKED: decode_checked,
    MessageCode.TUNNEL: decode_tunnel,
    MessageCode.ROW: decode_row,
    MessageCode.WAITING: decode_waiting,
    MessageCode.GET: decode_get,
    MessageCode.PIECE: decode_piece,
}

LOCAL_DECODERS: Final[dict[int, Callable[[Reader], LocalMessage]]] = {
    MessageCode.PING: decode_ping,
    MessageCode.PONG: decode_pong,
    MessageCode.READY: decode_ready,
    MessageCode.BOOTSTRAP: decode_bootstrap,
    MessageCode.STEP: decode_step,
    MessageCode.STEP_DONE: decode_done,
    MessageCode.CANNOT_SERVE: decode_cannot,
    MessageCode.CHECKED: decode_checked,
    MessageCode.ENGINE_INFO: decode_info,
    MessageCode.HOP_KEY: decode_hop,
    MessageCode.ROW: decode_row,
    MessageCode.LOADED: decode_loaded,
    MessageCode.LOGPROBS: decode_logprobs,
    MessageCode.SCORES: decode_scores,
    MessageCode.ROW_OVER: decode_row_over,
    MessageCode.ROW_READY: decode_row_ready,
    MessageCode.GROUP: decode_group,
    MessageCode.GROUPED: decode_grouped,
}


def encode(message: Message | LocalMessage) -> list[Buffer]:
    """The parts of *message*'s encoding; joined, they are the plaintext of a frame.

    Raises `LocalProtocolError` if a field exceeds its width or limit.
    """
    try:
        return _ENCODERS[type(message)](message)
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit its width: {error}") from None


def decode(plaintext: Buffer) -> Message:
    """The message in *plaintext*; its tensors are views of it.

    Raises `RemoteProtocolError` or `LimitExceeded` for anything that `encode` does not produce.
    """
    return _decode(plaintext, DECODERS)


def decode_local(plaintext: Buffer) -> LocalMessage:
    """The message in *plaintext* of a frame between a node and its engine. See `decode`."""
    return _decode(plaintext, LOCAL_DECODERS)


def _decode(plaintext: Buffer, decoders: dict[int, Callable[[Reader], _T]]) -> _T:
    if not plaintext:
        raise RemoteProtocolError("an empty frame")
    decoder = decoders.get(plaintext[0])
    if decoder is None:
        raise RemoteProtocolError(f"unknown message type 0x{plaintext[0]:02x}")
    reader = Reader(plaintext)
    try:
        message = decoder(reader)
    except LocalProtocolError as error:  # fields that contradict each other
        raise RemoteProtocolError(str(error)) from None
    reader.end()
    return message
