"""The appointment: a spare coordinator says which key signs the rosters of a cluster.

A cluster can have a spare coordinator: a key that lies on no machine, and signs nothing but this.
So neither the loss nor the theft of the coordinator's key is the end of the cluster. A roster that
names a spare has a chain of signatures, from the key that every owner has pinned to its own:

    pinned key -- naming --> spare -- appointment --> coordinator -- signature --> roster

The chain has this length after any number of changes, and needs no memory: a node that was away
during all of them verifies the newest roster by the key that its owner pinned once. That key stays
pinned, and after the naming it counts for nothing else.

**Which roster is newer** is for the serial alone to say, as ever: the serials of the coordinator
number n are those from n * `SERIALS` on. So a change is newer than everything that the coordinators
before it have signed, or can sign later, and every node comes to the same end.

**The spare stays.** A node whose roster names a spare takes only rosters that name the same
(`check_succession`). If the coordinator could name another, a thief of its key would, and the spare
would help against the loss of a key alone.

An appointment: ``spare 65 · naming 64 · number u64 · coordinator 65 · signature 64``. The naming is
the pinned key's signature over ``H(cluster ‖ spare)``, and the signature is the spare's over
``H(cluster ‖ number ‖ coordinator)``, each in its own context.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.wire import U64, layout, pack
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterConflict,
)
from sealring_protocol.security.identity import (
    PUBLIC_KEY,
    SIGNATURE,
    Signer,
    check_own_signature,
    verify,
)
from sealring_protocol.security.keys import PROTOCOL, SignContext, sha256

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
