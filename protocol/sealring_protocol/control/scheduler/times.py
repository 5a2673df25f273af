"""What steps take in this ring: the times that the scheduler decides by, and the trial of tensor
parallelism (`head.trial`).

The head sees when a step is answered, and each rank reports what the step took it. From that
`StepTimes` learns a mean for each `Kind` of decode, and for chunks of prompts, which may have any
number of tokens, what a token takes (`ChunkTimes`). How many groups there are and how large a chunk
is (`batching`), and how many guesses a step reads (`guesses`), all follow from these times. What is
not known is estimated from what is, and tried if it promises to be faster by `GAIN`.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from sealring_protocol.codec.messages import Decode, Prefill
from sealring_protocol.control.effects import StepTiming

GAIN: Final = 1.05
"""How much faster than what is done now another way must be to be taken, and than the best that is
known to be tried, as times are known roughly."""

LEAST: Final = 1e-9
"""Seconds that anything takes at least."""

_STEADY: Final = 16
"""Intervals over which a time is averaged."""

_OUTLIER: Final = 4.0
"""Intervals are cut off at so many times the average: the machine did something else."""

_TRIES: Final = 3
"""Intervals of a kind after which their time is known: that of the fastest. A device prepares for a
new shape, a GPU for a second or more; so the very first does not count."""

_FORGOTTEN: Final = 4096
"""Intervals after which a time is not known any more that was not measured meanwhile. A row that
decodes alone gives two with each token."""

_STALE: Final = 512
"""Intervals after guesses, in a row, after which it is not known any more what a token takes
without: the machine may have other work now."""

_UNLIKE: Final = 16
"""Intervals in a row of which none counts, after which one does: else those of a row whose steps
never read as many guesses as those beside them would not be known, and a trial not end."""

_NEAR: Final = 1.5
"""The time of a decode that is not known is taken from one with less than so many times the rows,
and more than so many times fewer."""

_FADES: Final = 1 / 512
"""By which share the most rows at once, of late, falls with each decode of fewer."""


class After(enum.Enum):
    """What the step that an answer is to came after. PLAIN: a step with nothing behind it. RIGHT:
    the step was in flight then, and began with a right guess. WRONG: another step was, and began
    with a wrong one.
    """

    PLAIN = "plain"
    RIGHT = "right"
    WRONG = "wrong"


Kind = tuple[int | After, int]
"""What a time is of. A number of groups, and the rows of each: a decode, from the head's order to
its answer. Or what the step came after, and the guesses that it read ahead: the time between two
answers to a row that decodes alone."""


class _Mean:
    """The mean *seconds* of the intervals of one kind; up to `_TRIES` the fastest. The *count* of
    those after the first is counted up to `_STEADY`. At the tick *latest* the newest came."""

    def __init__(self) -> None:
        self.seconds, self.count, self.latest = 0.0, -1, 0

    def add(self, seconds: float, tick: int = 0) -> None:
        self.count, self.latest = min(self.count + 1, _STEADY), tick
        if self.count <= 1:
            self.seconds = seconds
        elif self.count <= _TRIES:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += (min(seconds, _OUTLIER * self.seconds) - self.seconds) / self.count


class StepTimes:
    """The times of one ring. All are seconds."""

    def __init__(self) -> None:
        self.known: dict[Kind, float] = {}
        """The mean seconds that are known. To be read only."""
        self.chunks: Final = {False: ChunkTimes(), True: ChunkTimes()}
        """Of chunks, and of those whose tokens are scored, which take longer."""
        self.forget()

    def forget(self) -> None:
        """Nothing is known: the ranks may be other machines now."""
        self.known.clear()
        self._means: dict[Kind, _Mean] = {}  # the kind first that was not measured for longest
        self._tick = 0  # intervals so far
        self._guessed = 0  # intervals since the last one after no guess
        self._unlike = 0  # intervals since the last one that was alike
        self._stage, self._way = _Mean(), _Mean()  # of the slowest stage, and between two
        self.rows_lately = 0.0
        """The most rows that decoded at once, of late."""
        for chunks in self.chunks.values():
            chunks.forget()
        self.begin()

    def begin(self) -> None:
        """An epoch begins, perhaps over other links."""
        self._latency: float | None = None
        for chunks in self.chunks.values():
            chunks.begin()

    # ---------------------------------------------------------------- learning

    def add(self, kind: Kind, seconds: float) -> None:
        """An interval of *kind* took so many *seconds*."""
        self._tick += 1
        mean = self._means.pop(kind, None) or _Mean()
        self._means[kind] = mean
        mean.add(seconds, self._tick)
        if mean.count >= _TRIES:
            self.known[kind] = mean.seconds
        oldest = next(iter(self._means))
        if self._tick - self._means[oldest].latest > _FORGOTTEN:
            self._drop(oldest)

    def _drop(self, kind: Kind) -> None:
        self._means.pop(kind, None)
        self.known.pop(kind, None)

    def took(self, timing: StepTiming, groups: Sequence[int] = ()) -> None:
        """Learn from *timing*, of a step that was answered. For a decode of a pipeline that nothing
        else delayed, *groups* are the rows of each group."""
        way = timing.away_us / 1e6
        self._latency = way if self._latency is None else min(self._latency, way)
        if isinstance(timing.work, Prefill):
            self.chunks[timing.work.scored].add(timing, timing.work.count, self._latency)
        elif groups:
            self._decoded(timing, groups)

    def _decoded(self, timing: StepTiming, groups: Sequence[int]) -> None:
        """A decode counts only if its group has as many rows as an even spread would give it."""
        rows, count = sum(groups), len(groups)
        self.rows_lately = max(rows, self.rows_lately * (1 - _FADES))
        if not (timing.spent and rows // count <= len(timing.uids) <= -(-rows // count)):
            return
        self.add((count, len(timing.uids)), timing.total_us / 1e6)
        stages = [min(spent.compute_us, timing.total_us) for spent in timing.spent]
        stages[0] = min(stages[0] + timing.closing.compute_us, timing.total_us)
        self._stage.add(max(stages) / 1e6)
        self._way.add(timing.away_us / 1e6 / len(stages))

    def answered(self, after: After, seconds: float, ahead: int = 0, *, alike: bool = True) -> bool:
        """A step that read so many guesses *ahead*, and came *after* that, was answered *seconds*
        after the step before it. The steps before and behind it are *alike* if they read as many
        guesses ahead; of those in a row that are not, only each 17th counts. Larger ones delay it,
        and the first of its size may not have been built ahead. True if it is not known any more
        what a token takes after no guess."""
        self._unlike = 0 if alike else self._unlike + 1
        if self._unlike % (_UNLIKE + 1):
            return False
        self.add((after, ahead), seconds)
        plain = after is After.PLAIN and not ahead
        self._guessed = 0 if plain else self._guessed + 1
        if self._guessed < _STALE:
            return False
        self._guessed = 0
        self._drop((After.PLAIN, 0))
        return True

    # ------------------------------------------------------------------ reading

    @property
    def latency(self) -> float:
        """How long the smallest step of this epoch was between ranks."""
        return self._latency or 0.0

    @property
    def travels(self) -> float:
        """How long a decode is between two ranks, in the time of the slowest stage."""
        return self._way.seconds / max(self._stage.seconds, LEAST)

    def rate(self, groups: int, rows: int) -> float:
        """Decodes a second of each of *groups* groups of *rows* rows; 0 if that is not known."""
        near = (
            (max(rows / of, of / rows), seconds * max(1.0, rows / of))
            for (count, of), seconds in self.known.items()
            if count == groups
        )
        apart, seconds = min(near, default=(_NEAR, 0.0))
        return 1 / seconds if apart < _NEAR and seconds else 0.0

    def promised(self, groups: int, rows: int, more: int) -> float:
        """As `rate`, from the times of *groups* groups with few rows, and how the times of *more*
        groups rise with rows; 0 if these are not known."""
        of = {size: seconds for (count, size), seconds in self.known.items() if count == more}
        both = [size for size in of if (groups, size) in self.known and size < max(of)]
        if not both:
            return 0.0
        least, most = max(both), max(of)
        rise = max(0.0, of[most] / max(of[least], LEAST) - 1) / (most - least)
        seconds = self.known[groups, least] * (1 + rise * (rows - least))
        return 1 / max(seconds, LEAST)

    def expected(self, after: After, ahead: int) -> float | None:
        """The seconds of steps that read so many guesses *ahead*. Where they are not known, they
        are taken to rise as between the two next smaller numbers for which they are. If one of
        these is 0, they are taken not to rise: on some machines to read any guess at all takes
        long, and further ones take little. None if they are known for none."""
        known: list[tuple[int, float]] = []
        for fewer in range(ahead, -1, -1):
            seconds = self.known.get((after, fewer))
            if seconds is not None:
                known.append((fewer, seconds))
                if fewer == ahead or len(known) == 2:
                    break
        if not known:
            return None
        (most, seconds), (least, less) = known[0], known[-1]
        if least == 0:
            return seconds
        return seconds + max(0.0, seconds - less) / max(1, most - least) * (ahead - most)

    @property
    def of_guesses(self) -> dict[str, float]:
        """The mean seconds that are known, by name. Of steps that read no guess ahead: `plain`,
        `right` and `wrong`. Of those that read four: `ahead 4`, with none behind; `right 4` and
        `wrong 4`."""
        found = {}
        kinds = [(ahead, after) for after, ahead in self.known if isinstance(after, After)]
        for ahead, after in sorted(kinds, key=lambda kind: (kind[0], kind[1].value)):
            name = "ahead" if ahead and after is After.PLAIN else after.value
            found[f"{name} {ahead}" if ahead else name] = self.known[after, ahead]
        return found


_KEPT: Final = 64
"""Decodes whose times count: the latest."""

ENOUGH: Final = 8
"""Decodes of one row whose times are needed."""


class PipelineToken:
    """What a token of one stream takes in the pipeline of the present epoch, by its latest decodes
    of one row without guesses."""

    __slots__ = ("_decodes", "_news", "last")

    def __init__(self) -> None:
        self._decodes: deque[StepTiming] = deque(maxlen=_KEPT)
        self._news = False
        self.last = -math.inf
        """When a step was last answered, in monotonic seconds."""

    def begin(self) -> None:
        """An epoch begins: the ranks may have other layers now."""
        self._decodes.clear()
        self._news = False

    def took(self, timing: StepTiming, now: float) -> None:
        """A step was answered, as *timing* says."""
        self.last = now
        work = timing.work
        plain = isinstance(work, Decode) and not work.guessed and timing.spent
        if plain and len(timing.uids) == 1 and not timing.parallel:
            self._decodes.append(timing)
            self._news = True

    @property
    def is_news(self) -> bool:
        """Enough is known, and more than when it was last `known`."""
        return self._news and len(self._decodes) >= ENOUGH

    def known(self) -> Sequence[StepTiming]:
        """The decodes that are known."""
        self._news = False
        return self._decodes


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
# little while its kernels are launched. The smallest of the recent chunks and a larger one give
# a, and the largest gives b, of which the fastest count: a machine is at times slower than it can
# be, and a GPU that has not had such a shape yet prepares its kernels. A decode is taken to wait
# as much longer than that as the slowest of the recent chunks took: late ones of a long prompt
# do, for their attention. Of w the least counts, since latency that varies is no chunk's. The
# next chunk is at most twice as large as a recent one, as all of this is a guess.


_RECENT: Final = 8
"""Chunks whose times count."""

_APART: Final = 2
"""So many times larger than another a chunk must be for the two to give a."""


class _Chunk(NamedTuple):
    """A chunk of *tokens*: what the slowest rank takes for it, how long it is between ranks, and
    what a decode behind it waits for the ranks and, for each token, for the links."""

    tokens: int
    stage: float
    way: float
    waits: float
    sent: float


class ChunkTimes:
    """What chunks take, by their tokens. All times are seconds."""

    def __init__(self) -> None:
        self._recent: deque[_Chunk] = deque(maxlen=_RECENT)
        self._slow_links: deque[str] = deque(maxlen=_RECENT)
        self.forget()

    def forget(self) -> None:
        """Nothing is known."""
        self._recent.clear()
        self._alone: float | None = None
        self.begin()

    def begin(self) -> None:
        """An epoch begins, perhaps over other links."""
        self._slow_links.clear()
        self.on_the_way = 0
        """Chunks that are between ranks while each rank has one."""
        self.sent = 0.0
        """What all links take for each token of a chunk."""

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

    def add(self, timing: StepTiming, tokens: int, latency: float) -> None:
        """A chunk of *tokens* took *timing*; the smallest step travels for *latency*."""
        # Other ranks report their times, and none can have taken longer than all of it.
        most = timing.total_us
        times = [min(most, each.compute_us + each.seal_us) / 1e6 for each in timing.spent] or [0.0]
        times[0] += (timing.closing.compute_us + timing.closing.seal_us) / 1e6
        slowest, waits, way = max(times), max(times), timing.away_us / 1e6
        if len(times) > 1 and not timing.parallel:
            waits = sum(times) + (len(times) - 1) * (slowest - times[0]) + times[0]
            self.on_the_way = min(len(times), round(way / max(slowest, LEAST)))
            sent = (way - latency) / (len(times) - 1)
            text = (
                "long prompts are read as fast as the links between ranks are: a chunk of "
                f"{tokens} tokens is sent in {1e3 * sent:.0f} ms by each rank, and "
                f"computed in {1e3 * slowest:.0f} ms by the slowest"
            )
            self._slow_links.append(text if sent > slowest else "")
        sent = (way - latency) / tokens
        self._recent.append(_Chunk(tokens, max(LEAST, slowest), way, max(LEAST, waits), sent))
        small, fast = self._fastest(min)
        larger = [of for of in self._recent if of.tokens >= _APART * small and of.stage > fast]
        if larger:
            each = min((of.stage - fast) / (of.tokens - small) for of in larger)
            self._alone = max(0.0, fast - each * small)
            short = min(of.way for of in self._recent if of.tokens == small)
            self.sent = max(0.0, min((of.way - short) / (of.tokens - small) for of in larger))
