"""How far a rank has come towards serving. `sealring why` builds its answer from this."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from sealring_protocol.codec.messages import Failure, Reason


class Phase(enum.Enum):
    """What a rank is doing. The values are the words of its status."""

    NO_HEAD = "waiting for the head"
    GATHERING = "gathering"
    LOADING = "loading"
    PREPARED = "waiting for the other ranks to load"
    JOINING = "joining the collective"
    LINKING = "waiting for the next rank's link"
    FAILED = "cannot serve"
    SERVING = "serving"


@attrs.frozen
class Standing:
    """The *phase*, and *since* when it holds (monotonic seconds).

    *missing* are the ranks that the phase waits for. *failed* is why the last try failed,
    *unplanned* why there is no plan, and *again* the time of the next try (monotonic seconds). On a
    follower, *told* holds the reasons that the head gave for not starting an epoch, each with the
    time it was first heard.
    """

    phase: Phase
    since: float
    missing: tuple[int, ...] = ()
    failed: Failure | None = None
    unplanned: str = ""
    again: float | None = None
    told: Mapping[Reason, float] = attrs.field(factory=dict)
