"""What a node knows of itself, and tells: its engine, which engines starve, and its obstacles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Progress
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.control.epoch.deadlines import is_due
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.standing import Standing
from sealring_protocol.diagnosis.obstacle_log import ObstacleLog
from sealring_protocol.diagnosis.starved_ranks import StarvedRanks
from sealring_protocol.diagnosis.why import EngineFacts, Facts, starving
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.links.link_manager import LinkManager
from sealring_protocol.security.roles import Purpose

_PING_SECONDS: Final = 1.0
"""Seconds between two requests for the engine's counters."""


class NodeReport:
    """The facts of the node with *links*. *unpinned* is `NodeConfig.unpinned`. Where an answer
    needs the brain's *standing*, the caller gives it. *now* is in monotonic seconds."""

    def __init__(self, links: LinkManager, unpinned: bytes, now: float) -> None:
        self._links = links
        self._unpinned = unpinned
        self._engine = EngineFacts(since=now)
        self._starved_ranks = StarvedRanks()
        self._wall: float | None = None  # the time of day minus the monotonic clock, seconds
        self.obstacle_log = ObstacleLog()
        """What was logged of the obstacles."""
        self.rank = links.rank
        """This node's rank. Set it by `renumber`."""
        self.info: EngineInfo | None = None
        """The engine's description of its model; None while no engine is up."""
        self.ping_due: float | None = None
        """When to ask the engine for its counters; None while no engine is up."""
        self.progress = Progress()
        """The engine's counters, and how far this node's fetching is."""

    def renumber(self, rank: int) -> None:
        """A newer roster gives this node *rank*, and the others new ranks, too."""
        self.rank = rank
        self._starved_ranks.renumbered()

    def set_clock(self, wall_ms: int, now: float) -> None:
        """The time of day is *wall_ms*, in milliseconds since 1970."""
        self._wall = wall_ms / 1000 - now

    def facts(self, standing: Standing, now: float) -> Facts:
        """The facts that `obstacles` judges by."""
        roster = self._links.config.roster.roster
        ranks = range(len(roster.members)) if self.rank == 0 else (self.rank,)
        return Facts(
            self.rank,
            roster,
            standing,
            self._engine,
            {peer.rank: peer for peer in self._links.peers()},
            self._links.refusals.latest,
            None if self._wall is None else int((now + self._wall) * 1000),
            unpinned=self._unpinned,
            starved=self._starved_ranks.of(*ranks),
            progress=self._heard() | {self.rank: self.progress},
        )

    def _heard(self) -> dict[int, Progress]:
        """What the linked ranks last reported."""
        return {
            rank: link.keepalive.peer_progress
            for rank, purpose, link in self._links.links()
            if purpose is Purpose.CONTROL
        }

    # ---------------------------------------------------------------- engine

    def engine_up(self, info: EngineInfo, now: float) -> None:
        """The engine describes its model. Raises `RemoteProtocolError` the second time."""
        if self.info is not None:
            raise RemoteProtocolError("the engine describes its model a second time")
        self.info = info
        self.ping_due = now + _PING_SECONDS
        self._links.accept_steps = True
        self._engine = EngineFacts(True, now, self._engine.lost, self._engine.reason)

    def engine_unreadable(self, reason: str) -> list[Note]:
        """The engine cannot read its model. Raises `RemoteProtocolError` if it has described it."""
        if self.info is not None:
            raise RemoteProtocolError("the engine cannot read a model that it has described")
        self._engine = attrs.evolve(self._engine, reason=reason, unreadable=True)
        return [Note(Level.ERROR, f"the engine cannot read its model: {reason}")]

    def engine_down(self) -> None:
        """The engine process is gone, or is being replaced."""
        self.info = self.ping_due = None
        self._links.accept_steps = False

    def ping_is_due(self, now: float) -> bool:
        """True, once a second, if the engine is to be asked for its counters."""
        if not is_due(self.ping_due, now):
            return False
        self.ping_due = now + _PING_SECONDS
        return True

    def engine_ended(self, reason: str, now: float, *, planned: bool) -> None:
        """The engine process is gone for *reason*. A *planned* end is no fault."""
        self._starved_ranks.process(0.0)
        self._engine = self._engine.ended(reason, now, planned=planned)

    def report(self, progress: Progress) -> None:
        """Record the engine's *progress*, and report it to the peers."""
        known = self.progress
        progress = attrs.evolve(
            progress, fetched_bytes=known.fetched_bytes, fetch_bytes=known.fetch_bytes
        )
        self._report(progress)

    def fetched(self, here: int, size: int) -> None:
        """Report that *here* of the *size* bytes of this rank's tensors are here."""
        self._report(attrs.evolve(self.progress, fetched_bytes=here, fetch_bytes=size))

    def _report(self, progress: Progress) -> None:
        self.progress, told = self._starved_ranks.added_to(progress)
        self._links.set_progress(told)

    # ------------------------------------------------------------ starvation

    def hear_own_starvation(self, seconds: float, brain: Head | Follower, now: float) -> list[Note]:
        """The present engine process has starved for *seconds* in all. Tells *brain*, and returns
        the notes to log."""
        self._starved_ranks.process(seconds)
        more = self._starved_ranks.look(self.rank, self._starved_ranks.own, now)
        notes = self._starved({self.rank: more}, brain, now)
        self.report(self.progress)
        return notes

    def hear_starvation(self, brain: Head | Follower, now: float) -> list[Note]:
        """Read the starvation that linked ranks last reported. Tells *brain*, and returns the notes
        to log."""
        heard = {
            rank: self._starved_ranks.look(rank, link.keepalive.peer_starved, now)
            for rank, purpose, link in self._links.links()
            if purpose is Purpose.CONTROL
        }
        notes = self._starved(heard, brain, now)
        self._starved_ranks.reset_all_but(set(heard) | {self.rank})
        if isinstance(brain, Head) and brain.parallel:  # it waited for the slowest
            self._starved_ranks.lent += max(heard.values(), default=0.0)
            self.report(self.progress)
        return notes

    def _starved(
        self, heard: Mapping[int, float], brain: Head | Follower, now: float
    ) -> list[Note]:
        """The engines of some ranks have starved for so many more seconds."""
        for rank, more in heard.items():
            if more > 0:
                brain.starved(rank, more, now)
        # On a follower, the head's report includes other ranks: it extends deadlines, and is not
        # logged.
        news = [r for r in heard if self.rank in (0, r) and self._starved_ranks.is_news(r, now)]
        if not news:
            return []
        facts = attrs.evolve(
            self.facts(brain.standing(), now), starved=self._starved_ranks.of(*news)
        )
        return [Note(Level.INFO, each.what) for each in starving(facts)]
