"""The outputs of `control.head` and `control.epoch.follower`: what a rank's brain asks the node
around it to do (`Effect`), and how far the rank has come towards serving (`Standing`).

They name ranks, not addresses, and messages, not bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Build,
    Checked,
    Epoch,
    Failure,
    Message,
    Ready,
    Reason,
    Spent,
    Work,
)
from sealring_protocol.control.plan import Plan
from sealring_protocol.control.requests import RequestDone, RowOpened, ScoresOut, TokenOut
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.roles import Purpose
from sealring_protocol.words import lasting


@attrs.frozen
class Send:
    """Send *message* to *rank* over the link with *purpose*, if it is up."""

    rank: int
    purpose: Purpose
    message: Message


@attrs.frozen
class Want:
    """Keep a link with *purpose* to *rank* up from now on: dial it now, and again whenever it is
    lost. If this end *yields*, it dials a moment later, because the other end wants the same link
    and dials first."""

    rank: int
    purpose: Purpose
    yields: bool = False


@attrs.frozen
class Shut:
    """Close the link with *purpose* to *rank* with *code* and *reason*."""

    rank: int
    purpose: Purpose
    code: CloseCode
    reason: str


@attrs.frozen
class ToEngine:
    """Give *message* to the engine process."""

    message: LocalMessage


@attrs.frozen
class RestartEngine:
    """Kill the engine process, whatever it is doing, and start another. A *planned* restart follows
    at once, without back-off, because nothing is wrong with the engine."""

    reason: str
    planned: bool = False


@attrs.frozen
class PrepareCollective:
    """Find a free port for the engine to listen on. If *sealed*, also open a relay for the engine's
    outgoing connection. Answer by `Node.collective_prepared` or `Node.collective_failed`.

    An *epoch* has at most one collective. A later epoch's collective, or `EndCollective`, ends it.
    """

    epoch: Epoch
    sealed: bool


@attrs.frozen
class EndCollective:
    """Close the listener and the connections of *epoch*'s collective at once, which unblocks any
    rank that hangs in it."""

    epoch: Epoch


class Level(enum.Enum):
    """How important a note is to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Note:
    """A line for the log, in plain words. `links.logs.Notes` limits the rate of each *kind*; a note
    without a kind is limited by its text."""

    level: Level
    text: str
    kind: str = ""


@attrs.frozen
class StepTiming:
    """Where the time of step *n* went. The step did *work* for the rows *uids*. *total_us* is the
    time in microseconds from the head's order to its engine until the answer. *spent* has the time
    of each rank, in the order of the ring, or nothing if one was left out; *ring* has these ranks,
    where they are not 0, 1 and so on.

    In a ring of several ranks *closing* is the head's second pass: norm, output head and sampling.
    If *parallel*, all ranks worked at the same time.
    """

    n: int
    work: Work
    uids: tuple[int, ...]
    total_us: int
    spent: tuple[Spent, ...]
    closing: Spent = attrs.field(factory=Spent)
    parallel: bool = False
    ring: tuple[int, ...] = ()
    away_us: int = attrs.field(init=False)
    """Microseconds on the network: no rank computed, queued or sealed the step."""

    @away_us.default
    def _away_us(self) -> int:
        parts = [p.compute_us + p.wait_us + p.seal_us for p in (*self.spent, self.closing)]
        return max(0, self.total_us - (max(parts) if self.parallel else sum(parts)))

    @property
    def by_rank(self) -> list[tuple[int, Spent]]:
        """Each of *spent* with its rank."""
        return list(zip(self.ring or range(len(self.spent)), self.spent, strict=False))


@attrs.frozen
class StepToCheck:
    """Step *n* of a checked epoch begins. It reads *tokens* tokens of each of *rows*: a uid, and
    the position of the first of them. Only a decode draws tokens."""

    n: int
    rows: tuple[tuple[int, int], ...]
    tokens: int
    is_decode: bool


@attrs.frozen
class StepChecked:
    """The fingerprints that the rank at place *rank* of the ring sent of a step."""

    rank: int
    message: Checked


