"""sealring/1 once more, straight from the specification's formulas and tables.

It makes what the vectors hold, right or wrong in exactly the place that a vector is about. It
shares nothing with the package but the deterministic signer, so a vector that the package passes
was computed twice.
"""

from __future__ import annotations

import hashlib
import hmac as _hmac
import struct
from typing import Any, Final

import attrs
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from sealring_protocol.security.identity import Signer

PROTOCOLS: Final = {1: b"sealring/1 aes256gcm", 2: b"sealring/1 chacha20poly1305"}
_AEADS: Final[dict[int, Any]] = {1: AESGCM, 2: ChaCha20Poly1305}


def sha256(*parts: bytes) -> bytes:
    """H."""
    return hashlib.sha256(b"".join(parts)).digest()


def hmac(key: bytes, data: bytes) -> bytes:
    """HMAC; also Extract(salt, ikm)."""
    return _hmac.digest(key, data, "sha256")


def expand(secret: bytes, info: bytes, size: int = 32) -> bytes:
    """Expand, for one block."""
    return hmac(secret, info + b"\x01")[:size]


def header(kind: int, length: int) -> bytes:
    """A frame's eight bytes."""
    return struct.pack(">BBHI", 1, kind, 0, length)


def frame(kind: int, body: bytes) -> bytes:
    """A whole frame."""
    return header(kind, len(body)) + body


def text(value: str | bytes) -> bytes:
    """u16 length and UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


# -------------------------------------------------------------------- channels


def seal(suite: int, key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """AEAD: ciphertext and tag."""
    return bytes(_AEADS[suite](key).encrypt(nonce, plaintext, associated))


def unseal(suite: int, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The plaintext; raises what `cryptography` does."""
    return bytes(_AEADS[suite](key).decrypt(nonce, sealed, associated))


@attrs.frozen
class Keys:
    """What one secret gives."""

    key: bytes
    iv: bytes
    next: bytes

    @classmethod
    def of(cls, secret: bytes, updates: int = 0) -> Keys:
        """The keys under *secret*, after some key updates."""
        for _ in range(updates):
            secret = expand(secret, b"next")
        return cls(expand(secret, b"key"), expand(secret, b"iv", 12), expand(secret, b"next"))

    def nonce(self, counter: int) -> bytes:
        """iv xor counter."""
        return (int.from_bytes(self.iv, "big") ^ counter).to_bytes(12, "big")


def updates_before(number: int) -> int:
    """Key updates before frame or counter *number* (from 0)."""
    return 0 if number < 64 else 1 + (number - 64) // 65536


def place_of(number: int) -> tuple[int, int]:
    """Updates before frame *number* of a direction, and its seq under that key."""
    updates = updates_before(number)
    return updates, number if not updates else (number - 64) % 65536


def sealed_frame(suite: int, secret: bytes, number: int, plaintext: bytes, **wrong: Any) -> bytes:
    """Frame *number* (from 0) of a direction. *wrong*: header, updates, seq."""
    updates, seq = place_of(number)
    keys = Keys.of(secret, wrong.get("updates", updates))
    head = header(2, len(plaintext) + 16)
    nonce = keys.nonce(wrong.get("seq", seq))
    return head + seal(suite, keys.key, nonce, plaintext, wrong.get("associated", head))


@attrs.frozen
class Place:
    """The associated data of the inner seal, field by field."""

    cluster: bytes
    instance: int
    counter: int
    n: int
    group: int
    boundary: int
    dtype: int
    shape: tuple[int, ...]
    uids: tuple[int, ...]

    def encode(self) -> bytes:
        """Its bytes."""
        return (
            self.cluster
            + struct.pack(">QQQHH", self.instance, self.counter, self.n, self.group, self.boundary)
            + struct.pack(">BBI", self.dtype, len(self.shape), len(self.uids))
            + struct.pack(f">{len(self.shape)}I{len(self.uids)}Q", *self.shape, *self.uids)
        )


def inner_sealed(
    suite: int, secret: bytes, counter: int, elements: bytes, place: Place, **wrong: Any
) -> bytes:
    """The data of a sealed tensor. *wrong*: updates."""
    keys = Keys.of(secret, wrong.get("updates", updates_before(counter)))
    return seal(suite, keys.key, keys.nonce(counter), elements, place.encode())


# --------------------------------------------------------------------- rosters


