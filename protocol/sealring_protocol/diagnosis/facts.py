"""What a node knows of itself and its peers, and what of that is in the way: values for `why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sealring_protocol.control.standing import Standing
from sealring_protocol.diagnosis.causes import Cause
from sealring_protocol.diagnosis.peers import PeerState
from sealring_protocol.diagnosis.refusal_log import RefusedSource
from sealring_protocol.diagnosis.words import ago, lasting
from sealring_protocol.security.roster import Roster

YOUNG_SECONDS: Final = 120.0
"""Seconds before which an engine that ends has ended young."""


@attrs.frozen
class Obstacle:
    """One thing that is in the way: *what* it is and what to do (*advice*), for the peer of *rank*
    or, if None, for this node. It has been so since *since*, and was tried *tries* times, the last
    time at *at* (monotonic seconds). *from_head*: this node knows it from the head alone."""

    cause: Cause
    what: str
    rank: int | None = None
    since: float | None = None
    at: float | None = None
    tries: int = 0
    advice: str = ""
    from_head: bool = False

    def lasts(self, now: float) -> str:
        """How long it has been so, in words; empty where nobody knows."""
        if self.since is None or now - self.since < 1:
            return ""
        if self.tries > 1 and self.at is not None:
            span = lasting(now - self.since)
            return f"{self.tries} times in {span}, the last time {ago(now - self.at)}"
        return f"for {lasting(now - self.since)}"

    def text(self, now: float) -> str:
        """It in one line, without the advice."""
        lasts = self.lasts(now)
        return f"{self.what} ({lasts})" if lasts else self.what

    def describe(self, now: float) -> dict[str, Any]:
        """It as JSON, with times in seconds."""
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
            "from_head": self.from_head,
        }


@attrs.frozen
class EngineFacts:
    """This node's engine: whether it is *up* (has said what its model is), since when it is so, how
    often in a row it was *lost* young, the last *reason*, and whether it is its model that it
    cannot read."""

    up: bool = False
    since: float = 0.0
    lost: int = 0
    reason: str = ""
    unreadable: bool = False

    def ended(self, reason: str, now: float, *, planned: bool) -> EngineFacts:
        """The process has ended; if that was *planned*, nothing is wrong with it."""
        if planned:
            return EngineFacts(since=now)
        young = not self.up or now - self.since < YOUNG_SECONDS
        if self.unreadable:
            return attrs.evolve(self, lost=self.lost + 1)
        return EngineFacts(False, now, self.lost + 1 if young else 1, reason)


@attrs.frozen
class Starved:
    """The engine of *rank* starves for *part* of its time, since *since* (monotonic seconds)."""

    rank: int
    part: float
    since: float


@attrs.frozen
class Facts:
    """What a node knows. *wall_ms* is None where it has not been told the time of day, *next_start*
    when its engine is started again, *draining* why it takes no requests, *unpinned* what
    `NodeConfig` has, *own* what the node is called in the words that come of it."""

    rank: int
    roster: Roster
    standing: Standing
    engine: EngineFacts
    peers: Mapping[int, PeerState]
    strangers: Sequence[RefusedSource] = ()
    wall_ms: int | None = None
    next_start: float | None = None
    draining: str = ""
    unpinned: bytes = b""
    own: str = "this node"
    starved: Sequence[Starved] = ()

    def name(self, rank: int) -> str:
        """The member of *rank* as people know it."""
        name = self.roster.members[rank].name
        return f"the head ({name})" if rank == 0 and self.rank else f"rank {rank} ({name})"
