"""How far a rank's brain has come on the way to serving, for whoever waits: what `why` goes by."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from sealring_protocol.codec.messages import Failure
from sealring_protocol.codec.waiting import Reason


class Phase(enum.Enum):
    """What a rank does, in the words of its status."""

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
    """The *phase*, and since when (monotonic seconds); the ranks that are *missing* in it, what
    came of the last try if it *failed*, why there is no plan if *unplanned*, and until when the
    next try waits (*again*). Of a rank after the head, *told* is what the head says is in the way,
    each with since when."""

    phase: Phase
    since: float
    missing: tuple[int, ...] = ()
    failed: Failure | None = None
    unplanned: str = ""
    again: float | None = None
    told: Mapping[Reason, float] = attrs.field(factory=dict)
