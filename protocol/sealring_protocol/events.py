"""The outputs of `node.Node`: what it asks its caller to do, and what it reports."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Get
from sealring_protocol.control.effects import (
    EndCollective,
    Note,
    PrepareCollective,
    RestartEngine,
    StepChecked,
    StepTiming,
    StepToCheck,
    ToEngine,
)
from sealring_protocol.control.election import Ballot
from sealring_protocol.control.requests import (
    RequestDone,
    RowOpened,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.errors import CloseCode
from sealring_protocol.link import EncapsulationRequested, Link, SignatureRequested
from sealring_protocol.relay import RelayEvent
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class Dial:
    """Open a connection to *address* (``host:port``) of the member named *peer*. Answer by
    `Node.connected` or `Node.dial_failed` with the same *link* number."""

    link: int
    address: str
    peer: str


@attrs.frozen
class Hangup:
    """Send *last* (may be empty) on connection *link*, then close it. The node has forgotten it.

    If the caller drives the session (`LinkUp`), it closes that with *code* and *reason* unless it
    is over, and sends the session's last data.
    """

    link: int
    last: bytes
    code: CloseCode = CloseCode.SHUTDOWN
    reason: str = ""


@attrs.frozen
class Requested:
    """Connection *link* has this *request*. Answer by `Node.provide_signature` or
    `Node.provide_encapsulation`."""

    link: int
    request: SignatureRequested | EncapsulationRequested


@attrs.frozen
class StoreRoster:
    """Store *data*, a newer signed roster, durably. Answer by `Node.roster_stored` or
    `Node.roster_not_stored`. At most one is pending."""

    link: int
    data: bytes


@attrs.frozen
class CastVote:
    """Store *ballot*, of the roster with *digest*, durably; then sign *payload* with the node's
    key. Answer by `Node.vote_cast` or `Node.vote_not_cast`. At most one is pending. A vote that is
    not on disk before it leaves can make two heads."""

    digest: bytes
    ballot: Ballot
    payload: bytes


@attrs.frozen
class RosterInForce:
    """The roster with *serial* is in force; it gives this node *rank*. *changed* if members, ranks
    or policies differ from those of the roster before."""

    serial: int
    rank: int
    changed: bool


@attrs.frozen
class LinkUp:
    """The link with *purpose* to *rank* is up, on connection *link*.

    The caller drives the *session* of a TUNNEL link from now on, and the node touches it no more: a
    collective's bytes do not pass through the node. The caller feeds it bytes and time, sends its
    data, and calls `Link.renew` at `RosterInForce`, until `Hangup`. If the session ends before
    that, it calls `Node.link_over`. The session of any other link is only for inspection.
    """

    rank: int
    purpose: Purpose
    link: int
    session: Link = attrs.field(repr=False)


@attrs.frozen
class WeightsAsked:
    """*rank* asks, on connection *link*, for a piece of a file of this node's model. Answer by
    `Node.give_piece`: the questions of one link in order, and each only when the answer before it
    has left, or a peer that does not read would fill this node's memory. `Hangup` of *link* ends
    its questions."""

    rank: int
    link: int
    get: Get


@attrs.frozen
class RelayUp:
    """The API link with *rank* is up, and `Node.relay` has its relay."""

    rank: int


@attrs.frozen
class RelayEventCame:
    """*event* of a stream of the API link with *rank*."""

    rank: int
    event: RelayEvent


@attrs.frozen
class RelayDown:
    """The API link with *rank* is gone, for *reason*; each of its streams had its `DropCame`."""

    rank: int
    reason: str


RelayNews = RelayUp | RelayEventCame | RelayDown

NodeEvent = (
    Dial
    | Hangup
    | Requested
    | StoreRoster
    | CastVote
    | RosterInForce
    | ToEngine
    | RestartEngine
    | PrepareCollective
    | EndCollective
    | LinkUp
    | WeightsAsked
    | RelayNews
    | TokenOut
    | ScoresOut
    | RequestDone
    | RowOpened
    | StepTiming
    | StepToCheck
    | StepChecked
    | Note
)
