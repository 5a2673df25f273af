"""How far a rank has come towards serving, and its part in the ring. `sealring why` and `sealring
status` build their answers from this."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import attrs

from sealring_protocol.codec.messages import NO_EPOCH, Epoch, Failure, Ready, Reason
from sealring_protocol.control.plan import Plan


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
    *unplanned* why there is no plan (of kind MEMORY if the ranks have too little room), *again* the
    time of the next try (monotonic seconds), and *unreadable* why the engines of absent ranks
    cannot read their models, by rank. On a follower, *head_reasons* holds the reasons that the head
    gave for not starting an epoch, each with the time it was first heard.

    *state* is the state in the words of the status. *epoch* is the present one, or the last; *plan*
    is its plan, as far as this rank knows it: a follower knows neither reason nor weights. On the
    head, *requests* is how many are not over, *present* who is there, and *ready* the READY of each
    rank that has sent it in this epoch; it is *checked* if fingerprints of its steps are told;
    *slow_links* says that prompts wait for links, if they do; *guess_seconds* is `GuessCosts.told`.
    """

    phase: Phase
    since: float
    missing: tuple[int, ...] = ()
    failed: Failure | None = None
    unplanned: Failure | None = None
    again: float | None = None
    unreadable: Mapping[int, Failure] = attrs.field(factory=dict)
    head_reasons: Mapping[Reason, float] = attrs.field(factory=dict)
    state: str = ""
    epoch: Epoch = NO_EPOCH
    plan: Plan | None = None
    requests: int = 0
    present: Collection[int] = ()
    ready: Mapping[int, Ready] = attrs.field(factory=dict)
    checked: bool = False
    slow_links: str = ""
    guess_seconds: Mapping[str, float] = attrs.field(factory=dict)
