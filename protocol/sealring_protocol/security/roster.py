"""The roster: who belongs to the cluster, signed by its coordinator.

A roster names every member with its key, in rank order, and holds the policies that all share. It
is the only source of authority: a node talks to the members in its roster and to nobody else. Only
a roster with a greater serial replaces another, or the same one with a later election. Two rosters
with the same serial mean that the coordinator signed it twice, which no node can resolve by itself.
Each node's owner pins the coordinator's key, which is no member's key. Where that key has named a
spare, the roster says which key has taken its place (`Appointment`).

A roster: ``version u8 · cluster 32 · name · serial u64 · issued_ms u64 · expires_ms u64 · policy u8
· count u16`` and for each member ``public key 65 · trust u8 · attestation 32 · name · count u16 ·
addresses``, with texts as u16 and UTF-8. Where it names a spare coordinator, it has version 2, and
the appointment before the name. After it, 64 bytes of signature. The digest excludes the signature,
so signing the same roster again does not change it.

**Elections.** Its members can make another one head (`security.mandate`). The roster in force is
then the signed one and the election's certificate: ``3 u8 · certificate · signed roster``. In such
a roster the elected member has rank 0, and the others follow in the roster's own order. The rank is
what the rest of the product goes by. A member's **index** is its place in the roster's own order,
which no election changes, nor the digest. Of two rosters with one digest, the one whose mandate
beats the other's is newer.

How a member keeps its key is `Evidence`: a statement signed by an attester, that this public key is
kept in this way, with claims in the attester's own format (such as a quote of a security chip),
until this time. The coordinator checks it when it admits a node, and puts the trust level and the
digest of the evidence in the roster. Anyone who holds the evidence and trusts the attester can
check it again (`verify_evidence`). The roster has the coordinator's word at the time of signing,
and no live measurement.

A statement: ``version u8 · kind u8 · subject 65 · issued_ms u64 · expires_ms u64 · attester 65 ·
claims u32 + bytes``; after it, 64 bytes of the attester's signature.

**The appointment.** A cluster can have a spare coordinator: a key that lies on no machine, and
signs nothing but which key signs the rosters. So neither the loss nor the theft of the
coordinator's key is the end of the cluster. A roster that names a spare has a chain of signatures,
from the key that every owner has pinned to its own:

    pinned key -- naming --> spare -- appointment --> coordinator -- signature --> roster

The chain has this length after any number of changes, and needs no memory: a node that was away
during all of them verifies the newest roster by the key that its owner pinned once. That key stays
pinned, and after the naming it counts for nothing else.

Which signed roster is newer is for the serial alone to say, as ever: the serials of the coordinator
number n are those from n * `SERIALS` on. So a change is newer than everything that the coordinators
before it have signed, or can sign later, and every node comes to the same end.

The spare stays. A node whose roster names a spare takes only rosters that name the same
(`check_succession`). If the coordinator could name another, a thief of its key would, and the spare
would help against the loss of a key alone.

An appointment: ``spare 65 · naming 64 · number u64 · coordinator 65 · signature 64``. The naming is
the pinned key's signature over ``H(cluster ‖ spare)``, and the signature is the spare's over
``H(cluster ‖ number ‖ coordinator)``, each in its own context.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from sealring_protocol.codec.wire import U16, U64, Reader, is_plain, layout, pack, text, vector
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.limits import (
    MAX_ADDRESS,
    MAX_ADDRESSES,
    MAX_MEMBERS,
    MAX_NAME,
    MAX_ROSTER,
)
from sealring_protocol.security.identity import (
    PUBLIC_KEY,
    SIGNATURE,
    Signer,
    check_own_signature,
    node_id,
    parse_key,
    verify,
)
from sealring_protocol.security.keys import PROTOCOL, SignContext, sha256
from sealring_protocol.security.mandate import UNELECTED, Certificate, Mandate

SERIALS: Final = 10**9
"""Serials of one coordinator. People read them: 2,000,000,007 is the seventh after two changes."""

_APPOINTMENT: Final = layout("ROSTER.appointment")

APPOINTMENT: Final = _APPOINTMENT.size
"""Bytes of an appointment."""


@attrs.frozen
class Appointment:
    """*spare*, which the pinned key named (*naming*), appoints *coordinator* as *number*: see the
    module. Keys have 65 bytes, signatures 64, and only `verify` checks them.

    Raises `LocalProtocolError` for another length.
    """

    spare: bytes
    naming: bytes
    number: int
    coordinator: bytes
    signature: bytes

    def __attrs_post_init__(self) -> None:
        if {len(self.spare), len(self.coordinator)} != {PUBLIC_KEY}:
            raise LocalProtocolError(f"a public key has {PUBLIC_KEY} bytes")
        if {len(self.naming), len(self.signature)} != {SIGNATURE}:
            raise LocalProtocolError(f"a signature has {SIGNATURE} bytes")

    def encode(self) -> bytes:
        """The canonical encoding. Raises `LocalProtocolError` for a number beyond 64 bits."""
        return pack(
            _APPOINTMENT, self.spare, self.naming, self.number, self.coordinator, self.signature
        )

    @classmethod
    def decode(cls, data: bytes) -> Appointment:
        """Read what `encode` gives. Raises `RemoteProtocolError` for another length."""
        if len(data) != APPOINTMENT:
            raise RemoteProtocolError(f"an appointment has {APPOINTMENT} bytes, not {len(data)}")
        return cls(*_APPOINTMENT.unpack(data))

    def verify(self, cluster: bytes, pinned: bytes) -> None:
        """Check that it is for *cluster*, and that the key *pinned* named the spare.

        Raises `AuthenticationFailed`.
        """
        verify(pinned, self.naming, _naming(cluster, self.spare))
        if self.spare in (pinned, self.coordinator):
            raise AuthenticationFailed("the spare coordinator's key is the coordinator's")
        verify(self.spare, self.signature, _appointing(cluster, self.number, self.coordinator))

    def followed_by(self, cluster: bytes, coordinator: bytes, spare: Signer) -> Appointment:
        """The next appointment: of the key *coordinator*, by *spare*.

        Raises `LocalProtocolError` if that is not the spare that was named, or appoints itself.
        """
        if spare.public_key != self.spare:
            raise LocalProtocolError("this is not the spare coordinator's key")
        return _appoint(cluster, self.naming, self.number + 1, coordinator, spare)


def name_spare(cluster: bytes, serial: int, coordinator: Signer, spare: Signer) -> Appointment:
    """The first appointment, for rosters from *serial* on: *coordinator*, whose key is pinned,
    names *spare*, which appoints it.

    Raises `LocalProtocolError` if the two are one key.
    """
    naming = coordinator.sign(_naming(cluster, spare.public_key))
    check_own_signature(naming)
    return _appoint(cluster, naming, serial // SERIALS, coordinator.public_key, spare)


def check_succession(current: Appointment | None, candidate: Appointment | None) -> None:
    """Check that a verified roster with *candidate* may replace one with *current*.

    Raises `AuthenticationFailed` if it does not name the spare that is named, and `RosterConflict`
    if its coordinator is another with the same number.
    """
    if current is None:
        return
    if candidate is None:
        raise AuthenticationFailed("the roster does not name the spare coordinator, which stays")
    if candidate.spare != current.spare:
        raise AuthenticationFailed(
            "the roster names another spare coordinator; the first one stays"
        )
    if candidate.number == current.number and candidate.coordinator != current.coordinator:
        raise RosterConflict(
            f"the spare has appointed two coordinators with the number {current.number}: "
            "change the coordinator again"
        )


def _appoint(
    cluster: bytes, naming: bytes, number: int, coordinator: bytes, spare: Signer
) -> Appointment:
    if spare.public_key == coordinator:
        raise LocalProtocolError("the spare coordinator does not appoint itself")
    signature = spare.sign(_appointing(cluster, number, coordinator))
    check_own_signature(signature)
    return Appointment(spare.public_key, naming, number, coordinator, signature)


def _naming(cluster: bytes, spare: bytes) -> bytes:
    return PROTOCOL + SignContext.SPARE + sha256(cluster, spare)


def _appointing(cluster: bytes, number: int, coordinator: bytes) -> bytes:
    return PROTOCOL + SignContext.COORDINATOR + sha256(cluster, pack(U64, number), coordinator)


MAX_CLAIMS: Final = 16 * 1024
"""Bytes of one statement's claims. Memory: 16 KiB per statement, which no peer sends."""

