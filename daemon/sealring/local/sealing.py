"""What sealing alone costs a hop: the work of both engines and both nodes, without the rest."""

from __future__ import annotations

import os
import statistics
from time import perf_counter
from typing import Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Epoch, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.limits import FRAME_HEADER
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)

_TRIPS: Final = 400
_SECRET: Final = bytes(range(32))
_EPOCH: Final = Epoch(1, 1)


def seal_microseconds(hidden: int, dtype: DType, suite: Suite) -> float:
    """Microseconds to seal and open one row's hidden state of *hidden* elements, inner seal and
    outer frame, both ends; the median."""
    shape = (1, 1, hidden)
    data = os.urandom(Tensor(dtype, shape, b"").nbytes)
    context = InnerContext(_EPOCH, 1, 0, 1, (1,))
    inner_seal = InnerSealer(suite, _SECRET, bytes(32))
    inner_open = InnerOpener(suite, _SECRET, bytes(32))
    outer_seal, outer_open = SealingChannel(suite, _SECRET), OpeningChannel(suite, _SECRET)
    spent = []
    for _ in range(_TRIPS):
        times = [perf_counter()]
        tensor = inner_seal.seal(context, dtype, shape, data)
        times.append(perf_counter())
        parts = encode(StepDone(_EPOCH, 1, tensors=(tensor,)))
        times.append(perf_counter())
        sealed = bytes(outer_seal.seal(parts))
        times.append(perf_counter())
        frame = Frame(FrameKind.SEALED, sealed[:FRAME_HEADER], sealed[FRAME_HEADER:])
        times.append(perf_counter())
        plaintext = outer_open.open(frame)
        times.append(perf_counter())
        message = decode(plaintext)
        times.append(perf_counter())
        inner_open.open(context, message.tensors[0])  # type: ignore[union-attr]
        times.append(perf_counter())
        spent.append(sum(times[1::2]) - sum(times[::2]))
    return statistics.median(spent) * 1e6
