"""Frames: what a decoder makes of a stream, and what it refuses at the header (section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spec.vectors.model import LIMIT, MALFORMED, Json, Vector, refused, valid
from spec.vectors.plain import frame

GIVEN: Mapping[str, bytes] = {}
_BOTH = {1: 64, 2: 1000}


def _input(stream: bytes, limits: Mapping[int, int]) -> Json:
    return {"limits": {str(kind): size for kind, size in limits.items()}, "stream": stream.hex()}


def _good(
    name: str, about: str, frames: list[tuple[int, bytes]], limits: Mapping[int, int] = _BOTH
) -> Vector:
    stream = b"".join(frame(kind, body) for kind, body in frames)
    told = {"frames": [{"kind": kind, "body": body.hex()} for kind, body in frames]}
    return valid(f"frame/{name}", "frames", "FR-04", about, _input(stream, limits), told)


def vectors() -> Iterator[Vector]:
    """Streams of frames."""
    yield _good("one", "one sealed frame", [(2, b"sealed?")])
    yield _good("empty-body", "a body of no bytes is a frame", [(2, b"")])
    yield _good("several", "frames follow each other", [(1, b"a"), (2, bytes(99)), (2, b"c")])
    yield _good("at-limits", "bodies at their limits", [(1, bytes(64)), (2, bytes(1000))])
    yield _good("handshake-only", "a state that takes one kind", [(1, b"INIT")], {1: 4})
    yield _good("nothing", "a stream of no bytes has no frames", [])
    yield from _bad_headers()
    yield from _second_is_bad()


def _bad_headers() -> Iterator[Vector]:
    cases = [
        ("version-0", "FR-01", "version 0", "0001000000000001"),
        ("version-2", "FR-01", "version 2", "0201000000000001"),
        ("reserved-low", "FR-01", "the reserved field is 1", "0101000100000001"),
        ("reserved-high", "FR-01", "the reserved field is 0x8000", "0101800000000001"),
        ("kind-0", "FR-02 CV-01", "kind 0", "0100000000000001"),
        ("kind-local", "FR-02", "a local frame on a network link", "0103000000000001"),
        ("kind-255", "FR-02 CV-01", "kind 255", "01ff000000000001"),
    ]
    for name, ids, about, head in cases:
        stream = bytes.fromhex(head) + b"x"
        yield refused(f"frame/{name}", "frames", ids, about, _input(stream, _BOTH))
    for name, about, head in [
        ("handshake-too-long", "a handshake body one byte beyond its limit", "0101000000000041"),
        ("sealed-too-long", "a sealed body one byte beyond its limit", "01020000000003e9"),
        ("longest", "a body of 2^32 - 1 bytes", "01020000ffffffff"),
    ]:
        stream = bytes.fromhex(head)
        given = _input(stream, _BOTH)
        yield refused(f"frame/{name}", "frames", "FR-03 CV-02", about, given, LIMIT)
    sealed = _input(frame(2, b"data"), {1: 64})
    about = "a sealed frame where the state takes handshake frames alone"
    yield refused("frame/kind-not-taken", "frames", "FR-02", about, sealed)


def _second_is_bad() -> Iterator[Vector]:
    output = {"frames": [{"kind": 2, "body": b"first".hex()}]}
    for name, ids, about, head, why in [
        ("second-version", "FR-01 CV-04", "a good frame, then version 3", "03020000", MALFORMED),
        ("second-long", "FR-03 CV-04", "a good frame, then one too long", "01020000ffff", LIMIT),
    ]:
        bad = bytes.fromhex(head).ljust(8, b"\0")
        given = _input(frame(2, b"first") + bad + frame(2, b"after"), _BOTH)
        yield refused(
            f"frame/{name}", "frames", ids, about, given, why, released=b"first", output=output
        )
