"""What a node asks of the world around it, and tells it: the outputs of `node.Node`."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Tunnel
from sealring_protocol.control.effects import (
    EndCollective,
    Note,
    PrepareCollective,
    RestartEngine,
    StepTiming,
    ToEngine,
)
from sealring_protocol.control.scheduler.requests import RequestDone, RowOpened, TokenOut
from sealring_protocol.link import Link
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class Dial:
    """Open a connection to *address* (``host:port``) of the member named *peer*; answer by
    `Node.connected` or `Node.dial_failed` with the same *link* number."""

    link: int
    address: str
    peer: str


@attrs.frozen
class Hangup:
    """Send *last* (may be empty) on connection *link*, then close it. The node has forgotten it."""

    link: int
    last: bytes


@attrs.frozen
class SignatureRequested:
    """Have *payload* signed with the node's key; answer by `Node.provide_signature`."""

    link: int
    payload: bytes


@attrs.frozen
class EncapsulationRequested:
    """Encapsulate to the ML-KEM-768 *key*; answer by `Node.provide_encapsulation`."""

    link: int
    key: bytes


@attrs.frozen
class StoreRoster:
    """Store *data*, a newer signed roster, durably; answer by `Node.roster_stored` or
    `Node.roster_not_stored`. There is one at a time."""

    link: int
    data: bytes


@attrs.frozen
class RosterInForce:
    """Another roster is in force, by which this node has *rank*."""

    serial: int
    rank: int


@attrs.frozen
class LinkUp:
    """The link with *purpose* to *rank* is up, on connection *link*.

    The *session* of a TUNNEL link is used beside the node, though not at the same time, until
    `TunnelLost` or `Hangup`: TUNNEL messages are sent there, and may be taken out of what came in.
    When it has something `pending` then, enter the node by `Node.receive_data`, with no data.
    """

    rank: int
    purpose: Purpose
    link: int
    session: Link = attrs.field(repr=False)


@attrs.frozen
class TunnelMessage:
    """*message* came on the tunnel link with *rank*."""

    rank: int
    message: Tunnel


@attrs.frozen
class TunnelLost:
    """The tunnel link with *rank* is gone, and every stream of it."""

    rank: int


NodeEvent = (
    Dial
    | Hangup
    | SignatureRequested
    | EncapsulationRequested
    | StoreRoster
    | RosterInForce
    | ToEngine
    | RestartEngine
    | PrepareCollective
    | EndCollective
    | LinkUp
    | TunnelMessage
    | TunnelLost
    | TokenOut
    | RequestDone
    | RowOpened
    | StepTiming
    | Note
)
