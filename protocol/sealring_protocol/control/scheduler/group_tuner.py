"""Chooses the number of groups in flight from the times that their decodes take.

A group's decode occupies one rank at a time. So as many groups as stages keep every stage busy, and
that is the number to begin with. While decodes travel further groups may use the ranks. But more
groups are smaller ones, and each decode has costs that do not depend on its rows. And decodes of
several groups wait for each other where ranks share processors, or where one does most of the work.

So the time of a decode is averaged, by the number of groups and the rows of its own. If it takes t
with r rows of R in all, the ring gives R / t tokens a second with so many groups. Of the numbers
that are known the fastest is taken.

Rows stay in their group until they end, so to try a number that is not known may cost much. More
than the best number are tried as far as decodes travel for so long that it may pay. One less is
tried if it promises to be faster: its time with few rows is known from when there were few, and is
taken to rise with further rows as that of the best number does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.scheduler.times import Times

_WEIGHT: Final = 1 / 16
"""The newest decode's weight in the running means."""

_NEAR: Final = 1.5
"""A time that is not known is taken from that with so many times the rows, or so many times
fewer."""

_GAIN: Final = 1.05
"""How much faster than the number to begin with another must be."""

_FADES: Final = 1 / 512
"""By which share the number of rows at once that is usual falls with each decode of fewer."""

_LEAST: Final = 1e-9
"""Seconds that anything takes at least."""


class GroupTuner:
    """The times of one pipeline."""

    def __init__(self) -> None:
        self._times: Times[tuple[int, int]] = Times()  # by groups, and rows of each
        self._stage = self._way = 0.0  # seconds of the slowest stage, and between two
        self._seen = 0
        self._usual = 0.0  # rows at once, lately

    def took(self, groups: Sequence[int], timing: StepTiming) -> None:
        """*timing* is that of a decode while no prompt was read. There are *groups* of so many
        rows. They count only if they are even."""
        stages = [spent.compute_us for spent in timing.spent]
        rows, count = sum(groups), len(groups)
        self._usual = max(rows, self._usual * (1 - _FADES))
        if not stages or not count or not rows // count <= len(timing.uids) <= -(-rows // count):
            return
        self._times.add((count, len(timing.uids)), timing.total_us / 1e6)
        stages[0] += timing.closing.compute_us
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)
        self._stage += weight * (max(stages) / 1e6 - self._stage)
        self._way += weight * (timing.away_us / 1e6 / len(stages) - self._way)

    def groups(self, rows: int, stages: int, most: int, each: int) -> int:
        """How many groups, *most* at most, so many *rows* are to be spread over in a pipeline of so
        many *stages*. A group has at most *each* rows."""
        rows = min(max(rows, round(self._usual)), most * each)
        usual = min(stages, most)
        if rows <= stages:
            return usual
        least = min(usual, -(-rows // each))
        paces = {n: self._pace(n, rows) for n in range(least, most + 1)}
        if not paces[usual]:
            return usual
        best, fastest = usual, _GAIN * paces[usual]
        for n, pace in paces.items():
            if pace > fastest:
                best, fastest = n, pace
        fewer = best - 1
        if fewer >= least and not paces[fewer]:
            pace = self._estimate(fewer, best, rows)
            if pace > _GAIN * paces[best]:
                return fewer
        fits = min(most, stages + round(stages * self._way / max(self._stage, _LEAST)))
        unknown = (n for n in range(fits, best, -1) if not paces[n])
        return next(unknown, best) if best >= stages else best

    def _pace(self, groups: int, rows: int) -> float:
        """Tokens a second of so many *rows* in so many *groups*; 0 if that is not known."""
        each = -(-rows // groups)
        near = (
            (max(each / of, of / each), seconds * max(1.0, each / of))
            for (count, of), seconds in self._times.known.items()
            if count == groups
        )
        apart, seconds = min(near, default=(_NEAR, 0.0))
        return rows / seconds if apart < _NEAR and seconds else 0.0

    def _estimate(self, fewer: int, groups: int, rows: int) -> float:
        """The pace of *rows* in *fewer* groups, from their times with few rows, and how the times
        of *groups* rise with rows; 0 if these are not known."""
        known = self._times.known
        of = {each: seconds for (count, each), seconds in known.items() if count == groups}
        both = [each for each in of if (fewer, each) in known and each < max(of)]
        if not both:
            return 0.0
        least, most = max(both), max(of)
        rise = max(0.0, of[most] / max(of[least], _LEAST) - 1) / (most - least)
        seconds = known[fewer, least] * (1 + rise * (-(-rows // fewer) - least))
        return rows / max(seconds, _LEAST)
