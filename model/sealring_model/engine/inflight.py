"""What is on the device: a step or the end of one, launched and to be finished (see `executor`)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import Spent, Step, StepDone

Clock = Callable[[], Spent]
"""Tells where this rank's time with a message went, once there is nothing left to do on it."""


@attrs.frozen
class PendingAnswer:
    """What the device works on: *arrays* to wait for, then *answer* makes what to send, and *logprobs*
    what goes before it."""

    arrays: tuple[mx.array, ...]
    answer: Callable[[Clock], Step | StepDone]
    logprobs: Callable[[], tuple[Logprobs, ...]] = tuple


@attrs.frozen
class InFlight:
    """*message*, that came at *arrived*, on the device. Times are nanoseconds of
    `time.perf_counter_ns`; *opening* of them, before *begun*, went into opening hidden states."""

    message: Step | StepDone
    pending_answer: PendingAnswer
    arrived: int
    begun: int
    opening: int
