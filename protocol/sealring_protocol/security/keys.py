"""Suites, labels, and the key schedule's two operations.

Every secret of sealring/1 comes from HKDF with SHA-256 (RFC 5869), used in its two halves:
`extract` concentrates entropy, and `expand` derives secrets. Each derived secret has a `Label` for
its use. All labels are in one enum, so that no two uses share one. Each signature has a
`SignContext` for the same reason: a signature made for one use is never valid for another.

A traffic secret gives ``key``, ``iv`` and the ``next`` traffic secret. A later secret does not
reveal an earlier one.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from sealring_protocol.codec.wire import Buffer

PROTOCOL: Final = b"sealring/1"
"""The protocol's string where no suite has been agreed: in the admission tag, rosters and
evidence."""

SECRET: Final = 32
"""Bytes of every secret, key and hash."""

NONCE: Final = 12
"""Bytes of a nonce of either suite."""

Aead = AESGCM | ChaCha20Poly1305

_SHA256: Final = hashes.SHA256()


class Suite(enum.IntEnum):
    """The ciphers that two nodes may agree on, with their codes on the wire."""

    AES256GCM = 1
    CHACHA20POLY1305 = 2

    @property
    def protocol(self) -> bytes:
        """The string that binds a handshake and its keys to this suite."""
        return _PROTOCOLS[self]

    def aead(self, key: bytes) -> Aead:
        """The suite's cipher under *key*, 32 bytes."""
        return _AEADS[self](key)


_PROTOCOLS: Final = {
    Suite.AES256GCM: b"sealring/1 aes256gcm",
    Suite.CHACHA20POLY1305: b"sealring/1 chacha20poly1305",
}
_AEADS: Final[dict[Suite, type[AESGCM] | type[ChaCha20Poly1305]]] = {
    Suite.AES256GCM: AESGCM,
    Suite.CHACHA20POLY1305: ChaCha20Poly1305,
}


@enum.unique
class Label(bytes, enum.Enum):
    """The use of a secret. No label is a prefix of another."""

    ADMISSION = b"adm"
    JOIN = b"join"
    RESPONDER_KEY = b"kR"
    RESPONDER_MAC = b"mR"
    INITIATOR_KEY = b"kI"
    INITIATOR_MAC = b"mI"
    TRAFFIC = b"traffic"
    ACTIVATION = b"activation"
    KEY = b"key"
    IV = b"iv"
    NEXT = b"next"


@enum.unique
class SignContext(bytes, enum.Enum):
    """The use of a signature. No context is a prefix of another."""

    RESP = b"RESP"
    FIN = b"FIN"
    JOIN_RESP = b"JOIN-RESP"
    JOIN_FIN = b"JOIN-FIN"
    ROSTER = b"ROSTER"
    SPARE = b"SPARE"
    COORDINATOR = b"COORDINATOR"
    EVIDENCE = b"EVIDENCE"
    VOTE = b"VOTE"


def sha256(*parts: Buffer) -> bytes:
    """SHA-256 of the concatenation of *parts*, 32 bytes."""
    return hashes.Hash.hash(_SHA256, b"".join(parts))


def mac(key: bytes, data: Buffer) -> bytes:
    """HMAC-SHA-256 (RFC 2104), 32 bytes."""
    context = hmac.HMAC(key, _SHA256)
    context.update(data)
    return context.finalize()


def extract(salt: bytes, material: bytes) -> bytes:
    """HKDF-Extract (RFC 5869 section 2.2): a pseudorandom key of 32 bytes."""
    return HKDF.extract(_SHA256, salt, material)


def expand(secret: bytes, info: bytes, length: int = SECRET) -> bytes:
    """HKDF-Expand (RFC 5869 section 2.3): *length* bytes for the use named by *info*."""
    return HKDFExpand(_SHA256, length, info).derive(secret)


class TrafficKeys(NamedTuple):
    """The keys from one traffic secret: an AEAD key, the iv as an integer, and the next secret."""

    key: bytes
    iv: int
    next: bytes


def traffic_keys(secret: bytes) -> TrafficKeys:
    """The keys from the traffic *secret*, derived as in TLS 1.3 (RFC 8446 sections 7.2, 7.3)."""
    return TrafficKeys(
        expand(secret, Label.KEY),
        int.from_bytes(expand(secret, Label.IV, NONCE), "big"),
        expand(secret, Label.NEXT),
    )
