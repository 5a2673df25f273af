"""The frame decoder: whole, split, and behind, with limits that change on the way.

Input: which limits, how to cut, which limits at the end (a frame may be under way), the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealring_protocol.codec.frame import FrameDecoder
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import FRAME_HEADER

from fuzz.expect import raised
from fuzz.source import Source
from fuzz.vectors import field

LIMITS: Final[tuple[tuple[Mapping[int, int], ...], ...]] = (
    ({1: 64, 2: 1000},),
    ({1: 1261}, {}, {1: 300}, {2: 64}, {2: 1000}),
    ({1: 64}, {1: 64, 2: 16}, {2: 1000}),
    ({1: 4},),
    ({3: 500},),
)
"""What the decoder may take after 0, 1, 2, ... frames; the last for ever."""

Found = tuple[list[tuple[int, bytes]], str]


def seeds() -> Iterator[bytes]:
    """Every stream of the vectors, under the first two limits."""
    for stream in field("frames", "input", "stream"):
        for last in range(len(LIMITS)):
            yield bytes([0, 0, last]) + stream
            yield bytes([1, 3, last]) + stream[:-1]
    for other in (b"HTTP/1.1 200 OK", b"GET / HTTP/1.1", b"\x16\x03\x01\0\xa5\1\0\0"):
        yield bytes(3) + other


def check(data: bytes) -> None:
    """A whole stream, its pieces, and pieces that all come before the first frame is taken give the
    same frames and the same end, within the limits."""
    source = Source(data)
    limits, size, last = source.pick(LIMITS), 1 + source.below(40), source.pick(LIMITS)[0]
    stream = source.rest()
    whole = decode(limits, [stream], last)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert whole == decode(limits, pieces, last)
    assert whole == decode(limits, pieces, last, behind=True)


def decode(
    limits: tuple[Mapping[int, int], ...],
    pieces: list[bytes],
    last: Mapping[int, int],
    *,
    behind: bool = False,
) -> Found:
    """The frames of *pieces*, and how it ended, under the limits *last* at last."""
    decoder = FrameDecoder(limits[0])
    frames: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            decoder.receive_data(piece)
            if behind and piece is not pieces[-1]:
                continue
            while (frame := decoder.next_frame()) is not None:
                taken = limits[min(len(frames), len(limits) - 1)]
                assert len(frame.body) <= taken[frame.kind]
                assert frame.header[1] == frame.kind
                frames.append((frame.kind, bytes(frame.body)))
                decoder.set_limits(limits[min(len(frames), len(limits) - 1)])
            longest = max(limits[min(len(frames), len(limits) - 1)].values(), default=0)
            assert decoder.buffered < FRAME_HEADER + longest or decoder.buffered < FRAME_HEADER
        decoder.set_limits(last)
        assert decoder.next_frame() is None
        assert decoder.awaited <= max(last.values(), default=0)
    except RemoteProtocolError as error:
        stays_dead(decoder, error)
        return frames, type(error).__name__
    return frames, "more"


def stays_dead(decoder: FrameDecoder, error: RemoteProtocolError) -> None:
    """The same error, whatever comes, and nothing kept."""
    for _ in range(2):
        decoder.receive_data(bytes(100))
        assert raised(decoder.next_frame) is error
    assert decoder.buffered == 0
