"""Prefill chunks: whose prompt is read next, how many chunks are under way, and how large they are.

**Whose.** The shortest prompt goes first, so that a long one does not delay many short ones. The
oldest prompt is overtaken only a few times in a row, so that it is never delayed for ever.

**How many.** In a pipeline every stage reads a chunk of its own at the same time. Stage 0 is given
its next chunk while it computes one, so it never waits for the head: as many chunks are under way
as there are stages, and one more. Where chunks spend much of their time between the ranks, more
are. While rows decode there are only as many as stages, and stage 0 has one at a time.

**How large.** Let a prompt of T tokens be read in chunks of n on N equal stages, and a chunk take
a + b * n on each (see `ChunkPace`). The last stage ends N - 1 chunks after the first, and waits
s * n for the links that send it a chunk. So all takes (T / n + N - 1) * (a + b * n) + s * n. It
is least for n = sqrt(a * T / ((N - 1) * b + s)). A chunk must also be so small that a decode behind
it waits no longer than `SchedulerConfig.chunk_seconds` because of chunks. It is while nothing
decodes, too, for whoever comes next, as far as a device computes such small chunks no slower. Few
sizes are used, so that what a GPU prepares for a shape serves again. A chunk also ends where the
row's cache is to be kept (`LiveRow.stops`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.control.scheduler.rows import Flight, LiveRow

# ---------------------------------------------------------------------- chunk pace
# How fast chunks are read, from the times that ranks tell of each step.
#
# While rows decode, their tokens may come late by a bound, and a rank does steps in order: a
# decode overtakes no chunk. Let a chunk take t[r] on rank r, and w to travel, beyond what any
# step takes for that. A decode that is sent behind a chunk waits t[0] for it on rank 0, arrives
# at each later rank right behind it, and waits t[r] for it there. It waits for no other chunk, if
# ranks are equal: when stage 0 got that chunk it had no other, and so on down the chain. If a
# later rank is slower, up to N - 1 chunks wait there, each of which comes max(t) - t[0] too
# early. Back at the head, the closing pass waits for the next chunk, t[0]. So a decode waits for
# chunks, in all and at most::
#
#     sum(t) + w + (N - 1) * (max(t) - t[0]) + t[0]
#
# Where a chunk's tokens are scored, rank 0 has a closing pass for it, too, which counts in t[0].
#
# A chunk of n tokens takes about a + b * n. A device may take long for a alone: a GPU computes
# little while its kernels are launched. The smallest of the recent chunks and a larger one tell
# a, and the largest tells b, of which the fastest count: a machine is at times slower than it can
# be, and a GPU that has not had such a shape yet prepares its kernels. A decode is taken to wait
# as much longer than that as the slowest of the recent chunks took: late ones of a long prompt
# do, for their attention. Of w the least counts, since latency that varies is no chunk's. The
# next chunk is at most twice as large as a recent one, as all of this is a guess.


_RECENT: Final = 8
"""Chunks whose times count."""

_LEAST: Final = 1e-9
"""Seconds for a token if ranks report none."""

_APART: Final = 2
"""So many times larger than another a chunk must be for the two to tell a."""


class _Chunk(NamedTuple):
    """A chunk of *tokens*: what the slowest rank takes for it, how long it is between ranks, and
    what a decode behind it waits for the ranks and, for each token, for the links."""

    tokens: int
    stage: float
    way: float
    waits: float
    sent: float


class ChunkPace:
    """Learns from the times of steps. All of its times are seconds."""

    def __init__(self) -> None:
        self._recent: deque[_Chunk] = deque(maxlen=_RECENT)
        self._alone: float | None = None
        self._slow_links: deque[str] = deque(maxlen=_RECENT)
        self._shortest_way: float | None = None
        self.on_the_way = 0
        """Chunks that are between ranks while each rank has one."""
        self.sent = 0.0
        """What all links take for each token of a chunk."""

    def begin(self) -> None:
        """An epoch begins, perhaps over other links."""
        self.sent = 0.0
        self._slow_links.clear()
        self._shortest_way = None
        self.on_the_way = 0

    @property
    def slow_links(self) -> str:
        """In words, that chunks wait for links rather than for ranks; empty if they do not."""
        all_do = len(self._slow_links) == _RECENT and all(self._slow_links)
        return self._slow_links[-1] if all_do else ""

    @property
    def known(self) -> bool:
        """Whether any chunk has been read."""
        return bool(self._recent)

    @property
    def apart(self) -> float:
        """The tokens of a chunk from which on more is learnt; 0 if enough is known."""
        return 0 if self._alone is not None else _APART * self._fastest(max)[0]

    @property
    def parts(self) -> tuple[float, float]:
        """What the slowest rank takes for a chunk beside its tokens, and for each token."""
        tokens, fast = self._fastest(max)
        alone = min(self._alone or 0.0, fast / 2)
        return alone, (fast - alone) / tokens

    def most_within(self, seconds: float) -> float:
        """The tokens of the largest chunk behind which a decode waits at most *seconds* because of
        chunks."""
        alone, each = self.parts
        slower = max(of.waits / (alone + each * of.tokens) for of in self._recent)
        sent = min(of.sent for of in self._recent)
        tokens = (seconds - slower * alone) / (slower * each + sent)
        return min(tokens, 2 * self._fastest(max)[0])

    def _fastest(self, choose: Callable[[Iterable[int]], int]) -> tuple[int, float]:
        """The size that *choose* takes of the recent ones, and the shortest time of one of it."""
        size = choose(of.tokens for of in self._recent)
        return size, min(of.stage for of in self._recent if of.tokens == size)

    @property
    def latency(self) -> float:
        """How long the smallest step travels."""
        return self._shortest_way or 0.0

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*."""
        way = timing.away_us / 1e6
        self._shortest_way = min(way, way if self._shortest_way is None else self._shortest_way)
        if not isinstance(timing.work, Prefill):
            return
        # Other ranks tell their times, and none can have taken longer than all of it.
        most = timing.total_us
        times = [min(most, each.compute_us + each.seal_us) / 1e6 for each in timing.spent] or [0.0]
        times[0] += (timing.closing.compute_us + timing.closing.seal_us) / 1e6
        slowest, waits = max(times), max(times)
        if len(times) > 1 and not timing.parallel:
            waits = sum(times) + (len(times) - 1) * (slowest - times[0]) + times[0]
            self.on_the_way = min(len(times), round(way / max(slowest, _LEAST)))
            sent = (way - self._shortest_way) / (len(times) - 1)
            text = (
                "long prompts are read as fast as the links between ranks are: a chunk of "
                f"{timing.work.count} tokens is sent in {1e3 * sent:.0f} ms by each rank, and "
                f"computed in {1e3 * slowest:.0f} ms by the slowest"
            )
            self._slow_links.append(text if sent > slowest else "")
        count = timing.work.count
        sent = (way - self._shortest_way) / count
        self._recent.append(_Chunk(count, max(_LEAST, slowest), way, max(_LEAST, waits), sent))
        small, fast = self._fastest(min)
        larger = [of for of in self._recent if of.tokens >= _APART * small and of.stage > fast]
        if larger:
            each = min((of.stage - fast) / (of.tokens - small) for of in larger)
            self._alone = max(0.0, fast - each * small)
            short = min(of.way for of in self._recent if of.tokens == small)
            self.sent = max(0.0, min((of.way - short) / (of.tokens - small) for of in larger))


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