NO_EVIDENCE: Final = bytes(32)
"""The digest in a roster of a member that has no evidence."""

_VERSION: Final = 1  # of rosters, and of statements
_WITH_SPARE: Final = 2  # of rosters that name a spare coordinator
_ELECTED: Final = 3  # of signed rosters with a certificate before them
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


class Rights(enum.IntFlag, boundary=enum.STRICT):
    """What a member may do, and what it is for. The usual member has TEXT alone. One with neither
    is in rings, and is never the head."""

    TEXT = 1
    """It may see what clients ask and what they are answered: so it may be the head."""
    WITNESS = 2
    """It is in no ring and has no layers: it counts as a member, and no more."""


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
    signature = signer.sign(_statement_payload(statement))
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
    verify(statement.attester, evidence.signature, _statement_payload(statement))
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


def _statement_payload(statement: Statement) -> bytes:
    return PROTOCOL + SignContext.EVIDENCE + statement.digest


_CLUSTER: Final = 32
_TERMS: Final = layout("ROSTER")
_MEMBER: Final = layout("ROSTER.member")
_MEMBER_WITH_RIGHTS: Final = layout("ROSTER.member_with_rights")
_INNER_SEAL: Final = 1 << 0
_NO_TENSOR: Final = 1 << 1
_RIGHTS: Final = 1 << 2
_FIXED_HEAD: Final = 1 << 3
_POLICIES: Final = _INNER_SEAL | _NO_TENSOR | _RIGHTS | _FIXED_HEAD
_TRUST: Final = {int(level): level for level in TrustLevel}
_USUAL_RIGHTS: Final = Rights.TEXT
_ALL_RIGHTS: Final = int(Rights.TEXT | Rights.WITNESS)


