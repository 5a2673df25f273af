"""What a draft model's process says to its head: guesses, or a `ValueError` that ends it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_model.draft.frames import DraftFrame, DraftFrameKind, FrameReader, pack
from sealring_protocol.codec.messages import Row

HEAD = struct.Struct(">BQIII")
GUESS = pack(DraftFrame(DraftFrameKind.GUESS, 7, 3, (1, 2, 3)))


def test_frames_come_as_they_were_packed() -> None:
    row = Row(5, seed=1, temperature=0.5, bias=((3, 1.5),), history=(1, 2), generated=1)
    opened = DraftFrame(DraftFrameKind.OPEN, 5, 0, (1, 2), row)
    reader = FrameReader()
    data = pack(opened) + pack(DraftFrame(DraftFrameKind.CLOSE, 5))
    assert [f for at in range(len(data)) for f in reader.read(data[at : at + 1])] == [
        opened,
        DraftFrame(DraftFrameKind.CLOSE, 5),
    ]


def row(text: bytes) -> bytes:
    return HEAD.pack(DraftFrameKind.GUESS, 1, 0, 0, len(text)) + text


LIES = {
    "kind": HEAD.pack(9, 0, 0, 0, 0),
    "many-ids": HEAD.pack(DraftFrameKind.GUESS, 1, 0, 0xFFFFFFFF, 0),
    "more-ids-than-anyone-guesses": pack(DraftFrame(DraftFrameKind.GUESS, 1, 0, range(2000))),
    "long": HEAD.pack(DraftFrameKind.GUESS, 1, 0, 0, 0xFFFFFFFF),
    "deep": row(b"[" * 3000),
    "no-row": row(b"[]"),
    "infinite-bias": row(b'{"bias": [[1, 1e999]], "history": []}'),
    "infinite-token": row(b'{"bias": [[1e999, 1]], "history": []}'),
    "logprobs": row(b'{"bias": [], "history": [], "uid": 1, "logprobs": 77}'),
    "row": pack(DraftFrame(DraftFrameKind.GUESS, 1, 0, (), Row(1))),
}


@pytest.mark.parametrize("name", LIES)
def test_a_head_refuses_what_is_no_guess(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        list(FrameReader(rows=False).read(GUESS + LIES[name]))


@given(st.lists(st.binary(max_size=40)))
def test_whatever_a_head_hears_is_guesses_or_no_guess(parts: list[bytes]) -> None:
    reader = FrameReader(rows=False)
    try:
        for part in parts:
            assert all(frame.row is None for frame in reader.read(part))
    except ValueError:
        pass