@attrs.frozen
class NewRing:
    """The ring has other *members* from now on (ranks, place by place): no link of steps or of a
    collective outlives that, as its keys and its neighbours may be others."""

    members: tuple[int, ...]


@attrs.frozen
class Outside:
    """*why* the ring goes on without a member, in words; *since* when that is so, or *until* when
    (monotonic seconds), where it is known. It is *chosen*: the member could be taken in."""

    why: str
    since: float | None = None
    until: float | None = None
    chosen: bool = False

    def text(self, now: float) -> str:
        """In one line, with how long it has lasted, or will."""
        if self.until is not None and self.until > now:
            return f"{self.why} (in {lasting(math.ceil(self.until - now))})"
        if self.since is not None and now - self.since >= 1:
            return f"{self.why} (for {lasting(now - self.since)})"
        return self.why


INSIDE: Final = Outside("")
"""Of a member that is in the ring."""


@attrs.frozen
class Preference:
    """A smaller *ring* (ranks, rising from 0) that is faster, and *why* that is believed, in words.
    Why it *failed*, if it has: it is not taken again. Empty if it has not."""

    ring: tuple[int, ...]
    why: str
    failed: str = ""


@attrs.frozen
class EpochOver:
    """The head's epoch, or the start of one, is over. A rank *failed*; None if the epoch had
    worked, or none failed. What *broke* an epoch that had worked; None if nothing did."""

    failed: Failure | None
    broke: Failure | None = None


@attrs.frozen
class EpochExplained:
    """A rank says why it *failed* in an epoch that is over: a link may have told of it first."""

    failed: Failure


Effect = (
    Send
    | Want
    | Shut
    | NewRing
    | EpochOver
    | EpochExplained
    | ToEngine
    | RestartEngine
    | PrepareCollective
    | EndCollective
    | Note
    | TokenOut
    | ScoresOut
    | RequestDone
    | RowOpened
    | StepTiming
    | StepToCheck
    | StepChecked
)


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
    WITNESS = "witness"


@attrs.frozen
class Standing:
    """The *phase*, and *since* when it holds (monotonic seconds). `sealring why` and `sealring
    status` build their answers from this.

    *missing* are the ranks that the phase waits for. *failed* is why the last try failed,
    *unplanned* why there is no plan (of kind MEMORY if the ranks have too little room), *again* the
    time of the next try (monotonic seconds), and *unreadable* why the engines of absent ranks
    cannot read their models, by rank. On a follower, *head_reasons* holds the reasons that the head
    gave for not starting an epoch, each with the time it was first heard.

    *state* is the state in the words of the status. *epoch* is the present one, or the last; *plan*
    is its plan, as far as this rank knows it: a follower knows neither reason nor weights. On the
    head, *requests* is how many are not over, *present* who is there, *builds* the programs of
    those, *rooms* the bytes that each member which is there, in the ring or not, has for weights
    and caches, and *ready* the READY of each rank that has sent it in this epoch; it is *checked*
    if fingerprints of its steps are sent; *slow_links* says that prompts wait for links, if they
    do; *guess_seconds* is `StepTimes.of_guesses`. *ring* has the rank of each place of the ring, as
    far as this rank knows it, and *outside*, on the head, why it is without each other rank.
    *needs_all* is why the head waits for missing ranks and does not go on without them; empty if it
    does not, or will. *preference* is the smaller ring that the head prefers, or did until that
    failed.
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
    builds: Mapping[int, Build] = attrs.field(factory=dict)
    rooms: Mapping[int, int] = attrs.field(factory=dict)
    ready: Mapping[int, Ready] = attrs.field(factory=dict)
    checked: bool = False
    slow_links: str = ""
    guess_seconds: Mapping[str, float] = attrs.field(factory=dict)
    ring: tuple[int, ...] = ()
    outside: Mapping[int, Outside] = attrs.field(factory=dict)
    needs_all: str = ""
    preference: Preference | None = None
