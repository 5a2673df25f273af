"""Evidence about how a node's key is kept, and the trust in a node that follows from it.

Evidence is a statement signed by an attester: this public key is kept in this way, with claims in
the attester's own format (such as a quote of a security chip), until this time. The coordinator
checks it when it admits a node, and puts the trust level and the digest of the evidence in the
roster. Anyone who holds the evidence and trusts the attester can check it again
(`verify_evidence`). The roster has the coordinator's word at the time of signing, and no live
measurement.

A statement: ``version u8 · kind u8 · subject 65 · issued_ms u64 · expires_ms u64 · attester 65 ·
claims u32 + bytes``; after it, 64 bytes of the attester's signature.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from sealring_protocol.codec.layouts import layout
from sealring_protocol.codec.wire import Reader, pack, vector
from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from sealring_protocol.security.identity import (
    SIGNATURE,
    Signer,
    check_own_signature,
    parse_key,
    verify,
)
from sealring_protocol.security.keys import PROTOCOL, SignContext, sha256

MAX_CLAIMS: Final = 16 * 1024
"""Bytes of one statement's claims. Memory: 16 KiB per statement, which no peer sends."""

NO_EVIDENCE: Final = bytes(32)
"""The digest in a roster of a member that has no evidence."""

_VERSION: Final = 1
_STATEMENT: Final = layout("EVIDENCE", but=1)


class TrustLevel(enum.IntEnum):
    """How well a node's key is kept, as the coordinator asserts it. A higher level includes the
    lower ones."""

    NONE = 0
    """Nothing is asserted."""
    SOFTWARE = 1
    """The key is in a file that its owner keeps."""
    HARDWARE = 2
    """The key cannot leave a security chip."""
    ATTESTED = 3
    """The key is in a security chip, which also measured the software that runs."""


class EvidenceKind(enum.IntEnum):
    """How a statement's subject keeps its key."""

    KEY_IN_SOFTWARE = 1
    KEY_IN_HARDWARE = 2
    KEY_IN_HARDWARE_AND_MEASURED_BOOT = 3

    @property
    def trust(self) -> TrustLevel:
        """The level that such a statement supports."""
        return _SUPPORTS[self]


_SUPPORTS: Final = {
    EvidenceKind.KEY_IN_SOFTWARE: TrustLevel.SOFTWARE,
    EvidenceKind.KEY_IN_HARDWARE: TrustLevel.HARDWARE,
    EvidenceKind.KEY_IN_HARDWARE_AND_MEASURED_BOOT: TrustLevel.ATTESTED,
}
_KINDS: Final = {int(kind): kind for kind in EvidenceKind}


@attrs.frozen
class Statement:
    """An attester's statement: *subject* keeps its key as *kind* says, from *issued_ms* until
    *expires_ms* (milliseconds since 1970). *claims* are for the attester's own tools.

    Raises `LocalProtocolError` if the fields are invalid.
    """

    kind: EvidenceKind
    subject: bytes
    issued_ms: int
    expires_ms: int
    attester: bytes
    claims: bytes = b""

    def __attrs_post_init__(self) -> None:
        for key in (self.subject, self.attester):
            try:
                parse_key(key)
            except AuthenticationFailed as error:
                raise LocalProtocolError(f"in a statement: {error}") from None
        if self.subject == self.attester:
            raise LocalProtocolError("nobody attests their own key")
        if not self.issued_ms < self.expires_ms:
            raise LocalProtocolError("a statement expires after it was issued")

    def encode(self) -> bytes:
        """The canonical encoding. Raises `LocalProtocolError` if a field exceeds its width."""
        return pack(
            _STATEMENT,
            _VERSION,
            self.kind,
            self.subject,
            self.issued_ms,
            self.expires_ms,
            self.attester,
        ) + vector(self.claims, MAX_CLAIMS)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the encoding, which a roster carries."""
        return sha256(self.encode())


@attrs.frozen
class Evidence:
    """A statement and its attester's signature."""

    statement: Statement
    signature: bytes

    def encode(self) -> bytes:
        """The statement's encoding, and the 64 bytes of the signature."""
        return self.statement.encode() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Evidence:
        """Read what `encode` gives; the signature is not checked.

        Raises `RemoteProtocolError` or `LimitExceeded` for anything else.
        """
        reader = Reader(data)
        version, code, subject, issued_ms, expires_ms, attester = reader.unpack(_STATEMENT)
        kind = _KINDS.get(code)
        if version != _VERSION or kind is None:
            raise RemoteProtocolError(f"evidence of version {version} and kind {code}")
        claims = reader.vector(MAX_CLAIMS)
        signature = reader.fixed(SIGNATURE)
        reader.end()
        try:
            statement = Statement(kind, subject, issued_ms, expires_ms, attester, claims)
        except LocalProtocolError as error:
            raise RemoteProtocolError(str(error)) from None
        return cls(statement, signature)


def sign_evidence(statement: Statement, signer: Signer) -> Evidence:
    """*statement*, signed by its attester.

    Raises `LocalProtocolError` if *signer* is not the attester that the statement names.
    """
    if signer.public_key != statement.attester:
        raise LocalProtocolError("the statement names another attester than the one who signs")
    signature = signer.sign(_payload(statement))
    check_own_signature(signature)
    return Evidence(statement, signature)


def verify_evidence(
    evidence: Evidence,
    subject: bytes,
    digest: bytes,
    attesters: Collection[bytes],
    wall_ms: int,
) -> TrustLevel:
    """The trust level that *evidence* supports for a member with public key *subject*.

    *digest* is what the roster has for that member, *attesters* are the trusted public keys, and
    *wall_ms* is the time of day in milliseconds since 1970. Raises `AuthenticationFailed` if
    anything does not match, or the statement is not valid at that time.
    """
    statement = evidence.statement
    if statement.attester not in attesters:
        raise AuthenticationFailed("the attester is none of those trusted")
    verify(statement.attester, evidence.signature, _payload(statement))
    if statement.subject != subject:
        raise AuthenticationFailed("the evidence is about another key")
    if statement.digest != digest:
        raise AuthenticationFailed("the roster carries the digest of other evidence")
    if not statement.issued_ms <= wall_ms < statement.expires_ms:
        raise AuthenticationFailed("the evidence is not valid at this time")
    return statement.kind.trust


def cluster_trust(levels: Iterable[TrustLevel]) -> TrustLevel:
    """The trust level of a cluster: the lowest of its members' *levels*; NONE if there are none."""
    return min(levels, default=TrustLevel.NONE)


def _payload(statement: Statement) -> bytes:
    return PROTOCOL + SignContext.EVIDENCE + statement.digest
