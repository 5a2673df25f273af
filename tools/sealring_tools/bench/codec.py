"""The rate at which messages become frames and frames messages, plain and sealed: both ends in one
thread."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.messages import Epoch, Message, Ping, Progress, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.limits import MAX_SEALED_BODY
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)
from sealring_tools.bench.measure import Result, alternate
from sealring_tools.bench.tls import TlsPair

SECRET: Final = bytes(range(32))
CLUSTER: Final = bytes(32)
EPOCH: Final = Epoch(1, 1)
PING: Final = Ping(7, Progress(1000, 999, 123_456, 789, 8, 1 << 30, 1 << 20, 5))
LIMITS: Final[dict[int, int]] = {FrameKind.SEALED: MAX_SEALED_BODY}
SMALL: Final = 64
LARGE: Final = 1 << 20
TLS_NAME: Final = "TLS 1.3, OpenSSL"


def plain_trip() -> Callable[[], Message]:
    """A message to a plain frame, through the incremental decoder, and back to a typed event."""
    decoder = FrameDecoder(LIMITS)

    def trip() -> Message:
        parts = encode(PING)
        size = sum(map(len, parts))
        decoder.receive_data(b"".join([frame_header(FrameKind.SEALED, size), *parts]))
        return decode(_next(decoder).body)

    return trip


def sealed_trip(message: Message, suite: Suite = Suite.AES256GCM) -> Callable[[], Message]:
    """The same, sealed on one side and opened on the other."""
    decoder = FrameDecoder(LIMITS)
    sealing, opening = SealingChannel(suite, SECRET), OpeningChannel(suite, SECRET)

    def trip() -> Message:
        decoder.receive_data(sealing.seal(encode(message)))
        return decode(opening.open(_next(decoder)))

    return trip


def inner_trip(shape: tuple[int, ...], dtype: DType, suite: Suite) -> Callable[[], bytes]:
    """A tensor sealed by one engine, framed and sealed by its node, and all the way back."""
    data = os.urandom(Tensor(dtype, shape, b"").nbytes)
    inner_seal = InnerSealer(suite, SECRET, CLUSTER)
    inner_open = InnerOpener(suite, SECRET, CLUSTER)
    decoder = FrameDecoder(LIMITS)
    sealing, opening = SealingChannel(suite, SECRET), OpeningChannel(suite, SECRET)
    context = InnerContext(EPOCH, 1, 0, 1, (1,))

    def trip() -> bytes:
        tensor = inner_seal.seal(context, dtype, shape, data)
        decoder.receive_data(sealing.seal(encode(StepDone(EPOCH, 1, tensors=(tensor,)))))
        message = decode(opening.open(_next(decoder)))
        return inner_open.open(context, message.tensors[0])  # type: ignore[union-attr]

    return trip


def _next(decoder: FrameDecoder) -> Frame:
    frame = decoder.next_frame()
    if frame is None:
        raise RuntimeError("the decoder holds no frame")
    return frame


def _json_trip() -> Callable[[], object]:
    fields = {"echo": 7, "progress": [1000, 999, 123_456, 789, 8, 1 << 30, 1 << 20, 5]}
    return lambda: json.loads(json.dumps(fields))


def measure() -> list[Result]:
    """Messages of 64 bytes a second, and tensor frames of 1 MiB in GB/s."""
    tls = TlsPair()
    small, large = os.urandom(SMALL), os.urandom(LARGE)
    shape = (1, LARGE // 4)
    frame = StepDone(EPOCH, 1, tensors=(Tensor(DType.F32, shape, large),))
    giga = LARGE / 1e9
    plain = alternate(plain_trip(), _json_trip())
    sealed = alternate(sealed_trip(PING), lambda: tls.pass_on(small))
    outer = alternate(sealed_trip(frame), lambda: tls.pass_on(large))
    inner = alternate(inner_trip(shape, DType.F32, Suite.AES256GCM), lambda: tls.pass_on(large))
    return [
        Result("64 B message, plain", "messages/s", *plain, "JSON text"),
        Result("64 B message, sealed", "messages/s", *sealed, TLS_NAME),
        Result("1 MiB tensor, sealed", "GB/s", outer[0] * giga, outer[1] * giga, TLS_NAME),
        Result("1 MiB tensor, inner seal too", "GB/s", inner[0] * giga, inner[1] * giga, TLS_NAME),
    ]
