"""Rosters and evidence, unsigned and signed: one encoding, and every rule of replacement.

Input: a choice, then a roster (or a statement) without its signature, which is signed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    wire_code,
)
from sealring_protocol.security.identity import SIGNATURE
from sealring_protocol.security.roster import (
    Evidence,
    Roster,
    SignedRoster,
    newer,
    sign_evidence,
    sign_roster,
    verify_evidence,
)

from fuzz.expect import raised
from fuzz.vectors import field
from spec.vectors.evidence import ATTESTER
from spec.vectors.plain import sign_roster as signed_elsewhere
from spec.vectors.world import ADA, BEN, COORDINATOR, HOME, NOW, TERMS

CURRENT: Final = SignedRoster.decode(HOME).roster
_NO_SIGNATURE: Final = bytes(SIGNATURE)


def seeds() -> Iterator[bytes]:
    """The bodies of every roster and statement of the vectors, but for the very long."""
    for data in field("rosters", "input", "roster"):
        if len(data) < 2000:
            yield b"\0" + data[:-SIGNATURE]
            yield b"\1" + data[:-SIGNATURE]
    for data in field("rosters", "input", "candidate"):
        yield b"\1" + data[:-SIGNATURE]
    for data in field("evidence", "input", "evidence"):
        if len(data) < 2000:
            yield b"\2" + data
    yield b"\1" + attrs.evolve(TERMS, members=(*TERMS.members, COORDINATOR.member)).encode()


def check(data: bytes) -> None:
    """Each choice has its own invariant."""
    kind, body = data[:1], data[1:]
    if kind == b"\2":
        _evidence(body)
        return
    try:
        roster = Roster.decode(body)
    except RemoteProtocolError:
        return
    assert roster.encode() == body
    unsigned = SignedRoster.decode(body + _NO_SIGNATURE)
    assert unsigned.roster == roster
    assert unsigned.encode() == body + _NO_SIGNATURE
    if kind == b"\1":
        _replaces(roster)


def _evidence(data: bytes) -> None:
    try:
        evidence = Evidence.decode(data)
    except RemoteProtocolError:
        return
    assert evidence.encode() == data
    statement = evidence.statement
    if statement.attester != ATTESTER.public:
        return
    again = sign_evidence(statement, ATTESTER.signer)
    assert Evidence.decode(again.encode()) == again
    subject, attesters = ADA.public, (ATTESTER.public,)
    error = raised(lambda: verify_evidence(again, subject, statement.digest, attesters, NOW))
    fits = statement.subject == subject and statement.issued_ms <= NOW < statement.expires_ms
    assert (error is None) == fits
    for other in (
        (b"", statement.digest, attesters),
        (statement.subject, b"", attesters),
        (statement.subject, statement.digest, ()),
    ):
        error = raised(lambda it=other: verify_evidence(again, *it, statement.issued_ms))
        assert isinstance(error, AuthenticationFailed)


def _replaces(roster: Roster) -> None:
    """Signed by its coordinator, it takes the current one's place exactly when it may."""
    data = signed_elsewhere(roster.encode(), COORDINATOR.signer)
    error = raised(lambda: SignedRoster.decode(data).verify(COORDINATOR.public))
    assert isinstance(error, AuthenticationFailed) == (COORDINATOR.id in roster)
    signed = raised(lambda: sign_roster(roster, COORDINATOR.signer))
    assert isinstance(signed, LocalProtocolError) == (COORDINATOR.id in roster)
    error = raised(lambda: newer(COORDINATOR.public, CURRENT, data, NOW, ADA.id, BEN.id))
    assert _expected(roster) == (wire_code(error).name if error else "taken")


def _expected(roster: Roster) -> str:
    if COORDINATOR.id in roster or roster.cluster != CURRENT.cluster:
        return "AUTHENTICATION_FAILED"
    if roster.serial == CURRENT.serial and roster.digest != CURRENT.digest:
        return "ROSTER_CONFLICT"
    if roster.serial <= CURRENT.serial:
        return "PROTOCOL_ERROR"
    if roster.expires_ms <= NOW:
        return "ROSTER_EXPIRED"
    ends = {ADA.public, BEN.public} <= {member.public_key for member in roster.members}
    return "taken" if ends else "AUTHENTICATION_FAILED"
