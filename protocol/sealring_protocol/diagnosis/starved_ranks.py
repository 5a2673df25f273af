"""Which engines starve now, as far as this node is told: for the log, the status and clients."""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.messages import Progress
from sealring_protocol.diagnosis.facts import Starved

AVERAGED: Final = 5.0
"""Seconds over which starvation is averaged."""

STARVED: Final = 0.75
"""The fraction of its time from which an engine counts as starved."""

FED: Final = 0.5
"""The fraction of its time below which it no longer counts as starved."""

TELL_AGAIN: Final = 600.0
"""Least seconds between two log lines about the same engine."""


@attrs.define
class _Rank:
    began: float  # the first sample
    at: float  # the latest
    seconds: float  # the total reported then
    counted: float = 0.0
    part: float = 0.0
    since: float | None = None
    told: float | None = None


class StarvedRanks:
    """How much the engine of each rank starves. Times are monotonic seconds."""

    __slots__ = ("_process", "_ranks", "lent", "own")

    def __init__(self) -> None:
        self.own = 0.0
        """Seconds that this node's engine processes have starved, in all."""
        self.lent = 0.0
        """Seconds that tensor parallelism has waited for other ranks' starved engines."""
        self._process = 0.0  # the present process's part of `own`
        self._ranks: dict[int, _Rank] = {}

    def process(self, seconds: float) -> None:
        """This node's engine process has starved for *seconds* in all. Report 0 for a new
        process."""
        self.own += max(0.0, seconds - self._process)
        self._process = seconds

    def added_to(self, progress: Progress) -> tuple[Progress, Progress]:
        """Two copies of *progress*: one with this engine's starvation, and one for the peers, which
        adds the time spent waiting for other starved engines."""
        own, told = int(self.own * 1e6), int((self.own + self.lent) * 1e6)
        return attrs.evolve(progress, starved_us=own), attrs.evolve(progress, starved_us=told)

    def renumbered(self) -> None:
        """Forget all ranks: they are other nodes now."""
        self._ranks.clear()

    def look(self, rank: int, seconds: float | None, now: float) -> float:
        """The engine of *rank* has starved for *seconds* in all. Returns how much of that is new.

        A smaller total than before means that its node has a new process. None means that nothing
        was reported yet on a new link; the next report counts against the last one. A report beyond
        the time since the first sample is cut.
        """
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
        """True if the engine of *rank* starves and the log should report it now."""
        known = self._ranks[rank]
        if known.since is None or known.since == known.told:
            return False
        if known.told is not None and now - known.told < TELL_AGAIN:
            return False
        known.told = known.since
        return True

    def reset_all_but(self, ranks: set[int]) -> None:
        """Count every rank except *ranks* as not starved: nothing is reported about them for
        now."""
        for rank, known in self._ranks.items():
            if rank not in ranks:
                known.part, known.since = 0.0, None

    def of(self, *ranks: int) -> tuple[Starved, ...]:
        """The engines of *ranks* that starve now."""
        return tuple(
            Starved(rank, known.part, known.since)
            for rank in ranks
            if (known := self._ranks.get(rank)) is not None and known.since is not None
        )