def _check_name(name: str) -> None:
    if not name.strip(" ") or not is_plain(name):
        raise LocalProtocolError("a name is printable and not blank")


@attrs.frozen
class Member:
    """One node: its 65-byte *public_key*, its *name*, its *addresses* (``host:port``), the
    coordinator's *trust* in it, *attestation*, the 32-byte digest of the evidence for that, and its
    *rights*.

    Raises `LocalProtocolError` if a field is invalid.
    """

    public_key: bytes
    name: str
    addresses: tuple[str, ...] = ()
    trust: TrustLevel = TrustLevel.NONE
    attestation: bytes = NO_EVIDENCE
    rights: Rights = _USUAL_RIGHTS

    def __attrs_post_init__(self) -> None:
        try:
            parse_key(self.public_key)
        except AuthenticationFailed as error:
            raise LocalProtocolError(f"in a roster: {error}") from None
        _check_name(self.name)
        if len(self.addresses) > MAX_ADDRESSES or len(set(self.addresses)) < len(self.addresses):
            raise LocalProtocolError(f"a member has up to {MAX_ADDRESSES} distinct addresses")
        if not all(address and is_plain(address) for address in self.addresses):
            raise LocalProtocolError("an address is printable and not empty")
        if len(self.attestation) != len(NO_EVIDENCE):
            raise LocalProtocolError("an attestation digest has 32 bytes")
        if self.trust > TrustLevel.SOFTWARE and self.attestation == NO_EVIDENCE:
            raise LocalProtocolError(f"trust level {self.trust.name} needs evidence")

    @functools.cached_property
    def id(self) -> bytes:
        """The node id, 32 bytes."""
        return node_id(self.public_key)

    @property
    def host(self) -> str:
        """The host of the first address; empty if there is none."""
        return self.addresses[0].rpartition(":")[0].strip("[]") if self.addresses else ""

    @property
    def sees_texts(self) -> bool:
        """True if it may see what clients ask and what they are answered."""
        return Rights.TEXT in self.rights

    @property
    def is_witness(self) -> bool:
        """True if it is in no ring, and has no layers."""
        return Rights.WITNESS in self.rights

    def encode(self, *, with_rights: bool) -> bytes:
        """The canonical encoding in a roster whose members have their rights in it, or not. Raises
        `LocalProtocolError` if a field exceeds its limit."""
        about = (
            pack(_MEMBER_WITH_RIGHTS, self.public_key, self.trust, self.rights, self.attestation)
            if with_rights
            else pack(_MEMBER, self.public_key, self.trust, self.attestation)
        )
        return (
            about
            + text(self.name, MAX_NAME)
            + pack(U16, len(self.addresses))
            + b"".join(text(address, MAX_ADDRESS) for address in self.addresses)
        )

    @classmethod
    def _read(cls, reader: Reader, *, with_rights: bool) -> Member:
        """The next member. Raises `RemoteProtocolError` or `LocalProtocolError`."""
        bits = int(_USUAL_RIGHTS)
        if with_rights:
            public_key, code, bits, attestation = reader.unpack(_MEMBER_WITH_RIGHTS)
        else:
            public_key, code, attestation = reader.unpack(_MEMBER)
        if bits & ~_ALL_RIGHTS:
            raise RemoteProtocolError(f"a member with unknown rights 0x{bits:02x}")
        trust = _TRUST.get(code)
        if trust is None:
            raise RemoteProtocolError(f"unknown trust level {code}")
        name = reader.text(MAX_NAME)
        count = reader.count(MAX_ADDRESSES)
        addresses = tuple(reader.text(MAX_ADDRESS) for _ in range(count))
        return cls(public_key, name, addresses, trust, attestation, Rights(bits))


