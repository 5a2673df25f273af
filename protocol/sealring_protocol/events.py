"""What a node asks of the world around it, and tells it: the outputs of `node.Node`."""

from __future__ import annotations

import attrs

from sealring_protocol.control.effects import (
    EndCollective,
    Note,
    PrepareCollective,
    RestartEngine,
    StepTiming,
    ToEngine,
)
from sealring_protocol.control.scheduler.requests import RequestDone, RowOpened, TokenOut
from sealring_protocol.errors import CloseCode
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
    """Send *last* (may be empty) on connection *link*, then close it. The node has forgotten it.

    Where the caller has the session (`LinkUp`), it closes that with *code* and *reason*, if
    it is not over, and what it then has to send is the last."""

    link: int
    last: bytes
    code: CloseCode = CloseCode.SHUTDOWN
    reason: str = ""


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

    The *session* of a TUNNEL link is the caller's from here on, and the node touches it no more: a
    collective's bytes do not pass the node. The caller drives it as any `Link` (bytes, time, what
    is to be sent; `Link.renew` at `RosterInForce`) until `Hangup`, and when it is over before that
    says so by `Node.link_over`. Of every other link, the session is there to look at.
    """

    rank: int
    purpose: Purpose
    link: int
    session: Link = attrs.field(repr=False)


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
    | TokenOut
    | RequestDone
    | RowOpened
    | StepTiming
    | Note
)
