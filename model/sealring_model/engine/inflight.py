"""A step or a closing pass in flight: launched on the device, and still to be finished and answered
(see `executor`)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs, RowOver, Scores
from sealring_protocol.codec.messages import Checked, Spent, Step, StepDone

Clock = Callable[[], Spent]
"""Tells where this rank's time with a message went. Call it last, once the answer is sealed."""


@attrs.frozen
class PendingAnswer:
    """An answer that the device still works on: wait for *arrays*, send what *preface* gives, then
    what *answer* gives."""

    arrays: tuple[mx.array, ...]
    answer: Callable[[Clock], Step | StepDone]
    preface: Callable[[], tuple[Logprobs | Scores | RowOver | Checked, ...]] = tuple


@attrs.frozen
class InFlight:
    """*message* on the device.

    It came at *arrived*; the work on it began at *begun*, both in nanoseconds of
    `time.perf_counter_ns`. Before that, *opening* nanoseconds went into opening hidden states.
    """

    message: Step | StepDone
    pending_answer: PendingAnswer
    arrived: int
    begun: int
    opening: int
