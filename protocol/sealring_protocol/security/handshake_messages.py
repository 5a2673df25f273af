"""INIT, RESP and FIN, byte by byte. Each is one handshake frame.

A frame's ``hdr`` is its eight header bytes and the message code after them: nine bytes that every
tag and transcript covers. Fields have fixed sizes; only the roster in FIN has a length before it.
So INIT and RESP have one length each, and a parser accepts all of a message or nothing.

===== ==========================================================================================
INIT  ``hdr · wall_ms u64 · suites u32 · x_I 32 · ek_I 1184 · tag 32``
RESP  ``hdr · suite u8 · x_R 32 · ct 1088 · AEAD(id_R 32 · instance u64 · serial u64 · digest 32 ·
      signature 64 · mac 32)``
FIN   ``hdr · AEAD(id_I 32 · id_R 32 · instance u64 · serial u64 · digest 32 · purpose u8 ·
      roster u32 + bytes · signature 64 · mac 32)``
===== ==========================================================================================

``suites`` is a set: bit n stands for the suite with code n. Bits of unknown suites are ignored, so
that a later version can offer more. An instance is a random number per process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import attrs

from sealring_protocol.codec.frame import Frame, FrameKind, frame_header
from sealring_protocol.codec.layouts import layout
from sealring_protocol.codec.messages import MessageCode
from sealring_protocol.codec.wire import Reader, pack, vector
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import AEAD_TAG, FRAME_HEADER, MAX_FIN_BODY, MAX_ROSTER
from sealring_protocol.security.identity import SIGNATURE
from sealring_protocol.security.keys import SECRET, Suite, mac
from sealring_protocol.security.roles import Purpose

X25519: Final = 32
"""Bytes of an X25519 public key."""

ENCAPSULATION_KEY: Final = 1184
"""Bytes of an ML-KEM-768 encapsulation key (FIPS 203 table 3)."""

CIPHERTEXT: Final = 1088
"""Bytes of an ML-KEM-768 ciphertext."""

HDR: Final = FRAME_HEADER + 1
"""Bytes of a frame header and the message code."""

_INIT: Final = layout("INIT")
_RESP: Final = layout("RESP")
_RESP_CLAIMS: Final = layout("RESP.claims")
_FIN_CLAIMS: Final = layout("FIN.claims", but=1)

INIT_BODY: Final = _INIT.size
"""Bytes of INIT's body, exactly."""

RESP_BODY: Final = _RESP.size + _RESP_CLAIMS.size + SIGNATURE + SECRET + AEAD_TAG
"""Bytes of RESP's body, exactly."""

_SHARES_END: Final = FRAME_HEADER + _RESP.size
_PURPOSES: Final = {int(purpose): purpose for purpose in Purpose}


class Init(NamedTuple):
    """INIT as received: *tag* covers *tagged*, and *whole* is the frame."""

    wall_ms: int
    suites: int
    x_public: bytes
    encapsulation_key: bytes
    tagged: bytes
    tag: bytes
    whole: bytes


class Resp(NamedTuple):
    """RESP as received: *shares* is R, the part before the *sealed* one, and *whole* is the
    frame."""

    suite: int
    x_public: bytes
    ciphertext: bytes
    shares: bytes
    sealed: bytes
    whole: bytes


class Fin(NamedTuple):
    """FIN as received."""

    hdr: bytes
    sealed: bytes
    whole: bytes


class Claims(NamedTuple):
    """What the sender of RESP or FIN claims to be, and *encoded*, the bytes of these claims."""

    node_id: bytes
    instance: int
    serial: int
    digest: bytes
    encoded: bytes


@attrs.frozen
class FinClaims:
    """FIN's claims, with those that only an initiator makes: the *responder* that it dials, the
    *purpose*, and its *roster* if that is newer than the responder's (else empty)."""

    claims: Claims
    responder: bytes
    purpose: Purpose
    roster: bytes


class Proven(NamedTuple):
    """The signature and MAC after the claims in a sealed part."""

    signature: bytes
    mac: bytes


# ------------------------------------------------------------------------ INIT


def suite_set(suites: Iterable[Suite]) -> int:
    """The bit set that offers *suites*."""
    return sum(1 << suite for suite in suites)


def encode_init(
    admission: bytes, wall_ms: int, suites: int, x_public: bytes, encapsulation_key: bytes
) -> bytes:
    """The whole frame of INIT, with its tag under the key *admission*."""
    fields = (MessageCode.INIT, wall_ms, suites, x_public, encapsulation_key, b"")
    frame = frame_header(FrameKind.HANDSHAKE, INIT_BODY) + pack(_INIT, *fields)
    tagged = frame[:-SECRET]
    return tagged + mac(admission, tagged)


