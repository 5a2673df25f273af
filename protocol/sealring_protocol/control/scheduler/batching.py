"""What a step works on: chunks of prompts, and groups of rows that decode together.

**Whose prompt is read.** The shortest prompt goes first, so that a long one does not delay many
short ones. The oldest prompt is overtaken only a few times in a row, so that it is never delayed
for ever.

**How many chunks are under way.** In a pipeline every stage reads a chunk of its own at the same
time. Stage 0 is given its next chunk while it computes one, so it never waits for the head: as many
chunks are under way as there are stages, and one more. Where chunks spend much of their time
between the ranks, more are. While rows decode there are only as many as stages, and stage 0 has one
at a time.

**How large a chunk is.** Let a prompt of T tokens be read in chunks of n on N equal stages, and a
chunk take a + b * n on each (see `ChunkTimes`). The last stage ends N - 1 chunks after the first,
and waits s * n for the links that send it a chunk. So all takes (T / n + N - 1) * (a + b * n) +
s * n. It is least for n = sqrt(a * T / ((N - 1) * b + s)). A chunk must also be so small that a
decode behind it waits no longer than `SchedulerConfig.chunk_seconds` because of chunks. It is while
nothing decodes, too, for whoever comes next, as far as a device computes such small chunks no
slower. Few sizes are used, so that what a GPU prepares for a shape serves again, and the chunks of
a prompt are about equal, so that the last is no small one. A chunk also ends where the row's cache
is to be kept (`LiveRow.stops`).

**How many groups there are** (`group_count`). A group's decode occupies one rank at a time. So as
many groups as stages keep every stage busy, and that is the number to begin with. While decodes
travel further groups may use the ranks. But more groups are smaller ones, and each decode has costs
that do not depend on its rows. And decodes of several groups wait for each other where ranks share
processors, or where one does most of the work.

So the time of a decode is known by the number of groups and the rows of its own. If it takes t
while R rows are in groups, the ring gives R / t tokens a second with so many groups. Of the numbers
that are known the fastest is taken; the number to begin with is left only for one that is faster by
`GAIN`. While there are no more rows than stages, each has a group of its own, so that it may decode
on guesses. While a row of another length has a group of its own, little is learnt.

Rows stay in their group until they end, so to try a number that is not known may cost much. One
less than the best is tried if it promises to be faster: its time with few rows is known from when
there were few, and is taken to rise with further rows as that of the best number does. And unless
fewer than the number to begin with are best, more are tried, the most first, as far as decodes
travel for so long that it may pay.

**Which group a row joins** (`cheapest_group`). Rows are spread evenly. But a batched cache is a
rectangle, in which every row costs as much as the longest, so rows of similar length are put
together. A row that fits none of the groups gets one more: to read the weights once more takes less
time than to read so much padding with each step, and to make the rectangle would have the other
rows wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.control.scheduler.rows import Flight, LiveRow
from sealring_protocol.control.scheduler.times import GAIN, ChunkTimes, StepTimes

_SMALL: Final = 64
"""No chunk is limited to fewer tokens if nothing decodes. On two cores chunks of 16 took a quarter
longer for each token, and chunks of 256 no less."""

_SMALLEST: Final = 8
"""The same while rows decode."""

_OVERTAKES: Final = 2
"""Chunks of shorter prompts that may overtake the oldest prompt."""

_WASTE: Final = 1024
"""Tokens of padding in a group's cache that count as much as one more row."""


