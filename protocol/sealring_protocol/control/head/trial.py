"""When the strategy `auto` tries tensor parallelism, and when it is done with it.

A ring begins with a pipeline, so no request waits for a trial. A trial takes the time of two starts
or more: every rank loads its share and joins the collective, a token is measured, and if that is
not clearly faster (`plan.verdict`), every rank loads its layers again in a new engine process. So
two things come before it.

Arithmetic: the pipeline's own steps show what a token takes, what of that the ranks compute, and
how long it is between two ranks. With N ranks of equal pace a token of tensor parallelism takes at
least an N-th of the computing and two sums a layer, and a sum takes at least a part of a hop. Where
that is too long already, there is nothing to try.

Idleness: a trial begins when no request has been there for a while, at least for as long as the
last start took, because a request that comes during a trial ends it and waits for one more start.
After each trial that ended so, the next one waits for twice as long an idle ring.

A collective that came up and is clearly faster is taken. From then on it gets several tries to come
up again after a fault (`TensorTries`). What was dropped is not tried again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import Final

from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.plan import CLEARLY
from sealring_protocol.control.scheduler.times import PipelineToken
from sealring_protocol.limits import PING_TIMEOUT
from sealring_protocol.table import Machine, Table

IDLE_SECONDS: Final = 5.0
"""Seconds that a ring is idle before a trial, at least."""

LONGEST_IDLE: Final = 600.0
"""The same, at most."""

UNTRIED: Final = "it is tried once some tokens have been timed, and the ring is idle"
"""Why there is none at first."""

LEAST_SUM: Final = 0.2
"""The least part of a hop that a sealed sum takes. Either passes two nodes and two engines, a sum
without their event loops: on loopback 0.23 ms and more, where a hop takes 1.2 ms. The slower the
network, the nearer a sum comes to two hops."""


def why_no_tensor(decodes: Sequence[StepTiming], layers: Sequence[int], *, sealed: bool) -> str:
    """Why tensor parallelism cannot be clearly faster than the pipeline of these *decodes*, whose
    ranks have so many *layers*; empty if it may be. Sums that are not *sealed* may take no time at
    all."""
    world = len(layers)
    paces = [
        _median(each.spent[rank].compute_us for each in decodes) / count
        for rank, count in enumerate(layers)
    ]
    closing = _median(each.closing.compute_us for each in decodes)
    token = _median(each.total_us for each in decodes)
    hop = _median(each.away_us for each in decodes) / world
    sums, one = 2 * sum(layers) + 1, LEAST_SUM * hop * sealed
    least = (max(paces) * sum(layers) + closing) / world + sums * one
    if least <= CLEARLY * token:
        return ""
    return (
        f"it cannot be clearly faster: a token takes {token / 1000:.2f} ms, measured; "
        f"an equal share of the computing and {sums} sums of {one / 1000:.2f} ms at least "
        f"would take {least / 1000:.2f} ms"
    )


def _median(found: Iterable[int]) -> int:
    ordered = sorted(found)
    return ordered[len(ordered) // 2]


class TrialState(enum.Enum):
    """UNTRIED: a pipeline serves, or is to. TRYING: a collective is to come up for the first time.
    TAKEN: it has, and is faster. DROPPED: never again."""

    UNTRIED = "untried"
    TRYING = "trying"
    TAKEN = "taken"
    DROPPED = "dropped"


class TrialEvent(enum.Enum):
    """What changes the state. STOP: the epoch ends, for no fault of the collective."""

    TRY = "try"
    CAME_UP = "came_up"
    STOP = "stop"
    DROP = "drop"


_S, _E = TrialState, TrialEvent
TRIAL_TABLE: Final[Table[TrialState, TrialEvent]] = {
    (_S.UNTRIED, _E.TRY): _S.TRYING,
    (_S.UNTRIED, _E.STOP): _S.UNTRIED,
    (_S.TRYING, _E.CAME_UP): _S.TAKEN,
    (_S.TRYING, _E.STOP): _S.UNTRIED,
    (_S.TRYING, _E.DROP): _S.DROPPED,
    (_S.TAKEN, _E.CAME_UP): _S.TAKEN,
    (_S.TAKEN, _E.STOP): _S.TAKEN,
    (_S.TAKEN, _E.DROP): _S.DROPPED,
    (_S.DROPPED, _E.STOP): _S.DROPPED,
}

TENSOR_TRIES: Final = 3
"""Tries in a row that a collective which has worked gets to come up again."""


class TensorTries:
    """When the strategy `auto` gives up tensor parallelism, because its collective does not come
    up. Times are monotonic seconds.

    A collective that has never worked gets one try. One that once worked gets several, and so
    does one whose links broke, because a node may just have left. Weights that are not there
    yet are no fault of tensor parallelism.
    """

    __slots__ = ("_cut_at", "_cuts", "_left")

    def __init__(self) -> None:
        self._left = 1
        self._cuts = 0  # times in a row that links broke while a collective came up
        self._cut_at = -math.inf

    def worked(self) -> None:
        """The collective has come up."""
        self._left = TENSOR_TRIES
        self._cuts = 0

    def failed(self, kind: FailureKind, now: float) -> bool:
        """The collective did not come up, by a failure of *kind*. True if no try is left."""
        if kind is FailureKind.LOAD:
            return False
        if kind is not FailureKind.LINK_LOST:
            self._left -= 1
            return self._left <= 0
        if now - self._cut_at > PING_TIMEOUT:  # all links of one lost node count once
            self._cuts += 1
            self._cut_at = now
        return self._cuts >= TENSOR_TRIES


class TensorTrial:
    """How far `auto` has come with tensor parallelism. *against* is what is known to stand against
    it; empty if nothing is. Times are monotonic seconds."""

    def __init__(self, against: str) -> None:
        self._machine = Machine(TRIAL_TABLE, _S.DROPPED if against else _S.UNTRIED)
        self._tries = TensorTries()
        self.idle = IDLE_SECONDS
        """Seconds that the ring is to be idle before it changes to be faster."""
        self.against = against or UNTRIED
        """Why there is none now; empty while there is, or is to be."""

    @property
    def state(self) -> TrialState:
        """How far it has come."""
        return self._machine.state

    def due(self, token: PipelineToken, since: float) -> float | None:
        """When to look whether to try, if no request comes; None: not at all. The pipeline, in
        which a *token* takes so long, serves *since* then."""
        untried = self.state is TrialState.UNTRIED and token.is_news
        return max(token.last, since) + self.idle if untried else None

    def started(self, seconds: float) -> None:
        """The start of a pipeline took so many *seconds*: as long as a request would wait that ends
        a trial."""
        self.idle = min(max(self.idle, seconds), LONGEST_IDLE)

    def begin(self) -> None:
        """The next epoch tries it."""
        self._machine.fire(TrialEvent.TRY)
        self.against = ""

    def came_up(self) -> None:
        """It has come up, and is taken."""
        self._machine.fire(TrialEvent.CAME_UP)
        self._tries.worked()

    def failed(self, kind: FailureKind, now: float) -> bool:
        """The collective did not come up, by a failure of *kind*. True if it is to be dropped."""
        return self._tries.failed(kind, now)

    def put_off(self, reason: str) -> None:
        """It is not tried now, for *reason*, if there is one."""
        self.against = reason or UNTRIED

    def drop(self, reason: str) -> None:
        """Give it up for good, for *reason*."""
        self._machine.fire(TrialEvent.DROP)
        self.against = reason

    def stop(self) -> bool:
        """The epoch is over. True if that ends a trial: the ring has a pipeline again, and the next
        trial waits for twice as long."""
        tried = self.state is TrialState.TRYING
        self._machine.fire(TrialEvent.STOP)
        if tried:
            self.against = UNTRIED
            self.idle = min(2 * self.idle, LONGEST_IDLE)
        return tried
