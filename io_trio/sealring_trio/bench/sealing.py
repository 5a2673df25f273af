"""What sealing alone costs a hop: the work of both engines and both nodes, without the rest."""

from __future__ import annotations

import statistics
import time
from typing import Final

from sealring_protocol.codec.tensor import DType
from sealring_protocol.security.keys import Suite

from sealring_trio.bench.codec import inner_trip

_TRIPS: Final = 400


def seal_microseconds(hidden: int, dtype: DType, suite: Suite = Suite.AES256GCM) -> float:
    """Microseconds to seal and open one row's hidden state of *hidden* elements, inner seal and
    outer frame, both ends; the median."""
    trip = inner_trip((1, 1, hidden), dtype, suite)
    times = []
    for _ in range(_TRIPS):
        start = time.perf_counter()
        trip()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
