"""What a link tells its owner, and asks of it: the outputs of `link.Link`."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Message
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster


@attrs.frozen
class Hop:
    """The activation secrets of a link, as this end sees them, and their suite's code."""

    suite: Suite
    send: bytes = attrs.field(repr=False)
    receive: bytes = attrs.field(repr=False)


@attrs.frozen
class RosterReceived:
    """The peer brought a newer *roster*: store it, then call `roster_stored`."""

    roster: SignedRoster


@attrs.frozen
class PeerProved:
    """The dialing *peer* (node id) has proved who it is: `admit` it or `refuse` it."""

    peer: bytes
    instance: int
    purpose: Purpose
    roster: SignedRoster = attrs.field(repr=False)
    """By which it was judged: look whether it is still in force."""


@attrs.frozen
class LinkUp:
    """The link is up: messages flow. *hop* is told once and not kept."""

    peer: bytes
    instance: int
    purpose: Purpose
    suite: Suite
    hop: Hop
    roster: SignedRoster = attrs.field(repr=False)
    """Which both ends hold."""


@attrs.frozen
class LinkClosed:
    """The peer closed the link: nothing more comes or goes."""

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
