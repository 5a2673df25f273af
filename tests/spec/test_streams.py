"""However a stream is cut, the same must come of it, and whatever is cut off is missed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from sealring_protocol.errors import (
    AuthenticationFailed,
    RemoteProtocolError,
    SealringError,
)

from spec.driver import Cut, run_end
from spec.vectors.plain import header
from tests.spec.files import every, of_kinds
from tests.spec.kinds import KINDS, Result, raw, run, run_frames
from tests.spec.test_vectors import check

ENDS = [vector["id"] for vector in of_kinds("initiator", "responder")]
FRAMES = [vector["id"] for vector in of_kinds("frames")]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def in_pieces(seed: int) -> Cut:
    """Cuts at random places, most of them near the start of a frame or its end."""
    choose = random.Random(seed)

    def cut(data: bytes) -> list[bytes]:
        near = [at for at in (1, 7, 8, 9, 10, len(data) - 1) if 0 < at < len(data)]
        far = [choose.randrange(len(data)) for _ in range(3)] if data else []
        edges = sorted({0, len(data), *choose.sample(near, len(near) // 2), *far})
        return [data[a:b] for a, b in itertools.pairwise(edges)]

    return cut


CUTS = {"bytewise": bytewise, "pieces-1": in_pieces(1), "pieces-2": in_pieces(2)}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ENDS)
def test_a_link_however_it_is_cut(name: str, cut: str) -> None:
    vector = every()[name]
    end = run_end(vector["input"], CUTS[cut])
    check(vector, Result(end.output(), end.released, end.error))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", FRAMES)
def test_frames_however_they_are_cut(name: str, cut: str) -> None:
    vector, result = every()[name], Result()
    try:
        run_frames(vector["input"], list(CUTS[cut](raw(vector["input"]["stream"]))), result)
    except SealringError as error:
        result.error = error
    check(vector, result)


@pytest.mark.parametrize("name", FRAMES)
def test_a_stream_of_frames_that_is_cut_off(name: str) -> None:
    """A beginning of a stream gives a beginning of its frames, and no failure of its own."""
    vector = every()[name]
    stream, frames = raw(vector["input"]["stream"]), vector.get("output", {"frames": []})["frames"]
    for size in range(len(stream)):
        result = Result()
        try:
            run_frames(vector["input"], [stream[:size]], result)
        except RemoteProtocolError:
            assert vector["result"] != "valid"
        assert result.output["frames"] == frames[: len(result.output["frames"])]


# ------------------------------------------------------------------ cut off, grown


def refuses(kind: str, given: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        KINDS[kind](given, Result())


@pytest.mark.parametrize(
    "name",
    [v["id"] for v in of_kinds("message", "local-message") if v["result"] == "valid"],
)
def test_a_message_cut_off_or_grown(name: str) -> None:
    vector = every()[name]
    data = raw(vector["input"]["plaintext"])
    for size in range(len(data)):
        refuses(vector["kind"], {"plaintext": data[:size].hex()})
    refuses(vector["kind"], {"plaintext": data.hex() + "00"})


@pytest.mark.parametrize(
    ("name", "field"),
    [(v["id"], v["kind"]) for v in of_kinds("roster", "evidence") if v["result"] == "valid"],
)
def test_something_signed_cut_off_or_grown(name: str, field: str) -> None:
    given = every()[name]["input"]
    data = raw(given[field])
    step = 1 + len(data) // 700
    for size in range(0, len(data), step):
        refuses(field, {**given, field: data[:size].hex()})
    refuses(field, {**given, field: data.hex() + "00"})


def test_a_sealed_frame_cut_off_or_grown() -> None:
    given = every()["seal/aes-1"]["input"]
    body = raw(given["frames"][0])[8:]
    for wrong in [*(body[:size] for size in range(len(body))), body + b"\0"]:
        frame = header(2, len(wrong)) + wrong
        result = run({"kind": "sealed", "input": {**given, "frames": [frame.hex()]}})
        assert type(result.error) is AuthenticationFailed


@pytest.mark.parametrize(
    ("name", "at", "step"),
    [("initiator/aes", 0, 37), ("responder/aes", 0, 37), ("responder/aes", 1, 3)],
)
def test_a_handshake_frame_cut_off_and_framed_anew(name: str, at: int, step: int) -> None:
    """Of each length, with a header that says that length: refused without a byte."""
    given = every()[name]["input"]
    body = raw(given["deliveries"][at]["data"])[8:]
    before = given["deliveries"][:at]
    for size in [*range(0, len(body), step), len(body) - 1]:
        data = header(1, size) + body[:size]
        end = run_end({**given, "deliveries": [*before, {"at": 0.02, "data": data.hex()}]})
        assert isinstance(end.error, RemoteProtocolError)
        assert end.output()["told"] is None
        assert len(end.output()["sent"]) == (1 if at or "peer" in given else 0)


@pytest.mark.parametrize("name", ["initiator/aes", "responder/aes"])
def test_a_link_whose_stream_ends_early(name: str) -> None:
    """After any byte before CLOSE, the end of the stream is a loss, and nothing is said of it."""
    given = every()[name]["input"]
    data = [raw(delivery["data"]) for delivery in given["deliveries"]]
    for number, piece in enumerate(data):
        for size in (0, 1, 8, 9, len(piece) // 2, len(piece) - 1):
            cut = [{"at": 0.01, "data": each.hex()} for each in [*data[:number], piece[:size]]]
            end = run_end({**given, "deliveries": cut, "end": True})
            assert "without CLOSE" in str(end.error)
            assert end.output()["told"] is None
