"""The key schedule at work: both ends of one direction, through key updates, beside the formulas.

Input: the suite, then commands: how many frames to seal and open, and what is done to the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealring_protocol.codec.frame import Frame
from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError
from sealring_protocol.limits import AEAD_TAG, FIRST_KEY_UPDATE, FRAME_HEADER, MAX_SEALED_BODY
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import OpeningChannel, SealingChannel

from fuzz.expect import raised
from fuzz.source import Source
from spec.vectors.plain import sealed_frame
from spec.vectors.seals import SECRET

MOST: Final = 40
"""Frames of one command."""

TOO_LONG: Final = bytes(MAX_SEALED_BODY - AEAD_TAG + 1)


def seeds() -> Iterator[bytes]:
    """Up to the key update and beyond it, each command on either side of it."""
    for suite in range(2):
        for last in range(5):
            yield bytes([suite, 0, 3, last, 0, 9, 0])
            yield bytes([suite, 0, 39, 0, 0, 39, 0, last, 7, 0, 2])
    yield bytes(range(64))


def check(data: bytes) -> None:
    """Every frame is what the formulas say; what is not the next one ends the channel."""
    source = Source(data)
    suite = Suite(1 + source.below(2))
    sealer, opener = SealingChannel(suite, SECRET), OpeningChannel(suite, SECRET)
    number = 0
    while not source.empty:
        command = source.below(5)
        for _ in range(1 + source.below(MOST) if command == 0 else 1):
            plaintext = source.take(source.below(4))
            frame = bytes(sealer.seal([plaintext] if command else [plaintext[:1], plaintext[1:]]))
            assert frame == sealed_frame(suite, SECRET, number, plaintext)
            number += 1
            if command < 2:
                assert opener.open(_frame(frame)) == plaintext
        assert sealer.updates == int(number >= FIRST_KEY_UPDATE)
        if command == 1:
            error = raised(lambda: sealer.seal([TOO_LONG]))
            assert isinstance(error, LocalProtocolError)  # and nothing is spent
        elif command:
            break
    else:
        return
    _check_dead(opener, _spoil(command, frame, source, sealer))


def _spoil(command: int, frame: bytes, source: Source, sealer: SealingChannel) -> bytes:
    """*frame* bent or cut, or the one after it."""
    if command == 2:
        at = source.below(len(frame))
        return frame[:at] + bytes([frame[at] ^ 1 << source.below(8)]) + frame[at + 1 :]
    if command == 3:
        return frame[: -1 - source.below(AEAD_TAG)]
    return bytes(sealer.seal([b""]))


def _frame(data: bytes) -> Frame:
    return Frame(data[1], data[:FRAME_HEADER], data[FRAME_HEADER:])


def _check_dead(opener: OpeningChannel, wrong: bytes) -> None:
    """What does not open is the last that is tried."""
    first = raised(lambda: opener.open(_frame(wrong)))
    assert isinstance(first, AuthenticationFailed)
    assert raised(lambda: opener.open(_frame(wrong))) is first
