"""Who is head: the first member of the roster, or whom the members have elected since.

A roster names the head as its first member. An election makes another one head, in a later *term*,
without the coordinator's key: a **certificate** has the signatures of the members that voted for
it. It belongs to one roster: a newer one begins again with its first member. `control.election` has
how members vote, and why no two are head at once. `security.roster` puts a certificate before the
roster that it is of.

A certificate: ``term u64 · head u16 · count u16`` and for each vote ``voter u16 · signature 64``,
with members by their index in the roster. A vote is the signature of the member's node key over
``H(digest of the roster ‖ term u64 ‖ head u16)``, in a context of its own.

It takes more than half of all members' votes; or that of the elected member alone, where an owner
has made it head by hand (`Mandate.taken`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from sealring_protocol.codec.wire import U16, Reader, layout, pack, sized
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import MAX_MEMBERS
from sealring_protocol.security.identity import SIGNATURE, verify
from sealring_protocol.security.keys import PROTOCOL, SignContext, sha256

_CERTIFICATE: Final = layout("CERTIFICATE", but=1)
_VOTE: Final = layout("CERTIFICATE.vote")
_BALLOT: Final = layout("VOTE")


@attrs.frozen
class Mandate:
    """Who is head: the member *head*, by its index in the roster, since *term*. If it is *taken*,
    by its own vote alone."""

    term: int = 0
    head: int = 0
    taken: bool = False

    def beats(self, other: Mandate) -> bool:
        """True if whoever holds *other* obeys this one: a later term; of one term what a majority
        voted for, and of two such (a member has voted twice) the lesser index."""
        return self._order > other._order

    @property
    def _order(self) -> tuple[int, bool, int]:
        return self.term, not self.taken, -self.head


UNELECTED: Final = Mandate()
"""What a roster itself says: its first member is head."""


def vote_payload(digest: bytes, term: int, head: int) -> bytes:
    """The bytes that a member signs to vote for *head* in *term*, of the roster with *digest*.

    Raises `LocalProtocolError` for a term beyond 64 bits, or a head beyond 16.
    """
    return PROTOCOL + SignContext.VOTE + sha256(digest, pack(_BALLOT, term, head))


@attrs.frozen
class Certificate:
    """The *votes* for *head* in *term*: each voter's index, and its signature of 64 bytes. Only
    `verify` checks them."""

    term: int
    head: int
    votes: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """The canonical encoding. Raises `LocalProtocolError` if a field does not have its
        width."""
        if len(self.votes) > MAX_MEMBERS:
            raise LocalProtocolError(f"a roster has up to {MAX_MEMBERS} members")
        begin = pack(_CERTIFICATE, self.term, self.head) + pack(U16, len(self.votes))
        votes = ((voter, sized(signature, SIGNATURE)) for voter, signature in self.votes)
        return begin + b"".join(pack(_VOTE, *each) for each in votes)

    @classmethod
    def decode(cls, data: bytes) -> Certificate:
        """Read what `encode` gives; no signature is checked.

        Raises `RemoteProtocolError` or `LimitExceeded` for anything else.
        """
        certificate, rest = cls.split(data)
        if rest:
            raise RemoteProtocolError(f"{len(rest)} bytes after a certificate")
        return certificate

    @classmethod
    def split(cls, data: bytes) -> tuple[Certificate, bytes]:
        """The certificate that *data* begins with, and what is after it. Raises as `decode`."""
        reader = Reader(data)
        term, head = reader.unpack(_CERTIFICATE)
        count = reader.count(MAX_MEMBERS)
        votes = tuple(reader.unpack(_VOTE) for _ in range(count))
        return cls(term, head, votes), bytes(reader.rest())

    def mandate(self, members: int, heads: Collection[int]) -> Mandate:
        """What the votes make of a roster with so many *members*, of whom those with the indices
        *heads* may be head. No signature is checked.

        Raises `RemoteProtocolError` if the votes are out of order, too few, or for who may not be
        head.
        """
        voters = [voter for voter, _ in self.votes]
        if self.term < 1 or self.head not in heads:
            raise RemoteProtocolError("an election of who may not be head, or of no term")
        if sorted(set(voters)) != voters or any(voter >= members for voter in voters):
            raise RemoteProtocolError("votes of no members, or not in order")
        taken = 2 * len(voters) <= members
        if taken and voters != [self.head]:
            raise RemoteProtocolError(f"{len(voters)} votes of {members} make no head")
        return Mandate(self.term, self.head, taken)

    def verify(self, digest: bytes, keys: Sequence[bytes], heads: Collection[int]) -> Mandate:
        """What the votes make of the roster with *digest*, whose members have the public *keys*, in
        the roster's own order, and of whom those with the indices *heads* may be head.

        Raises as `mandate`, and `AuthenticationFailed` for a vote that is not the voter's.
        """
        mandate = self.mandate(len(keys), heads)
        payload = vote_payload(digest, self.term, self.head)
        for voter, signature in self.votes:
            verify(keys[voter], signature, payload)
        return mandate
