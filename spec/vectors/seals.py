"""Sealed frames and key update (sections 7.1 and 7.2), told as one direction of a link."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from spec.vectors.model import FORGED, Json, Vector, refused, valid
from spec.vectors.plain import Keys, frame, header, seal, sealed_frame
from spec.vectors.talk import flipped
from spec.vectors.world import entropy

SECRET: Final = entropy("traffic secret", 32)
OTHER: Final = entropy("the other direction's traffic secret", 32)
GIVEN: Final[Mapping[str, bytes]] = {"secret": SECRET}
SUITES: Final = {1: "aes", 2: "chacha"}


def _input(suite: int, frames: Sequence[bytes]) -> Json:
    return {"suite": suite, "secret": SECRET.hex(), "frames": [each.hex() for each in frames]}


def _run(suite: int, count: int, first: int = 0) -> tuple[list[bytes], list[bytes]]:
    """*count* small plaintexts from frame *first* on, and their frames."""
    plain = [f"{number}".encode() for number in range(first, first + count)]
    frames = [sealed_frame(suite, SECRET, first + i, text) for i, text in enumerate(plain)]
    return plain, frames


def vectors() -> Iterator[Vector]:
    """Both suites; faults with each where they could differ."""
    for suite, name in SUITES.items():
        for count, about in ((1, "the first frame"), (66, "66 frames, across the key update")):
            plain, frames = _run(suite, count)
            output = {"plaintexts": [text.hex() for text in plain]}
            ids = "SE-01" if count == 1 else "SE-01 SE-04"
            given = _input(suite, frames)
            yield valid(f"seal/{name}-{count}", "sealed", ids, about, given, output)
        empty = sealed_frame(suite, SECRET, 0, b"")
        given, output = _input(suite, [empty]), {"plaintexts": [""]}
        yield valid(f"seal/{name}-empty", "sealed", "SE-01", "no plaintext", given, output)
        yield _many(suite, name)
        yield from _faults(suite, name)


def _many(suite: int, name: str) -> Vector:
    """Far enough for the second update, told by a hash."""
    count = 64 + 65536 + 2
    digest = hashlib.sha256()
    head = header(2, 16)
    for updates, frames in ((0, 64), (1, 65536), (2, 2)):
        keys = Keys.of(SECRET, updates)
        for seq in range(frames):
            digest.update(head + seal(suite, keys.key, keys.nonce(seq), b"", head))
    given = {"suite": suite, "secret": SECRET.hex(), "count": count}
    output = {"frames_sha256": digest.hexdigest()}
    about = f"{count:,} frames without plaintext, across two key updates"
    return valid(f"seal/{name}-many", "sealed-many", "SE-04", about, given, output)


def _faults(suite: int, name: str) -> Iterator[Vector]:
    plain, frames = _run(suite, 3)
    for fault, ids, about, bad in [
        ("bit", "SE-02", "a bit of the ciphertext flipped", flipped(frames[2], 8)),
        ("tag", "SE-02", "a bit of the tag flipped", flipped(frames[2], -1)),
        ("cut", "SE-02", "a byte of the tag cut off", frame(2, frames[2][8:-1])),
        ("grown", "SE-02", "a byte after the tag", frame(2, frames[2][8:] + b"\0")),
        ("none", "SE-02", "no body", frame(2, b"")),
        ("only-tag", "SE-02", "16 bytes of zeros", frame(2, bytes(16))),
        ("fifteen", "SE-02", "15 bytes", frame(2, bytes(15))),
        ("replayed", "SE-01", "the second frame again", frames[1]),
        ("skipped", "SE-01", "the fourth frame third", sealed_frame(suite, SECRET, 3, b"3")),
        ("reflected", "SE-01", "the other direction's", sealed_frame(suite, OTHER, 2, b"2")),
        ("suite", "SE-02", "the other suite's", sealed_frame(3 - suite, SECRET, 2, b"2")),
        ("bare", "SE-02", "no associated data", _wrong(suite, associated=b"")),
        ("header", "SE-02", "another header under the tag", _wrong(suite, associated=bytes(8))),
        ("early", "SE-04", "the next key too early", _wrong(suite, updates=1)),
    ]:
        yield _fault(f"{name}-{fault}", ids, about, suite, frames[:2], bad, plain[:2])
    bad, after = flipped(frames[2], 8), frames[2]
    output = {"plaintexts": [text.hex() for text in plain[:2]]}
    yield refused(
        f"seal/{name}-dead",
        "sealed",
        "CV-04 SE-02",
        "a bit flipped, and then the frame as it was: nothing opens any more",
        _input(suite, [*frames[:2], bad, after]),
        FORGED,
        released=b"".join(plain[:2]),
        output=output,
    )
    plain, frames = _run(suite, 64)
    for fault, about, bad in [
        ("late", "the first key for the 65th frame", _at_64(suite, updates=0, seq=64)),
        ("late-reset", "the first key again from seq 0", _at_64(suite, updates=0, seq=0)),
        ("not-reset", "the next key, seq not reset", _at_64(suite, updates=1, seq=64)),
        ("twice", "two updates at once", _at_64(suite, updates=2, seq=0)),
    ]:
        yield _fault(f"{name}-{fault}", "SE-04", about, suite, frames, bad, plain)


def _wrong(suite: int, **wrong: object) -> bytes:
    return sealed_frame(suite, SECRET, 2, b"2", **wrong)


def _at_64(suite: int, **wrong: object) -> bytes:
    return sealed_frame(suite, SECRET, 64, b"64", **wrong)


def _fault(
    name: str,
    ids: str,
    about: str,
    suite: int,
    frames: Sequence[bytes],
    bad: bytes,
    plain: Sequence[bytes],
) -> Vector:
    given = _input(suite, [*frames, bad])
    output = {"plaintexts": [text.hex() for text in plain]}
    released = b"".join(plain)
    return refused(
        f"seal/{name}", "sealed", ids, about, given, FORGED, released=released, output=output
    )
