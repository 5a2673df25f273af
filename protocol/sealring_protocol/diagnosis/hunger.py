"""Which engines starve now, as far as a node is told: for the log, the status and whoever waits."""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.messages import Progress
from sealring_protocol.diagnosis.facts import Starved

AVERAGED: Final = 5.0
"""Seconds over which it is averaged how much an engine starves."""

STARVED: Final = 0.75
"""Part of its time that an engine must starve to be called starved."""

FED: Final = 0.5
"""Part of its time below which it is not called so any more."""

TELL_AGAIN: Final = 600.0
"""Seconds before the log names the same engine once more."""


@attrs.define
class _Rank:
    began: float  # the first look
    at: float  # the latest
    seconds: float  # what was said then
    counted: float = 0.0
    part: float = 0.0
    since: float | None = None
    told: float | None = None


class Hunger:
    """How much the engine of each rank starves. Times are monotonic seconds."""

    __slots__ = ("_process", "_ranks", "lent", "own")

    def __init__(self) -> None:
        self.own = 0.0
        """Seconds that this node's engine processes have starved in all."""
        self.lent = 0.0
        """Seconds that tensor parallelism has waited for engines of other ranks that starved."""
        self._process = 0.0  # of `own`, the present process's
        self._ranks: dict[int, _Rank] = {}

    def process(self, seconds: float) -> None:
        """This node's engine process has starved for *seconds* in all; 0 where it is another."""
        self.own += max(0.0, seconds - self._process)
        self._process = seconds

    def added_to(self, progress: Progress) -> tuple[Progress, Progress]:
        """*progress* with how long the own engine has starved; and as peers are told it, with how
        long it has waited for others that did, too."""
        own, told = int(self.own * 1e6), int((self.own + self.lent) * 1e6)
        return attrs.evolve(progress, starved_us=own), attrs.evolve(progress, starved_us=told)

    def renumbered(self) -> None:
        """The ranks are other nodes now."""
        self._ranks.clear()

    def look(self, rank: int, seconds: float | None, now: float) -> float:
        """The engine of *rank* has starved for *seconds* in all; how much of that is new. Fewer
        than before: its node is another process. None: it has told nothing yet on a new link, and
        what counts is what comes on top of what it told before. It cannot have starved for longer
        than it has been looked at."""
        known = self._ranks.setdefault(rank, _Rank(now, now, seconds or 0.0))
        seconds = known.seconds if seconds is None else seconds
        elapsed, more = now - known.at, max(0.0, seconds - known.seconds)
        more = min(more, now - known.began - known.counted)
        known.at, known.seconds = now, seconds
        known.counted += more
        if elapsed <= 0:
            return more
        part = min(1.0, more / elapsed)
        known.part += (part - known.part) * min(1.0, elapsed / AVERAGED)
        if known.part < FED:
            known.since = None
        elif known.part >= STARVED and known.since is None:
            known.since = now
        return more

    def is_news(self, rank: int, now: float) -> bool:
        """Whether the engine of *rank* starves, and the log is to say so now."""
        known = self._ranks[rank]
        if known.since is None or known.since == known.told:
            return False
        if known.told is not None and now - known.told < TELL_AGAIN:
            return False
        known.told = known.since
        return True

    def rest(self, but: set[int]) -> None:
        """Nothing is heard of the ranks for now, but of these."""
        for rank, known in self._ranks.items():
            if rank not in but:
                known.part, known.since = 0.0, None

    def of(self, *ranks: int) -> tuple[Starved, ...]:
        """Those of *ranks* that starve now."""
        return tuple(
            Starved(rank, known.part, known.since)
            for rank in ranks
            if (known := self._ranks.get(rank)) is not None and known.since is not None
        )
