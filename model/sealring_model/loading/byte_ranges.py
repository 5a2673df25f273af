"""A set of byte ranges of one file: which bytes are here, and which are still to come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

Range = tuple[int, int]
"""The first byte, and the one after the last."""


class ByteRanges:
    """Byte ranges that neither overlap nor touch, in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Have the bytes *begin* to *end* (excluded) in the set."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: int, end: int) -> None:
        """Take the bytes *begin* to *end* (excluded) out of the set."""
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        kept: list[Range] = []
        if first < last:
            kept = [(self._begins[first], begin), (end, self._ends[last - 1])]
            kept = [(start, stop) for start, stop in kept if start < stop]
            self._begins[first:last] = [start for start, _ in kept]
            self._ends[first:last] = [stop for _, stop in kept]

    def gaps(self, begin: int, end: int) -> list[Range]:
        """The parts of *begin* to *end* (excluded) that are not in the set."""
        found: list[Range] = []
        for index in range(bisect_right(self._ends, begin), len(self._begins)):
            if self._begins[index] >= end:
                break
            if begin < self._begins[index]:
                found.append((begin, self._begins[index]))
            begin = self._ends[index]
        return [*found, (begin, end)] if begin < end else found

    def all(self) -> list[Range]:
        """Every range, in order."""
        return list(zip(self._begins, self._ends, strict=True))

    def covers(self, begin: int, end: int) -> bool:
        """Whether all of *begin* to *end* (excluded) is in the set."""
        return not self.gaps(begin, end)

    def count(self, begin: int, end: int) -> int:
        """Bytes of *begin* to *end* (excluded) that are in the set."""
        return end - begin - sum(stop - start for start, stop in self.gaps(begin, end))
