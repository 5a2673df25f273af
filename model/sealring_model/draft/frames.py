"""The frames between a head and its draft model's process.

A frame is a header (kind, row, position, number of token ids, number of further bytes), the ids as
native u32, and the bytes, which are a ROW. The head reports rows that begin, their tokens, and rows
that are over; the process sends guesses.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.messages import Row
from sealring_protocol.errors import RemoteProtocolError

_HEAD: Final = struct.Struct(">BQIII")
_ID: Final = "I"

MAX_FRAME: Final = 64 << 20
"""Bytes of a frame for the process: the ids of the longest prompt, and a row's bias."""

MAX_GUESSES: Final = 4096
"""Bytes of a frame for the head: some guesses."""


class DraftFrameKind(enum.IntEnum):
    """What a frame says. READY: the model is loaded. OPEN: a row begins, with its tokens so far
    and how it is sampled. TOKENS: a row's tokens from a position on. CLOSE: a row is over. GUESS:
    what a row's tokens from a position on are likely to be."""

    READY = 1
    OPEN = 2
    TOKENS = 3
    CLOSE = 4
    GUESS = 5


@attrs.frozen
class DraftFrame:
    """One frame, of row *uid*; *row* is how it is sampled."""

    kind: DraftFrameKind
    uid: int = 0
    position: int = 0
    ids: Sequence[int] = ()
    row: Row | None = None


def pack(frame: DraftFrame) -> bytes:
    """The bytes of *frame*."""
    rest = b""
    if frame.row is not None:
        # A draft is held to nothing: a guess that its row may not have is a wrong one.
        free = attrs.evolve(frame.row, least=0, ends=(), bad=(), grammar=b"")
        rest = b"".join(encode(free))
    ids = array(_ID, frame.ids).tobytes()
    head = _HEAD.pack(frame.kind, frame.uid, frame.position, len(frame.ids), len(rest))
    return head + ids + rest


class FrameReader:
    """Takes bytes as they come, and gives the frames in them. For the head they are without *rows*,
    and short: the process may say anything."""

    def __init__(self, *, rows: bool = True) -> None:
        self._rows: Final = rows
        self._held = bytearray()

    def read(self, data: bytes) -> Iterator[DraftFrame]:
        """The frames that *data* completes. Raises `ValueError` for what is none."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, uid, position, count, more = _HEAD.unpack_from(self._held)
            start = _HEAD.size
            middle = start + count * array(_ID).itemsize
            end = middle + more
            if end > (MAX_FRAME if self._rows else MAX_GUESSES):
                raise ValueError(f"a frame of {end} bytes")
            if more and not self._rows:
                raise ValueError("a frame with a row")
            if len(self._held) < end:
                return
            ids = array(_ID, bytes(self._held[start:middle]))
            row = _row(bytes(self._held[middle:end])) if more else None
            del self._held[:end]
            yield DraftFrame(DraftFrameKind(kind), uid, position, tuple(ids), row)


def _row(data: bytes) -> Row:
    try:
        row = decode_local(data)
    except RemoteProtocolError as error:
        raise ValueError(f"no row: {error}") from None
    if not isinstance(row, Row):
        raise ValueError("another message than a row")  # noqa: TRY004 - as for other bytes
    return row
