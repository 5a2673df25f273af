"""Reassembles the byte streams of TCP connections from segments as they were captured.

Segments may be repeated, overlap, or come late; each byte is given once and in its place. A byte
that was not captured is a gap. After it nothing of that direction can be read, since no mark shows
where a frame begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
from sealring_tools.capture.packets import Segment

_WRAP = 1 << 32


@attrs.frozen
class Piece:
    """*data* that *source* said next to *destination*, on their connection *number*."""

    time: float
    number: int
    source: str
    destination: str
    data: bytes = attrs.field(repr=False)


@attrs.define
class _Direction:
    number: int
    expected: int | None = None
    waiting: dict[int, bytes] = attrs.Factory(dict)

    def take(self, sequence: int, data: bytes) -> Iterator[bytes]:
        """What is in order now that *data* has come."""
        if data:
            self.waiting[sequence] = max(self.waiting.get(sequence, b""), data, key=len)
        found = True
        while found:
            found = False
            for start, held in list(self.waiting.items()):
                late = (self.expected - start) % _WRAP if self.expected is not None else 0
                if late >= _WRAP // 2:
                    continue  # it lies ahead
                del self.waiting[start]
                if late < len(held):
                    self.expected = (start + len(held)) % _WRAP
                    found = True
                    yield held[late:]


@attrs.define
class Streams:
    """Reassembles streams. `missing` tells, at the end, which have gaps."""

    _directions: dict[tuple[str, str], _Direction] = attrs.Factory(dict)
    _connections: int = 0

    def follow(self, segments: Iterable[Segment]) -> Iterator[Piece]:
        """The pieces of all streams, each once all bytes before it have come."""
        for segment in segments:
            direction = self._direction(segment)
            if segment.syn:
                direction.expected = (segment.sequence + 1) % _WRAP
                continue
            for data in direction.take(segment.sequence, segment.data):
                yield Piece(
                    segment.time, direction.number, segment.source, segment.destination, data
                )

    def missing(self) -> list[tuple[str, str]]:
        """The directions that have bytes after a gap."""
        return [ends for ends, direction in self._directions.items() if direction.waiting]

    def _direction(self, segment: Segment) -> _Direction:
        ends = (segment.source, segment.destination)
        back = self._directions.get(ends[::-1])
        known = self._directions.get(ends)
        fresh = segment.syn and (known is None or known.expected is not None)
        if known is None or fresh:
            answers = back is not None and known is None
            if back is not None and answers:
                number = back.number
            else:
                self._connections += 1
                number = self._connections
                self._directions.pop(ends[::-1], None)
            known = self._directions[ends] = _Direction(number)
        return known
