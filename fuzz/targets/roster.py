"""Rosters, evidence and certificates, unsigned and signed: one encoding, and every rule of
replacement.

Input: a choice, then a roster (or a statement) without its signature, which is signed here. In a
roster that names a spare coordinator, the appointment is signed here, too, by whom it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    wire_code,
)
from sealring_protocol.security.identity import SIGNATURE
from sealring_protocol.security.mandate import Certificate
from sealring_protocol.security.roster import (
    SERIALS,
    Appointment,
    Evidence,
    Roster,
    SignedRoster,
    name_spare,
    newer,
    open_roster,
    sign_evidence,
    sign_roster,
    verify_evidence,
)

from fuzz.expect import raised
from fuzz.vectors import field
from spec.vectors.elections import FOUR, PEOPLE, vote
from spec.vectors.evidence import ATTESTER
from spec.vectors.plain import appointing, naming
from spec.vectors.plain import sign_roster as signed_elsewhere
from spec.vectors.world import (
    ADA,
    BEN,
    COORDINATOR,
    EVE,
    HOME,
    HOME_CHANGED,
    HOME_SPARED,
    NEXT,
    NOW,
    SPARE,
    TERMS,
    Node,
)

HELD: Final = tuple(SignedRoster.decode(each).roster for each in (HOME, HOME_SPARED, HOME_CHANGED))
"""Without a spare, with one, and after a change."""
ELECTING: Final = FOUR.digest, [each.public for each in PEOPLE], range(4)
_PEOPLE: Final = {each.public: each for each in (COORDINATOR, NEXT, SPARE, EVE)}
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
    for data in field("elections", "input", "roster"):
        if len(data) < 2000 and data[:1] == b"\3":
            yield b"\4" + data[1:]
    for data in field("elections", "input", "certificate"):
        if len(data) < 2000:
            yield b"\3" + data
    yield b"\1" + attrs.evolve(TERMS, members=(*TERMS.members, COORDINATOR.member)).encode()
    for rights in range(4):
        members = (attrs.evolve(ADA.member, rights=1), attrs.evolve(BEN.member, rights=rights))
        yield b"\1" + attrs.evolve(TERMS, serial=6, policy=4, members=members).encode()


def check(data: bytes) -> None:
    """Each choice has its own invariant."""
    kind, body = data[:1], data[1:]
    if kind == b"\2":
        _evidence(body)
        return
    if kind == b"\3":
        _certificate(body)
        return
    if kind == b"\4":
        _elected(b"\3" + body)
        return
    try:
        roster = Roster.decode(body)
    except RemoteProtocolError:
        return
    assert roster.encode() == body
    assert roster.heads[0] == 0
    assert set(roster.heads) <= set(roster.workers)
    error = raised(lambda: open_roster(COORDINATOR.public, data[1:] + _NO_SIGNATURE))
    assert error is not None  # signed by nobody
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


def _certificate(data: bytes) -> None:
    try:
        given = Certificate.decode(data)
    except RemoteProtocolError:
        return
    assert given.encode() == data
    signed = tuple(
        (voter, vote(PEOPLE[voter], FOUR.digest, given.term, given.head) if voter < 4 else old)
        for voter, old in given.votes
    )
    certificate = attrs.evolve(given, votes=signed)
    error = raised(lambda: certificate.verify(*ELECTING))
    voters = [voter for voter, _ in signed]
    fits = voters == [each for each in range(4) if each in voters] and len(voters) in (1, 3, 4)
    own = len(voters) > 1 or voters == [given.head]
    assert (error is None) == (fits and own and given.term > 0 and given.head < 4)
    if error is None and signed != given.votes:
        assert isinstance(raised(lambda: given.verify(*ELECTING)), AuthenticationFailed)


def _elected(data: bytes) -> None:
    """The head comes first, and the others keep their order."""
    try:
        signed = SignedRoster.decode(data)
    except RemoteProtocolError:
        return
    assert signed.encode() == data
    roster, bare = signed.roster, Roster.decode(signed.roster.encode())
    assert roster.members[0] == bare.members[roster.mandate.head]
    assert roster.in_own_order == bare.members
    assert (roster.digest, roster.head_indices) == (bare.digest, bare.head_indices)
    ranks = range(len(roster.members))
    assert [roster.rank_at(roster.index(rank)) for rank in ranks] == list(ranks)
    assert [bare.members[roster.index(rank)] for rank in ranks] == list(roster.members)
    error = raised(partial(open_roster, COORDINATOR.public, data))
    assert (error is None) == (raised(partial(signed.verify, COORDINATOR.public)) is None)
    if error is None:
        assert newer(COORDINATOR.public, bare, data, NOW) == signed


def _replaces(roster: Roster) -> None:
    """Signed by its coordinator, it takes another's place exactly when it may."""
    signer = COORDINATOR
    if (made := roster.appointment) is not None:
        spare, key = _PEOPLE.get(made.spare), _PEOPLE.get(made.coordinator)
        if spare is None or key is None:
            return
        _appoints(roster, spare, key)
        roster, signer = attrs.evolve(roster, appointment=_signed(roster.cluster, made, spare)), key
    if signer.id in roster:
        refused = raised(lambda: sign_roster(roster, signer.signer))
        assert isinstance(refused, LocalProtocolError)
    data = signed_elsewhere(roster.encode(), signer.signer)
    error = raised(lambda: SignedRoster.decode(data).verify(COORDINATOR.public))
    assert isinstance(error, AuthenticationFailed) == (not _holds(roster))
    for held in HELD:
        error = raised(partial(newer, COORDINATOR.public, held, data, NOW, ADA.id, BEN.id))
        assert _expected(held, roster) == (wire_code(error).name if error else "taken")