def parse_init(frame: Frame) -> Init:
    """INIT's fields. Raises `RemoteProtocolError`."""
    whole = _whole(frame, MessageCode.INIT, INIT_BODY)
    _, wall_ms, suites, x_public, key, tag = _INIT.unpack_from(whole, FRAME_HEADER)
    return Init(wall_ms, suites, x_public, key, whole[:-SECRET], tag, whole)


# ------------------------------------------------------------------------ RESP


def encode_shares(suite: Suite, x_public: bytes, ciphertext: bytes) -> bytes:
    """R: RESP up to its sealed part, with the header of the whole frame."""
    header = frame_header(FrameKind.HANDSHAKE, RESP_BODY)
    return header + pack(_RESP, MessageCode.RESP, suite, x_public, ciphertext)


def encode_resp_claims(node_id: bytes, instance: int, serial: int, digest: bytes) -> bytes:
    """The claims of RESP (cR)."""
    return pack(_RESP_CLAIMS, node_id, instance, serial, digest)


def parse_resp(frame: Frame) -> Resp:
    """RESP's fields. Raises `RemoteProtocolError`."""
    whole = _whole(frame, MessageCode.RESP, RESP_BODY)
    _, suite, x_public, ciphertext = _RESP.unpack_from(whole, FRAME_HEADER)
    return Resp(suite, x_public, ciphertext, whole[:_SHARES_END], whole[_SHARES_END:], whole)


def parse_resp_claims(plaintext: bytes) -> tuple[Claims, Proven]:
    """The claims and proof in RESP's sealed part, whose length is fixed."""
    reader = Reader(plaintext)
    node_id, instance, serial, digest = reader.unpack(_RESP_CLAIMS)
    claims = Claims(node_id, instance, serial, digest, plaintext[: reader.position])
    return claims, _read_proven(reader)


# ------------------------------------------------------------------------- FIN


def encode_fin_claims(
    *,
    node_id: bytes,
    responder: bytes,
    instance: int,
    serial: int,
    digest: bytes,
    purpose: Purpose,
    roster: bytes,
) -> bytes:
    """The claims of FIN (cI). *roster* is empty unless it is newer than the responder's."""
    fields = (node_id, responder, instance, serial, digest, purpose)
    return pack(_FIN_CLAIMS, *fields) + vector(roster, MAX_ROSTER)


def fin_hdr(claims: bytes) -> bytes:
    """The nine bytes before FIN's sealed part, which its claims determine."""
    length = 1 + len(claims) + SIGNATURE + SECRET + AEAD_TAG
    return frame_header(FrameKind.HANDSHAKE, length) + bytes([MessageCode.FIN])


def parse_fin(frame: Frame) -> Fin:
    """FIN's two parts. Raises `RemoteProtocolError` or `LimitExceeded`."""
    if len(frame.body) > MAX_FIN_BODY:
        raise LimitExceeded(f"FIN of {len(frame.body)} bytes; the limit is {MAX_FIN_BODY}")
    whole = _whole(frame, MessageCode.FIN, len(frame.body))
    return Fin(whole[:HDR], whole[HDR:], whole)


def parse_fin_claims(plaintext: bytes) -> tuple[FinClaims, Proven]:
    """The claims and proof in FIN's sealed part. Raises `RemoteProtocolError` or
    `LimitExceeded`."""
    reader = Reader(plaintext)
    node_id, responder, instance, serial, digest, code = reader.unpack(_FIN_CLAIMS)
    roster = reader.vector(MAX_ROSTER)
    encoded = plaintext[: reader.position]
    proven = _read_proven(reader)
    purpose = _PURPOSES.get(code)
    if purpose is None:
        raise RemoteProtocolError(f"FIN for an unknown purpose {code}")
    claims = Claims(node_id, instance, serial, digest, encoded)
    return FinClaims(claims, responder, purpose, roster), proven


def _read_proven(reader: Reader) -> Proven:
    proven = Proven(reader.fixed(SIGNATURE), reader.fixed(SECRET))
    reader.end()
    return proven


def _whole(frame: Frame, code: MessageCode, length: int) -> bytes:
    body = frame.body
    if frame.kind != FrameKind.HANDSHAKE:
        raise RemoteProtocolError(f"{code.name} is due, and a frame of kind {frame.kind} came")
    if len(body) != length or not length or body[0] != code:
        raise RemoteProtocolError(f"{code.name} is due, and something else came")
    return frame.header + bytes(body)
