"""The outputs of `link.Link`: what it reports to its owner, and what it asks of it."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Message
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster


@attrs.frozen
class Hop:
    """The activation secrets of a link, 32 bytes each, as this end sees them, and their suite."""

    suite: Suite
    send: bytes = attrs.field(repr=False)
    receive: bytes = attrs.field(repr=False)


@attrs.frozen
class RosterReceived:
    """The peer brought a newer *roster*: store it, then call `roster_stored`."""

    roster: SignedRoster


@attrs.frozen
class PeerProved:
    """The dialing *peer* (node id) is authenticated: call `admit` or `refuse`."""

    peer: bytes
    instance: int
    purpose: Purpose
    roster: SignedRoster = attrs.field(repr=False)
    """The roster that authorized the peer. Check that it is still in force."""


@attrs.frozen
class LinkUp:
    """The link is up, and messages may be sent. The link keeps no copy of *hop*."""

    peer: bytes
    instance: int
    purpose: Purpose
    suite: Suite
    hop: Hop
    roster: SignedRoster = attrs.field(repr=False)
    """The roster that both ends hold."""


@attrs.frozen
class LinkClosed:
    """The peer closed the link in both directions."""

    code: int
    reason: str


LinkEvent = (
    EncapsulationRequested
    | SignatureRequested
    | RosterReceived
    | PeerProved
    | LinkUp
    | LinkClosed
    | Message
)
