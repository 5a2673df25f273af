"""Prefill chunks: whose prompt is read next, how many chunks are under way, and how large they are.

**Whose.** The shortest prompt goes first, so that a long one does not delay many short ones. The
oldest prompt is overtaken only a few times in a row, so that it is never delayed for ever.

**How many.** In a pipeline every stage reads a chunk of its own at the same time. Stage 0 is given
its next chunk while it computes one, so it never waits for the head: as many chunks are under way
as there are stages, and one more. Where chunks spend much of their time between the ranks, more
are. While rows decode there are only as many as stages, and stage 0 has one at a time.

**How large.** Let a prompt of T tokens be read in chunks of n on N equal stages, and a chunk take
a + b * n on each (see `chunk_pace`). The last stage ends N - 1 chunks after the first, and waits
s * n for the links that send it a chunk. So all takes (T / n + N - 1) * (a + b * n) + s * n. It
is least for n = sqrt(a * T / ((N - 1) * b + s)). A chunk must also be so small that a decode behind
it waits no longer than `SchedulerConfig.chunk_seconds` because of chunks. It is while nothing
decodes, too, for whoever comes next, as far as a device computes such small chunks no slower. Few
sizes are used, so that what a GPU prepares for a shape serves again. A chunk also ends where the
row's cache is to be kept (`LiveRow.stops`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.scheduler.chunk_pace import ChunkPace
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.control.scheduler.rows import Flight, LiveRow

_SMALL: Final = 64
"""Tokens of the smallest chunk if nothing decodes, except a prompt's last. On two cores chunks of
16 took a quarter longer for each token, and chunks of 256 no less."""

_SMALLEST: Final = 8
"""The same while rows decode."""

_OVERTAKES: Final = 2
"""Chunks of shorter prompts that may overtake the oldest prompt."""


class Chunks:
    """Chooses the chunks of the rows in prefill."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._stages = 1
        # Chunks whose tokens are scored have a pace of their own: they take longer.
        self._paces: Final = {False: ChunkPace(), True: ChunkPace()}
        self._overtaken = 0

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration. What has been learnt stays."""
        self._config = config

    def shape(self, stages: int) -> None:
        """An epoch begins, in which a chunk passes *stages* ranks, one after the other."""
        self._stages = stages
        for pace in self._paces.values():
            pace.begin()

    @property
    def slow_links(self) -> str:
        """See `ChunkPace.slow_links`."""
        return self._paces[False].slow_links

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*, of any step."""
        for scored, pace in self._paces.items():
            if not isinstance(timing.work, Prefill) or timing.work.scored == scored:
                pace.took(timing)

    def has_room(self, flights: Iterable[Flight], *, decoding: bool) -> bool:
        """True if one more chunk may begin beside the steps in *flights*. *decoding* says whether
        rows decode."""
        chunks = [flight for flight in flights if isinstance(flight.work, Prefill)]
        entering = sum(not flight.passed for flight in chunks)
        if decoding:
            return not entering and len(chunks) < self._stages
        on_the_way = max(pace.on_the_way for pace in self._paces.values())
        return entering < 2 and len(chunks) <= self._stages + on_the_way

    def next(self, rows: Sequence[LiveRow]) -> LiveRow | None:
        """The row to prefill next, of *rows* in prefill, the oldest first: the one with the fewest
        tokens left, and regularly the oldest. None if there are no rows."""
        if self._overtaken >= _OVERTAKES and rows:
            return rows[0]
        return min(rows, key=lambda row: row.unread, default=None)

    def cut(self, row: LiveRow, rows: Sequence[LiveRow], *, decoding: bool) -> Prefill:
        """The next chunk of *row*, which is one of *rows* as in `next`."""
        self._overtaken = 0 if row is rows[0] else self._overtaken + 1
        scored = row.wants_scores and row.position >= row.scored
        left = row.scored - row.position if row.wants_scores and not scored else row.unread
        left = min([left, *(stop - row.position for stop in row.stops if stop > row.position)])
        size = self._size(row, self._paces[scored], decoding=decoding)
        return Prefill(row.uid, row.position, min(left, size), scored)

    def _size(self, row: LiveRow, pace: ChunkPace, *, decoding: bool) -> int:
        most = self._config.chunk
        least = _SMALLEST if decoding else _SMALL
        if not pace.known:
            return min(most, least)
        size = pace.most_within(self._config.chunk_seconds)
        if not decoding:
            size = min(size, self._best(pace, len(row.tokens) - row.kept))
        return min(most, max(least, _step_of(size)))

    def _best(self, pace: ChunkPace, tokens: int) -> float:
        """The tokens of a chunk with which a prompt of *tokens* is read soonest, and a little more:
        `_step_of` rounds down."""
        later = self._stages - 1
        if later == 0:
            return tokens
        alone, each = pace.parts
        # While a chunk travels, twice as many as stages are read (see `has_room`).
        far = pace.latency / self._stages
        best = math.sqrt(alone * tokens / (later * each + pace.sent))
        return 1.1 * max(best, far / each, pace.apart)


def _step_of(size: float) -> int:
    """The greatest of 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... that is at most *size*."""
    step = 1 << max(0, int(size).bit_length() - 3)
    return max(4, int(size) // step * step)
