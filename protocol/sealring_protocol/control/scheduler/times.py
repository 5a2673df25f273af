"""Mean times of intervals of several kinds, of which the newest count most."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Kind = TypeVar("Kind", bound=Hashable)

_STEADY: Final = 16
"""Intervals over which a time is averaged."""

_OUTLIER: Final = 4.0
"""Intervals are cut off at so many times the average: the machine did something else."""

_TRIES: Final = 3
"""Intervals of a kind after which their time is known: that of the fastest. A device prepares for a
new shape, a GPU for a second or more; so the very first does not count."""

_FORGOTTEN: Final = 2048
"""Intervals after which a time is not known any more that was not measured meanwhile."""


class _Mean:
    """The mean *seconds* of the intervals of one kind; up to `_TRIES` the fastest. The *count* of
    those after the first is counted up to `_STEADY`. At the tick *latest* the newest came."""

    def __init__(self) -> None:
        self.seconds, self.count, self.latest = 0.0, -1, 0

    def add(self, seconds: float, tick: int) -> None:
        self.count, self.latest = min(self.count + 1, _STEADY), tick
        if self.count <= 1:
            self.seconds = seconds
        elif self.count <= _TRIES:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += (min(seconds, _OUTLIER * self.seconds) - self.seconds) / self.count


class Times(Generic[Kind]):
    """The mean times of intervals, by their kind."""

    def __init__(self) -> None:
        self._means: dict[Kind, _Mean] = {}  # the kind first that was not measured for longest
        self._tick = 0  # intervals so far
        self.known: dict[Kind, float] = {}
        """The mean seconds that are known, by kind. To be read only."""

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
            self.forget(oldest)

    def seconds(self, kind: Kind) -> float | None:
        """The mean seconds of intervals of *kind*; None if they are not known."""
        return self.known.get(kind)

    def forget(self, kind: Kind) -> None:
        """The seconds of *kind* are not known any more."""
        self._means.pop(kind, None)
        self.known.pop(kind, None)
