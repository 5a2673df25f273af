"""The inputs and outputs of `why`: what a node knows of itself and its peers, and the obstacles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sealring_protocol.codec.messages import Progress
from sealring_protocol.control.standing import Standing
from sealring_protocol.diagnosis.causes import PERMANENT, Cause
from sealring_protocol.diagnosis.peers import PeerState
from sealring_protocol.diagnosis.refusal_log import RefusedSource
from sealring_protocol.diagnosis.words import ago, lasting
from sealring_protocol.security.roster import Roster

YOUNG_SECONDS: Final = 120.0
"""An engine that ends within this many seconds has ended young."""


@attrs.frozen
class Obstacle:
    """One obstacle to serving: *what* it is, and what to do about it (*advice*).

    It concerns the peer of *rank*, or, if None, this node. It began at *since*, and was tried
    *tries* times, last at *at* (monotonic seconds). *from_head* is True if this node knows it only
    from the head.
    """

    cause: Cause
    what: str
    rank: int | None = None
    since: float | None = None
    at: float | None = None
    tries: int = 0
    advice: str = ""
    from_head: bool = False

    @property
    def permanent(self) -> bool:
        """True if it lasts until somebody changes something: no request should wait for it."""
        return self.cause in PERMANENT

    @property
    def constant(self) -> str:
        """*what* without a time that runs, such as that until the next start of an engine. It stays
        the same while the obstacle lasts."""
        return self.what.partition(";")[0]

    def lasts(self, now: float) -> str:
        """How long the obstacle has lasted, in words; empty if unknown or below one second."""
        if self.since is None or now - self.since < 1:
            return ""
        if self.tries > 1 and self.at is not None:
            span = lasting(now - self.since)
            return f"{self.tries} times in {span}, the last time {ago(now - self.at)}"
        return f"for {lasting(now - self.since)}"

    def text(self, now: float) -> str:
        """The obstacle in one line, without its advice."""
        lasts = self.lasts(now)
        return f"{self.what} ({lasts})" if lasts else self.what

    def describe(self, now: float) -> dict[str, Any]:
        """The obstacle as a JSON object, with times in seconds."""
        return {
            "cause": self.cause.value,
            "rank": self.rank,
            "text": self.text(now),
            "what": self.what,
            "lasts": self.lasts(now),
            "for_s": None if self.since is None else round(now - self.since, 1),
            "last_s": None if self.at is None else round(now - self.at, 1),
            "tries": self.tries,
            "advice": self.advice,
            "permanent": self.permanent,
            "from_head": self.from_head,
        }


@attrs.frozen
class EngineFacts:
    """The state of this node's engine.

    It is *up* if it has described its model, and in this state since *since* (monotonic seconds).
    It was *lost* so many times in a row while young, the last time for *reason*. *unreadable* is
    True if it cannot read its model.
    """

    up: bool = False
    since: float = 0.0
    lost: int = 0
    reason: str = ""
    unreadable: bool = False

    def ended(self, reason: str, now: float, *, planned: bool) -> EngineFacts:
        """The process has ended for *reason*. A *planned* end is no fault."""
        if planned:
            return EngineFacts(since=now)
        young = not self.up or now - self.since < YOUNG_SECONDS
        if self.unreadable:
            return attrs.evolve(self, lost=self.lost + 1)
        return EngineFacts(False, now, self.lost + 1 if young else 1, reason)


@attrs.frozen
class Starved:
    """The engine of *rank* has starved for the fraction *part* of its time, since *since*
    (monotonic seconds)."""

    rank: int
    part: float
    since: float


@attrs.frozen
class Facts:
    """What a node knows.

    *wall_ms* is the time of day in milliseconds since 1970, or None if unknown. *next_start* is
    when the engine will be started again (monotonic seconds). *draining* is why the node takes no
    requests (empty if it does). *textless* is why the head can make no text of tokens (empty if it
    can), and *text_loading* whether it is still loading what does; only whoever faces its clients
    knows these. *unpinned* is `NodeConfig.unpinned`. *trying*
    is whether its engine has read its weights, and runs its layers for the first time, as only
    whoever speaks with the engine knows. *own* is what the obstacles call this node. *progress* is
    what this rank and those linked with it last reported.
    """

    rank: int
    roster: Roster
    standing: Standing
    engine: EngineFacts
    peers: Mapping[int, PeerState]
    strangers: Sequence[RefusedSource] = ()
    wall_ms: int | None = None
    next_start: float | None = None
    draining: str = ""
    textless: str = ""
    text_loading: bool = False
    unpinned: bytes = b""
    own: str = "this node"
    starved: Sequence[Starved] = ()
    progress: Mapping[int, Progress] = attrs.field(factory=dict)
    trying: bool = False

    def name(self, rank: int) -> str:
        """The name of the member of *rank*, for people."""
        name = self.roster.members[rank].name
        return f"the head ({name})" if rank == 0 and self.rank else f"rank {rank} ({name})"
