"""Which row decodes on guesses next, and what comes of them when tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sealring_protocol.codec.messages import NO_LOGPROBS
from sealring_protocol.control.scheduler.flights import Flights
from sealring_protocol.control.scheduler.guesses import GUESSES_AHEAD, GuessCosts, Ways
from sealring_protocol.control.scheduler.rows import Flight, LiveRow
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.limits import MAX_GUESSED


@attrs.frozen
class Guess:
    """*row*, alone in its group, is likely to go on with *tokens*."""

    row: LiveRow
    tokens: tuple[int, ...]


class Guessing:
    """Guesses of the rows *running*, whose steps are *flights*.

    A row has its guesses in two ways. Steps that begin with a guess follow the one that reads its
    last token, so that idle stages have work. And a step may read several *ahead*; then the next
    one that begins with no guess waits until the tokens are known.
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
        self._sizes = tuple(sorted({*(n for n in GUESSES_AHEAD if n < most), most} - {0}))
        self._running.room.ahead = most

    def prompt_read(self, row: LiveRow, count: int) -> None:
        """Ranks have read so many further tokens of the prompt of *row*. It may guess, unless there
        are more rows than stages: those keep the stages at work."""
        able = self._sizes or self._stages > 1
        if able and len(self._running.live) <= self._stages:
            row.guesses.prompt_read(count)

    def next(self) -> Guess | None:
        """What to guess now, if stages are idle and there is a guess."""
        if self._reading or not 0 < self._flights.busy < self._stages:
            return None
        rows = [self._alone(group) for group in self._running.ledger.groups]
        for row in sorted(filter(None, rows), key=lambda row: len(row.guesses.fed)):
            if self._may_guess(row):
                self._find_ways(row)
                most = min(MAX_GUESSED - len(row.guesses.under_way), self._left(row))
                if tokens := row.guesses.next(self.costs, most):
                    return Guess(row, tokens)
        return None

    def waits(self, group: int) -> bool:
        """Whether the next decode of *group* waits for the tokens of the one in flight: that has
        read guesses ahead, or the next one is to read some after it."""
        rows = map(self._running.rows.get, self._running.ledger.rows(group))
        if any(row is not None and row.guesses.ahead for row in rows):
            return True
        row = self._alone(group)
        return row is not None and row.coming > 0 and bool(self._after_last(row))

    def ahead(self, group: int) -> tuple[int, ...]:
        """The guesses that the row of *group* reads ahead with its next decode, if it is alone."""
        row = self._alone(group)
        return () if row is None or row.coming else self._after_last(row)

    def drawn(self, row: LiveRow, flight: Flight, tokens: Sequence[int], now: float) -> None:
        """*row* goes on with *tokens*, which *flight* gave: its guesses are confirmed, or have the
        next step take them back."""
        alone = self._is_only(row)
        right = row.guesses.drawn(flight.guesses, tokens, now, self.costs, alone=alone)
        if right is None:
            self._running.waste(row)
        else:
            self._flights.confirm(right)

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

    def _after_last(self, row: LiveRow) -> tuple[int, ...]:
        """The guesses that *row*, alone in its group, is to read ahead with the step that reads its
        last token, once those in flight are known."""
        self._find_ways(row)
        sizes = row.guesses.ways.sizes
        if not sizes or self._reading or not self._running.stays(row):
            return ()
        most = min(sizes[-1], self._left(row) - 1)
        return row.guesses.after_last(self.costs, row.coming, most) if most > 0 else ()

    def _find_ways(self, row: LiveRow) -> None:
        """Tell *row*, alone in its group, in which ways it may guess."""
        running = self._running
        able = running.prefixes.cuttable and row.request.sampling.logprobs == NO_LOGPROBS
        sizes = self._sizes if able else ()
        row.guesses.ways = Ways(len(running.live) < self._stages, sizes, self._is_only(row))

    def _left(self, row: LiveRow) -> int:
        """How many tokens *row* may read beyond those in flight, so that one is drawn after
        each."""
        return min(row.end, self._running.room.longest) - row.reach

    def _may_guess(self, row: LiveRow) -> bool:
        """Whether *row*, alone in its group, may decode on a guess now: each of its steps in flight
        but the first begins with a guess."""
        settled = row.uid not in self._running.backs and self._running.stays(row)
        return settled and row.coming == len(row.guesses.fed) + 1 and self._fits(row)

    def _fits(self, row: LiveRow) -> bool:
        """Whether each rank has room to keep what takes one more guess of *row* back: a state, if
        its caches cannot be cut, which is no larger than a snapshot. For the first one there is the
        room of a copy (`cache_room`)."""
        running = self._running
        if running.prefixes.cuttable:
            return True
        kept = sum(len(other.guesses.fed) for other in running.live.values())
        held = [*running.prefixes.lengths, *[len(row.tokens)] * kept]
        return running.room.shortage(running.live.values(), held) <= 0
