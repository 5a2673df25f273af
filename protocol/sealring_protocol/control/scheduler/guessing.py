"""Which row decodes on guesses next, and what comes of them when tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.codec.messages import NO_LOGPROBS
from sealring_protocol.control.scheduler.flights import Flights
from sealring_protocol.control.scheduler.guess_costs import GuessCosts, Ways
from sealring_protocol.control.scheduler.rows import Flight, LiveRow
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.limits import MAX_GUESSED

_SIZES: Final = (1, 2, 4, 8, MAX_GUESSED)
"""How many guesses a step reads ahead: few numbers, for each is learnt, and prepared by devices, by
itself."""


@attrs.frozen
class Guess:
    """*row*, alone in its group, is likely to go on with *token*."""

    row: LiveRow
    token: int


class Guessing:
    """Guesses of the rows *running*, whose steps are *flights*.

    A row has its guesses in one of two ways: each with a step of its own, so that idle stages have
    work, or several *ahead* with one step. Then it has no other step in flight, and its next one
    waits until the tokens are known.
    """

    def __init__(self, running: RunningRows, flights: Flights) -> None:
        self._running = running
        self._flights = flights
        self.costs = GuessCosts()
        self._stages = 0
        self._sizes: tuple[int, ...] = ()

    def shape(self, stages: int) -> None:
        """A step passes so many *stages*, which guesses may keep at work; 0: there are no
        guesses."""
        self._stages = stages
        most = (self._running.config.ahead or 0) if stages else 0
        most = min(most, MAX_GUESSED)
        self._sizes = tuple(sorted({*(n for n in _SIZES if n < most), most} - {0}))
        self._running.room.ahead = most

    def next(self) -> Guess | None:
        """What to guess now, if stages are idle and there is a guess."""
        if self._reading or not 0 < self._flights.busy < self._stages:
            return None
        rows = [self._alone(group) for group in self._running.ledger.groups]
        for row in sorted(filter(None, rows), key=lambda row: len(row.guesses.fed)):
            if not self._may_guess(row) or self._guesses_ahead(row):
                continue
            token = row.guesses.next(self.costs)
            if token is not None:
                return Guess(row, token)
        return None

    def waits(self, group: int) -> bool:
        """Whether the next decode of *group* waits for the tokens of the one in flight: that has
        read guesses ahead, or the next one is to read some after it."""
        rows = map(self._running.rows.get, self._running.ledger.rows(group))
        if any(row is not None and row.ahead for row in rows):
            return True
        row = self._alone(group)
        return row is not None and row.coming > 0 and bool(self._guesses_ahead(row))

    def ahead(self, group: int) -> tuple[int, ...]:
        """The guesses that the row of *group* reads ahead with its next decode, if it is alone."""
        row = self._alone(group)
        return () if row is None or row.coming else self._guesses_ahead(row)

    def drawn(self, row: LiveRow, token: int, now: float) -> None:
        """*row* goes on with *token*: its guesses are confirmed, or wasted."""
        right = row.guesses.drawn(token, now, self.costs, alone=self._is_only(row))
        if right is None:
            self._running.waste(row)
        else:
            self._flights.confirm(right)

    def landed(self, flight: Flight, ids: Sequence[int], now: float) -> LiveRow | None:
        """The step *flight* gave *ids*. Its row, if that has read guesses ahead and stays in its
        group: call `take_back` for it next."""
        row = self._running.rows.get(flight.uids[0]) if flight.guesses else None
        if row is None:
            return None
        alone = self._is_only(row)
        row.guesses.drawn_ahead(flight.guesses, ids, now, self.costs, alone=alone)
        return row if self._running.stays(row) else None

    def take_back(self, row: LiveRow, flight: Flight) -> None:
        """*row* has its tokens of *flight*: have the next step take the other guesses back."""
        (first,) = flight.positions
        wrong = first + len(flight.guesses) + 1 - len(row.tokens)
        if wrong:
            row.position -= wrong
            self._running.backs[row.uid] = wrong

    @property
    def _reading(self) -> bool:
        """Whether prompts are read."""
        return bool(self._flights.chunks or self._running.unread())

    def _is_only(self, row: LiveRow) -> bool:
        """Whether nothing but *row* is at work."""
        return len(self._running.live) == 1 and row.uid in self._running.live

    def _alone(self, group: int) -> LiveRow | None:
        """The row that is alone in *group*, if there is one, and nobody is about to join it."""
        rows = self._running.ledger.rows(group)
        single = len(rows) == 1 and not self._running.joiners(group)
        return self._running.rows.get(rows[0]) if single else None

    def _guesses_ahead(self, row: LiveRow) -> tuple[int, ...]:
        """The guesses that *row*, alone in its group, is to read ahead with one step, once the
        tokens in flight are known."""
        running = self._running
        able = running.prefixes.cuttable and row.request.sampling.logprobs == NO_LOGPROBS
        sizes = self._sizes if able else ()
        row.guesses.ways = Ways(len(running.live) < self._stages, sizes, self._is_only(row))
        if not sizes or self._reading or not running.stays(row):
            return ()
        left = min(row.end, running.room.longest) - len(row.tokens) - row.coming - 1
        most = min(sizes[-1], left)
        return row.guesses.ahead(self.costs, row.coming, most) if most > 0 else ()

    def _may_guess(self, row: LiveRow) -> bool:
        """Whether *row*, alone in its group, may decode on a guess now: each of its tokens in
        flight but the last is guessed already."""
        fed = len(row.guesses.fed)
        settled = row.uid not in self._running.backs and self._running.stays(row)
        if not settled or row.ahead or row.coming != fed + 1 or fed == MAX_GUESSED:
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
