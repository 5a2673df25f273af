"""Hidden states that a device which waits was given before their message had its turn (see
`lookahead`)."""

from __future__ import annotations

import attrs
from sealring_protocol.codec.messages import Step, StepDone
from sealring_protocol.codec.wire import Buffer


@attrs.frozen(eq=False)
class EarlyFill:
    """The *contents* of *message*, opened, that the device was given before the message had its
    turn.

    *begun* is when, in nanoseconds of `time.perf_counter_ns`; None if that was too late. Opening
    them took *opening* nanoseconds.
    """

    message: Step | StepDone
    contents: tuple[Buffer, ...]
    begun: int | None
    opening: int