@attrs.frozen
class Roster:
    """The members of *cluster* (32 bytes), in rank order, valid from *issued_ms* until *expires_ms*
    (milliseconds since 1970). *appointment* says who signs it, where it names a spare coordinator.

    With *inner_seal*, activations are sealed again between the engine processes. In tensor
    parallelism the nodes at both ends see the sums in the clear even so; a cluster can forbid it by
    *tensor_parallelism*. With *fixed_head*, nobody but the member with index 0 may be head.

    *mandate* says whom the members have elected, who has rank 0; by default nobody, and the ranks
    are the indices. It is no part of the encoding (`elected`). Raises `LocalProtocolError` if a
    field is invalid.
    """

    cluster: bytes
    name: str
    serial: int
    issued_ms: int
    expires_ms: int
    inner_seal: bool
    members: tuple[Member, ...]
    tensor_parallelism: bool = True
    appointment: Appointment | None = None
    fixed_head: bool = False
    mandate: Mandate = UNELECTED

    def __attrs_post_init__(self) -> None:
        if len(self.cluster) != _CLUSTER:
            raise LocalProtocolError(f"a cluster id has {_CLUSTER} bytes")
        _check_name(self.name)
        if self.serial < 1:
            raise LocalProtocolError("serials begin at 1")
        if self.appointment is not None and self.serial // SERIALS != self.appointment.number:
            raise LocalProtocolError(f"serial {self.serial} is not one of its coordinator's")
        if not self.issued_ms < self.expires_ms:
            raise LocalProtocolError("a roster expires after it was issued")
        if not 1 <= len(self.members) <= MAX_MEMBERS:
            raise LocalProtocolError(f"a roster has 1 to {MAX_MEMBERS} members")
        if len(self.ranks) < len(self.members):
            raise LocalProtocolError("two members have the same key")
        if len({member.name for member in self.members}) < len(self.members):
            raise LocalProtocolError("two members have the same name")
        if 0 not in self.heads:
            raise LocalProtocolError(
                f"{self.members[0].name} is the first member, which is the head: a head may see "
                "texts and is no witness"
            )
        head = self.mandate.head
        if head >= len(self.members) or (head and (self.fixed_head or not self.mandate.term)):
            raise LocalProtocolError("nobody can elect this member")
        if len(self.encoded) + SIGNATURE > MAX_ROSTER:
            raise LocalProtocolError(f"a signed roster has at most {MAX_ROSTER} bytes")

    @functools.cached_property
    def ranks(self) -> dict[bytes, int]:
        """The rank of each member, by its id."""
        return {member.id: rank for rank, member in enumerate(self.members)}

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each member, in rank order."""
        return tuple(member.host for member in self.members)

    @functools.cached_property
    def heads(self) -> tuple[int, ...]:
        """The ranks that may be the head, in rank order: they may see texts, and are no witnesses.
        Where the head is fixed, it is the first member alone."""
        heads = tuple(rank for rank in self.workers if self.members[rank].sees_texts)
        return heads[:1] if self.fixed_head else heads

    @functools.cached_property
    def head_indices(self) -> tuple[int, ...]:
        """The indices of those who may be the head, ascending."""
        return tuple(sorted(map(self.index, self.heads)))

    @functools.cached_property
    def in_own_order(self) -> tuple[Member, ...]:
        """The members by their index: as they were signed."""
        head = self.mandate.head
        return (*self.members[1 : head + 1], self.members[0], *self.members[head + 1 :])

    def index(self, rank: int) -> int:
        """The index of the member with *rank*."""
        head = self.mandate.head
        if rank == 0:
            return head
        return rank - 1 if rank <= head else rank

    def rank_at(self, index: int) -> int:
        """The rank of the member with *index*."""
        head = self.mandate.head
        if index == head:
            return 0
        return index + 1 if index < head else index

    def elected(self, mandate: Mandate) -> Roster:
        """This roster where *mandate* is in force. Raises `LocalProtocolError` if that member may
        not be head."""
        members = self.in_own_order
        if mandate.head not in self.head_indices:
            raise LocalProtocolError("nobody can elect this member")
        others = (member for index, member in enumerate(members) if index != mandate.head)
        return attrs.evolve(self, members=(members[mandate.head], *others), mandate=mandate)

    @functools.cached_property
    def workers(self) -> tuple[int, ...]:
        """The ranks that may be in a ring, in rank order: all but the witnesses."""
        ranked = enumerate(self.members)
        return tuple(rank for rank, member in ranked if not member.is_witness)

    @property
    def _says_rights(self) -> bool:
        """True if some member's rights are in the encoding, and so all members' are."""
        return any(member.rights != _USUAL_RIGHTS for member in self.members)

    @property
    def _policy(self) -> int:
        return (
            self.inner_seal * _INNER_SEAL
            | (not self.tensor_parallelism) * _NO_TENSOR
            | self._says_rights * _RIGHTS
            | self.fixed_head * _FIXED_HEAD
        )

    @functools.cached_property
    def encoded(self) -> bytes:
        """The canonical encoding, without a signature: the members in the roster's own order."""
        appointment, with_rights = self.appointment, self._says_rights
        return (
            bytes([_VERSION if appointment is None else _WITH_SPARE])
            + self.cluster
            + (b"" if appointment is None else appointment.encode())
            + text(self.name, MAX_NAME)
            + pack(
                _TERMS,
                self.serial,
                self.issued_ms,
                self.expires_ms,
                self._policy,
                len(self.members),
            )
            + b"".join(member.encode(with_rights=with_rights) for member in self.in_own_order)
        )

    def encode(self) -> bytes:
        """`encoded`."""
        return self.encoded

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the encoding, 32 bytes."""
        return sha256(self.encoded)

    def is_behind(self, serial: int, digest: bytes, mandate: Mandate) -> bool:
        """True if a roster of *serial* and *digest*, with *mandate*, is newer than this one: it has
        a greater serial, or is this one with a mandate that beats the present one."""
        same = digest == self.digest
        return serial > self.serial or (same and mandate.beats(self.mandate))

    def is_ahead(self, serial: int, digest: bytes, mandate: Mandate) -> bool:
        """True if this roster is newer than that one."""
        same = digest == self.digest
        return serial < self.serial or (same and self.mandate.beats(mandate))

    @property
    def trust(self) -> TrustLevel:
        """The lowest trust level of any member, which is the coordinator's word for the cluster."""
        return cluster_trust(member.trust for member in self.members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self.ranks

    def member(self, member_id: bytes) -> Member | None:
        """The member with the node id *member_id*; None if there is none."""
        rank = self.ranks.get(member_id)
        return None if rank is None else self.members[rank]

    def rank(self, member_id: bytes) -> int:
        """The rank of the member *member_id*. Raises `LocalProtocolError` if there is none."""
        rank = self.ranks.get(member_id)
        if rank is None:
            raise LocalProtocolError("no member of the roster has this id")
        return rank

    def coordinator(self, pinned: bytes) -> bytes:
        """The key that signs this roster and the next, where the owner pinned the key *pinned*."""
        return pinned if self.appointment is None else self.appointment.coordinator

    def expired(self, wall_ms: int) -> bool:
        """True if the roster is no longer valid at *wall_ms* (milliseconds since 1970)."""
        return wall_ms >= self.expires_ms

    @classmethod
    def decode(cls, data: bytes) -> Roster:
        """Read what `encode` gives. Raises `RemoteProtocolError` or `LimitExceeded`."""
        reader = Reader(data)
        version = reader.u8()
        if version not in (_VERSION, _WITH_SPARE):
            raise RemoteProtocolError("a roster of an unknown version")
        cluster = reader.fixed(_CLUSTER)
        appointment = None
        if version == _WITH_SPARE:
            appointment = Appointment.decode(reader.fixed(APPOINTMENT))
        name = reader.text(MAX_NAME)
        serial, issued_ms, expires_ms, policy, count = reader.unpack(_TERMS)
        if policy & ~_POLICIES:
            raise RemoteProtocolError(f"a roster with unknown policies 0x{policy:02x}")
        if count > MAX_MEMBERS:
            raise LimitExceeded(f"a roster of {count} members; the limit is {MAX_MEMBERS}")
        try:
            with_rights = bool(policy & _RIGHTS)
            members = tuple(Member._read(reader, with_rights=with_rights) for _ in range(count))
            reader.end()
            inner_seal, tensor = bool(policy & _INNER_SEAL), not policy & _NO_TENSOR
            fixed_head = bool(policy & _FIXED_HEAD)
            times = serial, issued_ms, expires_ms
            roster = cls(
                cluster, name, *times, inner_seal, members, tensor, appointment, fixed_head
            )
        except LocalProtocolError as error:
            raise RemoteProtocolError(str(error)) from None
        if roster._says_rights != with_rights:
            raise RemoteProtocolError("a roster that says rights, which are all the usual ones")
        return roster


@attrs.frozen
class SignedRoster:
    """A roster and its coordinator's 64-byte signature, with the *certificate* of its mandate if
    the members have elected a head. Only `verify` checks them.

    Raises `LocalProtocolError` if the certificate is of another term or member.
    """

    roster: Roster
    signature: bytes
    certificate: Certificate | None = None

    def __attrs_post_init__(self) -> None:
        mandate, made = self.roster.mandate, self.certificate
        if (mandate.term, mandate.head) != ((0, 0) if made is None else (made.term, made.head)):
            raise LocalProtocolError("the certificate is not that of the roster's mandate")

    @functools.cached_property
    def encoded(self) -> bytes:
        """The roster's encoding, and the signature; before them the certificate, if any."""
        made = self.certificate
        before = b"" if made is None else bytes([_ELECTED]) + made.encode()
        return before + self.roster.encoded + self.signature

    def encode(self) -> bytes:
        """`encoded`."""
        return self.encoded

    def elected(self, certificate: Certificate | None) -> SignedRoster:
        """This roster as *certificate* makes it; without one, as it was signed.

        Raises `RemoteProtocolError` if its votes make no head. No signature is checked.
        """
        roster = self.roster
        mandate = UNELECTED
        if certificate is not None:
            mandate = certificate.mandate(len(roster.members), roster.head_indices)
        return SignedRoster(roster.elected(mandate), self.signature, certificate)

    @classmethod
    def decode(cls, data: bytes) -> SignedRoster:
        """Read what `encode` gives; no signature is checked.

        Raises `RemoteProtocolError` or `LimitExceeded` for anything else.
        """
        certificate, body, signature = _split(data)
        return cls(Roster.decode(body), signature).elected(certificate)

    def verify(self, pinned: bytes) -> None:
        """Check the signatures from the key *pinned* on, and the certificate's votes; the keys of
        coordinators may not be members'.

        Raises `AuthenticationFailed`, and `RemoteProtocolError` if the votes make no head.
        """
        roster = self.roster
        _verify(pinned, roster.cluster, roster.appointment, roster.digest, self.signature)
        if _has_coordinator(roster, pinned):
            raise AuthenticationFailed("the coordinator's key is a member's key")
        self._verify_certificate()

    def verify_signer(self, signer: bytes) -> None:
        """Check that the key *signer* signed it, and the certificate's votes: enough for whoever
        has the private half, and knows what it signed. Raises `AuthenticationFailed`, and
        `RemoteProtocolError` if the votes make no head."""
        if self.roster.coordinator(signer) != signer:
            raise AuthenticationFailed("another coordinator has been appointed")
        verify(signer, self.signature, _payload(self.roster.digest))
        self._verify_certificate()

    def _verify_certificate(self) -> None:
        roster = self.roster
        if self.certificate is not None:
            keys = [member.public_key for member in roster.in_own_order]
            self.certificate.verify(roster.digest, keys, roster.head_indices)


def sign_roster(roster: Roster, signer: Signer) -> SignedRoster:
    """*roster*, signed by the coordinator's *signer*.

    Raises `LocalProtocolError` if that key is a member's, another one is appointed, or the roster
    has a mandate: the next one is signed in the order of ranks, and without (`Roster.mandate`).
    """
    if roster.mandate != UNELECTED:
        raise LocalProtocolError("a roster is signed without a mandate")
    if roster.coordinator(signer.public_key) != signer.public_key:
        raise LocalProtocolError("the roster says that another key signs it")
    if _has_coordinator(roster, signer.public_key):
        raise LocalProtocolError("the coordinator's key is a member's key")
    signature = signer.sign(_payload(roster.digest))
    check_own_signature(signature)
    return SignedRoster(roster, signature)


def open_roster(pinned: bytes, data: bytes) -> SignedRoster:
    """The roster in *data*. The signatures from the key *pinned* on are checked before anything is
    parsed but what names the keys, which lies at fixed places after a certificate. That one's votes
    are checked last.

    Raises `AuthenticationFailed`, `RemoteProtocolError` or `LimitExceeded`.
    """
    certificate, body, signature = _split(data)
    cluster, appointment = body[1 : 1 + _CLUSTER], None
    if body[:1] == bytes([_WITH_SPARE]):
        try:
            appointment = Appointment.decode(body[1 + _CLUSTER :][:APPOINTMENT])
        except RemoteProtocolError:
            raise AuthenticationFailed("the roster ends before it says who signs it") from None
    _verify(pinned, cluster, appointment, sha256(body), signature)
    roster = Roster.decode(body)
    if _has_coordinator(roster, pinned):
        raise AuthenticationFailed("the coordinator's key is a member's key")
    if certificate is not None:
        keys = [member.public_key for member in roster.members]
        certificate.verify(roster.digest, keys, roster.head_indices)
    return SignedRoster(roster, signature).elected(certificate)


def _verify(
    pinned: bytes, cluster: bytes, appointment: Appointment | None, digest: bytes, signature: bytes
) -> None:
    """Check the chain from the key *pinned* to *signature*. Raises `AuthenticationFailed`."""
    if appointment is not None:
        appointment.verify(cluster, pinned)
    signer = pinned if appointment is None else appointment.coordinator
    verify(signer, signature, _payload(digest))


def _has_coordinator(roster: Roster, pinned: bytes) -> bool:
    """True if a coordinator's key, *pinned* or of the appointment, is a member's."""
    made = roster.appointment
    keys = {pinned} if made is None else {pinned, made.spare, made.coordinator}
    return any(node_id(key) in roster for key in keys)


def newer(
    pinned: bytes, current: Roster, candidate: bytes, wall_ms: int, *ends: bytes
) -> SignedRoster:
    """The roster in *candidate*, if it may replace *current* at *wall_ms* (milliseconds since
    1970).

    It must be signed by the coordinator, as follows from the key *pinned*, belong to the same
    cluster, be newer (`is_newer`), name the spare coordinator that *current* names, be unexpired,
    and have every node id in *ends* (both ends of the link that it came over). Raises
    `AuthenticationFailed`, `RosterConflict` (same serial, other contents; or two coordinators with
    one number), `RosterExpired`, `LimitExceeded`, or `RemoteProtocolError` if it is malformed or
    not newer.
    """
    signed = open_roster(pinned, candidate)
    roster = signed.roster
    if roster.cluster != current.cluster:
        raise AuthenticationFailed("a roster of another cluster")
    if not is_newer(current, roster.serial, roster.digest, roster.mandate):
        raise RemoteProtocolError(f"roster {_called(roster)} is not newer than {_called(current)}")
    check_succession(current.appointment, roster.appointment)
    if roster.expired(wall_ms):
        raise RosterExpired(f"roster {roster.serial}, which the peer brought, has expired")
    if not all(end in roster for end in ends):
        raise AuthenticationFailed("the newer roster does not hold both ends of this link")
    return signed


def is_newer(current: Roster, serial: int, digest: bytes, mandate: Mandate) -> bool:
    """True if a roster of *serial* and *digest*, with *mandate*, is newer than *current*.

    Raises `RosterConflict` if it is another roster with the same serial.
    """
    check_conflict(current, serial, digest)
    return current.is_behind(serial, digest, mandate)


def check_conflict(current: Roster, serial: int, digest: bytes) -> None:
    """Raise `RosterConflict` if a roster of *serial* and *digest* is not *current*, which has the
    same serial."""
    if serial == current.serial and digest != current.digest:
        raise RosterConflict(f"the peer holds another roster with the same serial {serial}")


def _called(roster: Roster) -> str:
    """What an error calls *roster*, by its serial and its term, if there is one."""
    term = roster.mandate.term
    return f"{roster.serial} of term {term}" if term else str(roster.serial)


def _split(data: bytes) -> tuple[Certificate | None, bytes, bytes]:
    """The certificate, the roster's encoding and its signature."""
    certificate = None
    if data[:1] == bytes([_ELECTED]):
        certificate, data = Certificate.split(data[1:])
    if len(data) > MAX_ROSTER:
        raise LimitExceeded(f"a roster of {len(data)} bytes; the limit is {MAX_ROSTER}")
    return certificate, data[:-SIGNATURE], data[-SIGNATURE:]


def _payload(digest: bytes) -> bytes:
    return PROTOCOL + SignContext.ROSTER + digest
