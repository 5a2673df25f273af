"""Prefill chunks: whose prompt is read next, how many chunks are under way, and how large they are.

**Whose.** The shortest prompt goes first, so that a long one does not delay many short ones. The
oldest prompt is overtaken only a few times in a row, so that it is never delayed for ever.

**How many.** In a pipeline every stage reads a chunk of its own at the same time. Stage 0 is given
its next chunk while it computes one, so it never waits for the head: as many chunks are under way
as there are stages, and one more. Where chunks spend much of their time between the ranks, more
are. While rows decode there are only as many as stages, and stage 0 has one at a time.

**How large.** Let a prompt be read in C chunks on N equal stages. The last stage ends N - 1 chunks
after the first, so a prompt takes (C + N - 1) / C times as long as it keeps each stage busy. Small
chunks are therefore better, down to where what a chunk costs beside its tokens shows. And they
must be so small that a decode behind them waits no longer than `SchedulerConfig.chunk_seconds` for
them (see `chunk_pace`). They are while nothing decodes, too, for whoever comes next, as far as a
device computes such small chunks no slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.scheduler.chunk_pace import ChunkPace
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.control.scheduler.rows import Flight, LiveRow

_SMALL: Final = 64
"""Tokens of the smallest chunk if nothing decodes, but for a prompt's last. On two cores, 16 tokens
took longer by a quarter for each token, and 256 no less long."""

_SMALLEST: Final = 8
"""The same while rows decode."""

_LEAST_SECONDS: Final = 0.05
"""Seconds that a chunk keeps a stage busy, at least, if nothing decodes: what it costs beside its
tokens is a few milliseconds."""

_PARTS: Final = 32
"""Chunks that a prompt is cut into for each stage after the first, if that leaves them
`_LEAST_SECONDS`."""

_OVERTAKES: Final = 2
"""Chunks of shorter prompts that may overtake the oldest prompt."""


class Chunks:
    """Chooses the chunks of the rows in prefill."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._stages = 1
        self._pace: Final = ChunkPace()
        self._overtaken = 0

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration. What has been learnt stays."""
        self._config = config

    def shape(self, stages: int) -> None:
        """An epoch begins, in which a chunk passes *stages* ranks, one after the other."""
        self._stages = stages
        self._pace.begin()

    @property
    def slow_links(self) -> str:
        """See `ChunkPace.slow_links`."""
        return self._pace.slow_links

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*, of any step."""
        self._pace.took(timing)

    def has_room(self, flights: Iterable[Flight], *, decoding: bool) -> bool:
        """True if one more chunk may begin beside the steps in *flights*. *decoding* says whether
        rows decode."""
        chunks = [flight for flight in flights if isinstance(flight.work, Prefill)]
        entering = sum(not flight.passed for flight in chunks)
        if decoding:
            return not entering and len(chunks) < self._stages
        return entering < 2 and len(chunks) <= self._stages + self._pace.on_the_way

    def next(self, rows: Sequence[LiveRow]) -> LiveRow | None:
        """The row to prefill next, of *rows* in prefill, the oldest first: the one with the fewest
        tokens left, and regularly the oldest. None if there are no rows."""
        if self._overtaken >= _OVERTAKES and rows:
            return rows[0]
        return min(rows, key=lambda row: row.unread, default=None)

    def cut(self, row: LiveRow, rows: Sequence[LiveRow], *, decoding: bool) -> Prefill:
        """The next chunk of *row*, which is one of *rows* as in `next`."""
        self._overtaken = 0 if row is rows[0] else self._overtaken + 1
        return Prefill(row.uid, row.position, min(row.unread, self._size(row, decoding=decoding)))

    def _size(self, row: LiveRow, *, decoding: bool) -> int:
        most, pace = self._config.chunk, self._pace
        least = _SMALLEST if decoding else _SMALL
        if not pace.known:
            return min(most, least)
        size = self._config.chunk_seconds / pace.waits
        if not decoding:
            # While a chunk travels, twice as many as stages are read (see `has_room`).
            busy = max(_LEAST_SECONDS, pace.latency / self._stages) / pace.stage
            size = min(size, max(self._part(row), busy))
        return min(most, max(least, int(size)))

    def _part(self, row: LiveRow) -> int:
        """The tokens of a chunk of *row* with which the last stage ends soon after the first."""
        if self._stages == 1:
            return self._config.chunk
        return (len(row.tokens) - row.kept) // (_PARTS * (self._stages - 1))
