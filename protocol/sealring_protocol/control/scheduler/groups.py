"""Chooses the number of groups in flight from the times that their decodes take.

A group's decode occupies one rank at a time. So as many groups as stages keep every stage busy, and
that is the number to begin with. While decodes travel further groups may use the ranks. But more
groups are smaller ones, and each decode has costs that do not depend on its rows. And decodes of
several groups wait for each other where ranks share processors, or where one does most of the work.

So the time of a decode is averaged, by the number of groups and the rows of its own. If it takes t
while R rows are in groups, the ring gives R / t tokens a second with so many groups. Of the numbers
that are known the fastest is taken; the number to begin with is left only for one that is more than
a twentieth faster. While there are no more rows than stages, each has a group of its own, so that
it may decode on guesses.

A group's time counts only if it has as many rows as if all were spread evenly. So while a row of
another length has a group of its own, little is learnt.

Rows stay in their group until they end, so to try a number that is not known may cost much. One
less than the best is tried if it promises to be faster: its time with few rows is known from when
there were few, and is taken to rise with further rows as that of the best number does. And unless
fewer than the number to begin with are best, more are tried, the most first, as far as decodes
travel for so long that it may pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.scheduler.rows import LiveRow
from sealring_protocol.control.scheduler.times import Times

# ---------------------------------------------------------------------- group choice
# Which group a row joins.
#
# Rows are spread evenly. But a batched cache is a rectangle, in which every row costs as much as
# the longest, so rows of similar length are put together. A row that fits none of the groups gets
# one more: to read the weights once more takes less time than to read so much padding with each
# step, and to make the rectangle would have the other rows wait.


_WASTE: Final = 1024
"""Tokens of padding in a group's cache that count as much as one more row."""


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


# ---------------------------------------------------------------------- group tuner


_WEIGHT: Final = 1 / 16
"""The newest decode's weight in the running means."""

_NEAR: Final = 1.5
"""A time that is not known is taken from that with less than so many times the rows, and more than
so many times fewer."""

_GAIN: Final = 1.05
"""How much faster than the number to begin with another must be, and how much faster than the best
one less must promise to be."""

_FADES: Final = 1 / 512
"""By which share the most rows at once, of late, falls with each decode of fewer."""

_LEAST: Final = 1e-9
"""Seconds that anything takes at least."""


class GroupTuner:
    """The times of one pipeline."""

    def __init__(self) -> None:
        self._times: Times[tuple[int, int]] = Times()  # by groups, and rows of each
        self._stage = self._way = 0.0  # seconds of the slowest stage, and between two
        self._seen = 0
        self._lately = 0.0  # the most rows at once

    def took(self, groups: Sequence[int], timing: StepTiming) -> None:
        """*timing* is that of a decode of a pipeline while no prompt was read. There are *groups*
        of so many rows. It counts only if its own group has as many as an even spread would give
        it."""
        rows, count = sum(groups), len(groups)
        self._lately = max(rows, self._lately * (1 - _FADES))
        if not timing.spent or not count:
            return
        if not rows // count <= len(timing.uids) <= -(-rows // count):
            return
        self._times.add((count, len(timing.uids)), timing.total_us / 1e6)
        stages = [min(spent.compute_us, timing.total_us) for spent in timing.spent]
        stages[0] = min(stages[0] + timing.closing.compute_us, timing.total_us)
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)
        self._stage += weight * (max(stages) / 1e6 - self._stage)
        self._way += weight * (timing.away_us / 1e6 / len(stages) - self._way)

    def groups(self, rows: int, stages: int, most: int, each: int) -> int:
        """How many groups, *most* at most, so many *rows* are to be spread over in a pipeline of so
        many *stages*. A group has at most *each* rows."""
        rows = min(max(rows, round(self._lately)), most * each)
        first = min(stages, most)
        if rows <= stages:
            return first
        known = self._times.known
        sizes = {n: min(each, -(-rows // n)) for n in range(1, most + 1)}
        paces = {n: min(rows, n * of) * _rate(known, n, of) for n, of in sizes.items()}
        least = min(first, -(-rows // each))
        if not paces[first]:
            return first
        best, fastest = first, _GAIN * paces[first]
        for n in range(least, most + 1):
            if paces[n] > fastest:
                best, fastest = n, paces[n]
        fewer = best - 1
        if fewer >= least and not paces[fewer]:
            held = min(rows, fewer * sizes[fewer])
            if held * _estimate(known, fewer, sizes[fewer], best) > _GAIN * paces[best]:
                return fewer
        fits = min(most, stages + round(stages * self._way / max(self._stage, _LEAST)))
        unknown = (n for n in range(fits, best, -1) if not paces[n])
        return next(unknown, best) if best >= stages else best


def _rate(known: Mapping[tuple[int, int], float], groups: int, each: int) -> float:
    """Decodes a second of each of *groups* groups of *each* rows; 0 if that is not known."""
    near = (
        (max(each / of, of / each), seconds * max(1.0, each / of))
        for (count, of), seconds in known.items()
        if count == groups
    )
    apart, seconds = min(near, default=(_NEAR, 0.0))
    return 1 / seconds if apart < _NEAR and seconds else 0.0


def _estimate(known: Mapping[tuple[int, int], float], fewer: int, each: int, groups: int) -> float:
    """Decodes a second of each of *fewer* groups of *each* rows, from their times with few rows,
    and how the times of *groups* rise with rows; 0 if these are not known."""
    of = {size: seconds for (count, size), seconds in known.items() if count == groups}
    both = [size for size in of if (fewer, size) in known and size < max(of)]
    if not both:
        return 0.0
    least, most = max(both), max(of)
    rise = max(0.0, of[most] / max(of[least], _LEAST) - 1) / (most - least)
    seconds = known[fewer, least] * (1 + rise * (each - least))
    return 1 / max(seconds, _LEAST)
