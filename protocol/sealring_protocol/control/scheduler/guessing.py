"""Which row decodes on a guess next, and what comes of it when its token is drawn."""

from __future__ import annotations

from typing import NamedTuple

from sealring_protocol.control.scheduler.flights import Flights
from sealring_protocol.control.scheduler.guess_costs import GuessCosts
from sealring_protocol.control.scheduler.rows import LiveRow
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.limits import MAX_GUESSED


class Guess(NamedTuple):
    """*row*, alone in its group, is likely to go on with *token*."""

    row: LiveRow
    token: int


class Guessing:
    """Guesses of the rows *running*, whose steps are *flights*."""

    def __init__(self, running: RunningRows, flights: Flights) -> None:
        self._running = running
        self._flights = flights
        self.costs = GuessCosts()
        self.stages = 0
        """The stages that may be kept at work; 0: there are no guesses."""

    def next(self) -> Guess | None:
        """What to guess now, if stages are idle and there is a guess."""
        reading = self._flights.chunks or self._running.unread()
        if reading or not 0 < self._flights.busy < self.stages:
            return None
        rows = [self._alone(group) for group in self._running.ledger.groups]
        for row in sorted(filter(None, rows), key=lambda row: len(row.guesses.fed)):
            token = row.guesses.next(self.costs) if self._may_guess(row) else None
            if token is not None:
                return Guess(row, token)
        return None

    def drawn(self, row: LiveRow, token: int, now: float) -> None:
        """*row* goes on with *token*: its guesses are confirmed, or wasted."""
        alone = len(self._running.live) == 1
        right = row.guesses.drawn(token, now, self.costs, alone=alone)
        if right is None:
            self._running.waste(row)
        else:
            self._flights.confirm(right)

    def _alone(self, group: int) -> LiveRow | None:
        """The row that is alone in *group*, if there is one, and nobody is about to join it."""
        rows = self._running.ledger.rows(group)
        single = len(rows) == 1 and not self._running.joiners(group)
        return self._running.rows.get(rows[0]) if single else None

    def _may_guess(self, row: LiveRow) -> bool:
        """Whether *row*, alone in its group, may decode on a guess now: each of its tokens in
        flight but the last is guessed already."""
        fed = len(row.guesses.fed)
        settled = row.uid not in self._running.backs and self._running.stays(row)
        if not settled or row.coming != fed + 1 or fed == MAX_GUESSED:
            return False
        return len(row.tokens) + row.coming < row.end and self._fits(row)

    def _fits(self, row: LiveRow) -> bool:
        """Whether each rank has room to keep what takes one more guess of *row* back: a state, if
        its caches cannot be cut, which is no larger than a snapshot. For the first one there is the
        room of a copy (`kv_budget`)."""
        running = self._running
        if running.prefixes.cuttable:
            return True
        kept = sum(len(other.guesses.fed) for other in running.live.values())
        held = [*running.prefixes.lengths, *[len(row.tokens)] * kept]
        return running.room.shortage(running.live.values(), held) <= 0
