"""Cuts what is still to come into pieces: the ranges that are asked for, one request each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
from sealring_model.loading.byte_ranges import Range

PIECE: Final = 32 * 1024 * 1024
"""Bytes of a piece, at most."""

KEEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a piece after which they are on the disk and kept, at most. So much of each piece under
way is fetched again after a kill."""

LOST: Final = 0.01
"""Share of what is fetched that a kill may cost."""

SLACK: Final = 0.01
"""Share of a range that may be bytes of other tensors between the wanted ones: a further request
would cost a round trip."""


@attrs.define
class Piece:
    """Bytes *begin* to *end* (excluded) of *file*; those before *at* have come."""

    file: str
    begin: int
    end: int
    at: int = attrs.Factory(lambda self: self.begin, takes_self=True)


def keep_bytes_of(size: int, most: int, at_once: int = 1) -> int:
    """Bytes after which what has come is kept, of *size* bytes that come in *at_once* pieces at a
    time: *most*, or less so that a kill costs no more than its share."""
    return min(most, int(size * LOST) // at_once)


def cut(gaps: Mapping[str, Sequence[Range]]) -> list[Piece]:
    """The pieces of *gaps*, the ranges to come of each file, in order."""
    return [
        Piece(file, start, min(start + PIECE, end))
        for file, ranges in gaps.items()
        for begin, end in _joined(ranges)
        for start in range(begin, end, PIECE)
    ]


def _joined(ranges: Sequence[Range]) -> Iterator[Range]:
    """*ranges* of one file, with those joined that are close."""
    if not ranges:
        return
    begin, end = ranges[0]
    wanted = end - begin
    for start, stop in ranges[1:]:
        whole = stop - begin
        if whole - (wanted + stop - start) <= SLACK * whole:
            wanted += stop - start
        else:
            yield begin, end
            begin, wanted = start, stop - start
        end = stop
    yield begin, end