@attrs.frozen
class Member:
    """A member of a roster; *name* and *addresses* may be bytes that are no text. *rights* are in
    it where the roster's policy says so, and else None."""

    public: bytes
    trust: int
    attestation: bytes
    name: str | bytes
    addresses: tuple[str | bytes, ...] = ()
    rights: int | None = None

    def encode(self) -> bytes:
        """Its bytes."""
        return (
            self.public
            + bytes([self.trust])
            + (b"" if self.rights is None else bytes([self.rights]))
            + self.attestation
            + text(self.name)
            + struct.pack(">H", len(self.addresses))
            + b"".join(text(address) for address in self.addresses)
        )


@attrs.frozen
class Appointing:
    """Which key signs rosters, as the spare says: the fields of an appointment."""

    spare: bytes
    naming: bytes
    number: int
    coordinator: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        number = struct.pack(">Q", self.number)
        return self.spare + self.naming + number + self.coordinator + self.signature


def naming(cluster: bytes, spare: bytes, context: bytes = b"sealring/1SPARE") -> bytes:
    """What the pinned coordinator signs to name *spare*."""
    return context + sha256(cluster + spare)


def appointing(
    cluster: bytes, number: int, key: bytes, context: bytes = b"sealring/1COORDINATOR"
) -> bytes:
    """What the spare signs to appoint *key*."""
    return context + sha256(cluster + struct.pack(">Q", number) + key)


@attrs.frozen
class Terms:
    """A roster without its signature."""

    cluster: bytes
    name: str | bytes
    serial: int
    issued_ms: int
    expires_ms: int
    policy: int
    members: tuple[Member, ...]
    version: int = 1
    appointing: Appointing | None = None

    def encode(self) -> bytes:
        """Its bytes."""
        appointment = b"" if self.appointing is None else self.appointing.encode()
        fixed = (self.serial, self.issued_ms, self.expires_ms, self.policy, len(self.members))
        return (
            bytes([self.version])
            + self.cluster
            + appointment
            + text(self.name)
            + struct.pack(">QQQBH", *fixed)
            + b"".join(member.encode() for member in self.members)
        )

    @property
    def digest(self) -> bytes:
        """H of the bytes."""
        return sha256(self.encode())


def sign_roster(body: bytes, signer: Signer, context: bytes = b"sealring/1ROSTER") -> bytes:
    """*body* and the coordinator's signature."""
    return body + signer.sign(context + sha256(body))


@attrs.frozen
class Statement:
    """An attester's statement."""

    kind: int
    subject: bytes
    issued_ms: int
    expires_ms: int
    attester: bytes
    claims: bytes = b""
    version: int = 1

    def encode(self) -> bytes:
        """Its bytes."""
        return (
            bytes([self.version, self.kind])
            + self.subject
            + struct.pack(">QQ", self.issued_ms, self.expires_ms)
            + self.attester
            + struct.pack(">I", len(self.claims))
            + self.claims
        )

    @property
    def digest(self) -> bytes:
        """H of the bytes."""
        return sha256(self.encode())

    def signed(self, signer: Signer, context: bytes = b"sealring/1EVIDENCE") -> bytes:
        """The evidence: the statement and its signature."""
        return self.encode() + signer.sign(context + self.digest)


# ---------------------------------------------------------------------- ledger


@attrs.frozen
class LedgerState:
    """What a ledger holds: private caches and snapshots with their lengths, groups of rows, and how
    many of the last tokens of each row are guesses, where there are any. The last step *scored* so
    many tokens."""

    private: dict[int, int] = attrs.field(factory=dict)
    snapshots: dict[int, int] = attrs.field(factory=dict)
    groups: dict[int, tuple[tuple[int, int], ...]] = attrs.field(factory=dict)
    guessed: dict[int, int] = attrs.field(factory=dict)
    scored: int = 0

    def digest(self, n: int) -> bytes:
        """The digest after step *n*."""
        sizes = (len(self.private), len(self.snapshots), len(self.groups))
        data = struct.pack(">QIIII", n, self.scored, *sizes)
        for lengths in (self.private, self.snapshots):
            for number in sorted(lengths):
                data += struct.pack(">QI", number, lengths[number])
        for group in sorted(self.groups):
            rows = self.groups[group]
            data += struct.pack(">HI", group, len(rows))
            for uid, length in rows:
                data += struct.pack(">QIB", uid, length, self.guessed.get(uid, 0))
        return sha256(data)[:16]