class Chunks:
    """Chooses the chunks of the rows in prefill, by *times*."""

    def __init__(self, config: SchedulerConfig, times: StepTimes) -> None:
        self.config = config
        self.stages = 1
        """How many ranks a chunk passes, one after the other."""
        self._times = times
        self._overtaken = 0

    def has_room(self, flights: Iterable[Flight], *, decoding: bool) -> bool:
        """True if one more chunk may begin beside the steps in *flights*. *decoding* says whether
        rows decode."""
        chunks = [flight for flight in flights if isinstance(flight.work, Prefill)]
        entering = sum(not flight.passed for flight in chunks)
        if decoding:
            return not entering and len(chunks) < self.stages
        on_the_way = max(of.on_the_way for of in self._times.chunks.values())
        return entering < 2 and len(chunks) <= self.stages + on_the_way

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
        most = self._most(row, self._times.chunks[scored], decoding=decoding)
        return Prefill(row.uid, row.position, _part_of(left, most), scored)

    def _most(self, row: LiveRow, times: ChunkTimes, *, decoding: bool) -> int:
        """The tokens that the next chunk of *row* may have."""
        most = self.config.chunk
        least = _SMALLEST if decoding else _SMALL
        if not times.known:
            return min(most, least)
        size = times.most_within(self.config.chunk_seconds)
        if not decoding:
            size = min(size, self._best(times, len(row.tokens) - row.kept))
        return min(most, max(least, int(size)))

    def _best(self, times: ChunkTimes, tokens: int) -> float:
        """The tokens of a chunk with which a prompt of *tokens* is read soonest, and a little more:
        `_part_of` rounds down."""
        later = self.stages - 1
        if later == 0:
            return tokens
        alone, each = times.parts
        # While a chunk travels, twice as many as stages are read (see `has_room`).
        far = self._times.latency / self.stages
        best = math.sqrt(alone * tokens / (later * each + times.sent))
        return 1.1 * max(best, far / each, times.apart)


def _part_of(left: int, most: int) -> int:
    """How many of *left* tokens the next chunk has, if none may have more than *most*.

    That is all of them, or one of few sizes: 1, 2, ... 8, 10, 12, 14, 16, 20, 24 and so on. The
    chunks are about equal, for a small one at the end costs as much as a large one on many devices.
    There are no more of them than if each had the greatest size that *most* allows.
    """
    if left <= most:
        return left
    chunks = -(-left // (most - most % _gap(most)))
    each = -(-left // chunks)
    return each + -each % _gap(each)


def _gap(size: int) -> int:
    """Between two of the sizes that chunks have, about *size*."""
    return 1 << max(0, size.bit_length() - 3)


def group_count(times: StepTimes, rows: int, stages: int, most: int, each: int) -> int:
    """How many groups, *most* at most, so many *rows* are to be spread over in a pipeline of so
    many *stages*. A group has at most *each* rows."""
    rows = min(max(rows, round(times.rows_lately)), most * each)
    first = min(stages, most)
    if rows <= stages:
        return first
    sizes = {n: min(each, -(-rows // n)) for n in range(1, most + 1)}
    paces = {n: min(rows, n * of) * times.rate(n, of) for n, of in sizes.items()}
    least = min(first, -(-rows // each))
    if not paces[first]:
        return first
    best, fastest = first, GAIN * paces[first]
    for n in range(least, most + 1):
        if paces[n] > fastest:
            best, fastest = n, paces[n]
    fewer = best - 1
    if fewer >= least and not paces[fewer]:
        held = min(rows, fewer * sizes[fewer])
        if held * times.promised(fewer, sizes[fewer], best) > GAIN * paces[best]:
            return fewer
    fits = min(most, stages + round(stages * times.travels))
    unknown = (n for n in range(fits, best, -1) if not paces[n])
    return next(unknown, best) if best >= stages else best


def cheapest_group(
    row: LiveRow, live: Iterable[LiveRow], groups: int, rows: int, *, most: int, padding: float
) -> int:
    """The number of the group that *row* is to join: the cheapest of *groups*, of those with fewer
    than *rows* of the *live* rows, if there is one. If that needs more than *padding* tokens of
    padding, the fullest of the further groups, *most* in all, that has room and needs no more; the
    cheapest after all if there is none."""
    lengths: list[list[int]] = [[] for _ in range(most)]
    for other in live:
        if other.group < most:
            lengths[other.group].append(len(other.tokens))

    def waste(group: int) -> int:
        others, own = lengths[group], len(row.tokens)
        gap = own - max(others, default=own)
        return len(others) * gap if gap > 0 else -gap

    def cost(group: int) -> tuple[bool, float, int]:
        count = len(lengths[group])
        return count >= rows, count + waste(group) / _WASTE, group

    best = min(range(groups), key=cost)
    if waste(best) <= padding:
        return best
    fits = [n for n in range(groups, most) if len(lengths[n]) < rows and waste(n) <= padding]
    return max(fits, key=lambda group: len(lengths[group]), default=best)
