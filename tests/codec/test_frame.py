"""Frames: however the stream is cut, the same frames; whatever is wrong, refused at the header."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError

LIMITS = {FrameKind.HANDSHAKE: 64, FrameKind.SEALED: 1000}


def frame(kind, body):
    return frame_header(kind, len(body)) + body


def drain(decoder):
    frames = []
    while (found := decoder.next_frame()) is not None:
        frames.append((found.kind, found.header, bytes(found.body)))
    return frames


BODIES = [
    (FrameKind.HANDSHAKE, b""),
    (FrameKind.HANDSHAKE, b"x" * 64),
    (FrameKind.SEALED, b"abc"),
    (FrameKind.SEALED, bytes(1000)),
]
STREAM = b"".join(frame(*body) for body in BODIES)
EXPECTED = [(kind, frame_header(kind, len(body)), body) for kind, body in BODIES]


def test_whole():
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(STREAM)
    assert drain(decoder) == EXPECTED
    assert decoder.buffered == 0


def test_byte_by_byte():
    decoder = FrameDecoder(LIMITS)
    frames = []
    for at in range(len(STREAM)):
        decoder.receive_data(STREAM[at : at + 1])
        frames += drain(decoder)
    assert frames == EXPECTED


@given(st.lists(st.integers(0, len(STREAM))))
def test_cut_anywhere(cuts):
    decoder = FrameDecoder(LIMITS)
    frames = []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        decoder.receive_data(STREAM[start:end])
        frames += drain(decoder)
    assert frames == EXPECTED


def test_pieces_may_pile_up_before_frames_are_taken():
    decoder = FrameDecoder(LIMITS)
    for at in range(0, len(STREAM), 100):
        decoder.receive_data(STREAM[at : at + 100])
    assert drain(decoder) == EXPECTED


@pytest.mark.parametrize(
    ("header", "error", "match"),
    [
        (b"\x02\x01\0\0\0\0\0\0", RemoteProtocolError, "version 2"),
        (b"\x01\x07\0\0\0\0\0\0", RemoteProtocolError, "kind 7"),
        (b"\x01\x03\0\0\0\0\0\0", RemoteProtocolError, "kind 3"),
        (b"\x01\x01\0\x01\0\0\0\0", RemoteProtocolError, "reserved"),
        (b"\x01\x01\0\0\0\0\0\x41", LimitExceeded, "65 bytes"),
        (b"\x01\x02\0\0\xff\xff\xff\xff", LimitExceeded, "4294967295"),
    ],
)
def test_a_bad_header_is_refused_before_a_byte_of_body(header, error, match):
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(header[:7])
    assert decoder.next_frame() is None
    decoder.receive_data(header[7:] + b"body")
    with pytest.raises(error, match=match):
        decoder.next_frame()
    assert decoder.buffered <= 8
    with pytest.raises(error, match=match):
        decoder.next_frame()


def test_limits_may_tighten_over_a_frame_under_way():
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(frame(FrameKind.SEALED, bytes(500))[:100])
    assert decoder.next_frame() is None
    decoder.set_limits({FrameKind.SEALED: 500})
    assert decoder.next_frame() is None
    decoder.set_limits({FrameKind.SEALED: 499})
    with pytest.raises(LimitExceeded):
        decoder.next_frame()


def test_limits_apply_to_the_next_frame_of_the_same_piece():
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(STREAM)
    assert decoder.next_frame() is not None
    decoder.set_limits({})
    with pytest.raises(RemoteProtocolError, match="not taken"):
        decoder.next_frame()


def test_a_body_too_long_to_frame_is_the_callers_fault():
    with pytest.raises(LocalProtocolError):
        frame_header(FrameKind.SEALED, 2**32)


def test_what_is_held_is_counted_at_every_moment():
    decoder = FrameDecoder(LIMITS)
    assert decoder.buffered == 0
    whole = frame(FrameKind.SEALED, b"abc")
    decoder.receive_data(whole + whole[:6])
    assert decoder.buffered == len(whole) + 6
    assert decoder.next_frame() is not None
    assert decoder.buffered == 6
    decoder.receive_data(whole[6:9])
    assert decoder.buffered == 9
    assert decoder.next_frame() is None
    assert decoder.buffered == 9
    decoder.receive_data(whole[9:])
    assert decoder.next_frame() is not None
    assert decoder.buffered == 0