def _appoints(roster: Roster, spare: Node, key: Node) -> None:
    """An owner makes what the formulas say, and no spare that is the coordinator."""
    name = partial(name_spare, roster.cluster, roster.serial, COORDINATOR.signer)
    assert (raised(partial(name, spare.signer)) is None) == (spare is not COORDINATOR)
    other = EVE if spare is not EVE else SPARE
    first = name(other.signer)
    assert first == _signed(roster.cluster, first, other)
    assert raised(lambda: first.followed_by(roster.cluster, key.public, spare.signer)) is not None
    after = partial(first.followed_by, roster.cluster, key.public, other.signer)
    assert (raised(after) is None) == (key is not other)
    if key is not other:
        made = after()
        assert made == _signed(roster.cluster, made, other)
        assert made.number == roster.serial // SERIALS + 1


def _signed(cluster: bytes, made: Appointment, spare: Node) -> Appointment:
    """*made*, with the signatures that it lacks."""
    return attrs.evolve(
        made,
        naming=COORDINATOR.signer.sign(naming(cluster, made.spare)),
        signature=spare.signer.sign(appointing(cluster, made.number, made.coordinator)),
    )


def _holds(roster: Roster) -> bool:
    """Whether all keys are apart that have to be."""
    made = roster.appointment
    keys = {COORDINATOR.public, *((made.spare, made.coordinator) if made else ())}
    apart = made is None or made.spare not in (COORDINATOR.public, made.coordinator)
    return apart and not keys & {member.public_key for member in roster.members}


def _expected(held: Roster, roster: Roster) -> str:
    made, before = roster.appointment, held.appointment
    if not _holds(roster):
        return "AUTHENTICATION_FAILED"
    if roster.cluster != held.cluster:
        return "AUTHENTICATION_FAILED"
    if roster.serial == held.serial and roster.digest != held.digest:
        return "ROSTER_CONFLICT"
    if roster.serial <= held.serial:
        return "PROTOCOL_ERROR"
    if before is not None:
        if made is None or made.spare != before.spare:
            return "AUTHENTICATION_FAILED"
        if made.number == before.number and made.coordinator != before.coordinator:
            return "ROSTER_CONFLICT"
    if roster.expires_ms <= NOW:
        return "ROSTER_EXPIRED"
    ends = {ADA.public, BEN.public} <= {member.public_key for member in roster.members}
    return "taken" if ends else "AUTHENTICATION_FAILED"
