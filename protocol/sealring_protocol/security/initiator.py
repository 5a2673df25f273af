"""The initiator of a handshake, which dials. See `security.handshake` for how to drive it."""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import AEAD_TAG, MAX_ROSTER, MAX_SEALED_BODY
from sealring_protocol.security.handshake_base import Handshake, fatal
from sealring_protocol.security.handshake_messages import (
    RESP_BODY,
)
from sealring_protocol.security.handshake_values import (
    HandshakeConfig,
    PeerVerified,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.security.initiator_stages import (
    Dial,
    Start,
    WaitAccept,
    WaitResp,
    WaitSignature,
    WaitStore,
)
from sealring_protocol.security.roles import Purpose
from sealring_protocol.table import Table

ENTROPY: Final = 32 + 64
"""Bytes of entropy for one dial: an X25519 key, and an ML-KEM seed."""

ACCEPT_BODY: Final = 1 + 32 + 8 + 4 + MAX_ROSTER + AEAD_TAG
"""Bytes of the longest sealed body that may come before the link is up."""


class State(enum.Enum):
    """The state of an initiator, named for what it waits for."""

    START = enum.auto()
    WAIT_RESP = enum.auto()
    WAIT_SIGNATURE = enum.auto()
    WAIT_ACCEPT = enum.auto()
    WAIT_STORE = enum.auto()
    ESTABLISHED = enum.auto()
    CLOSED = enum.auto()
    DEAD = enum.auto()


class Event(enum.Enum):
    """What changes an initiator's state."""

    DIAL = enum.auto()
    RESP_VERIFIED = enum.auto()
    SIGNED = enum.auto()
    ACCEPTED = enum.auto()
    ACCEPTED_WITH_ROSTER = enum.auto()
    STORED = enum.auto()
    CLOSE = enum.auto()
    FAIL = enum.auto()


TABLE: Final[Table[State, Event]] = {
    (State.START, Event.DIAL): State.WAIT_RESP,
    (State.START, Event.FAIL): State.DEAD,
    (State.WAIT_RESP, Event.RESP_VERIFIED): State.WAIT_SIGNATURE,
    (State.WAIT_RESP, Event.FAIL): State.DEAD,
    (State.WAIT_SIGNATURE, Event.SIGNED): State.WAIT_ACCEPT,
    (State.WAIT_SIGNATURE, Event.FAIL): State.DEAD,
    (State.WAIT_ACCEPT, Event.ACCEPTED): State.ESTABLISHED,
    (State.WAIT_ACCEPT, Event.ACCEPTED_WITH_ROSTER): State.WAIT_STORE,
    (State.WAIT_ACCEPT, Event.CLOSE): State.CLOSED,
    (State.WAIT_ACCEPT, Event.FAIL): State.DEAD,
    (State.WAIT_STORE, Event.STORED): State.ESTABLISHED,
    (State.WAIT_STORE, Event.CLOSE): State.CLOSED,
    (State.WAIT_STORE, Event.FAIL): State.DEAD,
    (State.ESTABLISHED, Event.CLOSE): State.CLOSED,
    (State.ESTABLISHED, Event.FAIL): State.DEAD,
}
"""The legal moves of an initiator."""


class Initiator(Handshake[State, Event]):
    """The end that dials the node *peer_id*.

    *wall_ms* is the time of day in milliseconds since 1970; *entropy* has `ENTROPY` random bytes.
    Raises `LocalProtocolError` if the peer is this node or no member, or *entropy* has another
    length.
    """

    FAIL = Event.FAIL
    CLOSE = Event.CLOSE
    LIMITS: ClassVar = {
        State.START: {},
        State.WAIT_RESP: {FrameKind.HANDSHAKE: RESP_BODY},
        State.WAIT_SIGNATURE: {},
        State.WAIT_ACCEPT: {FrameKind.SEALED: ACCEPT_BODY},
        State.WAIT_STORE: {FrameKind.SEALED: MAX_SEALED_BODY},
        State.ESTABLISHED: {FrameKind.SEALED: MAX_SEALED_BODY},
        State.CLOSED: {},
        State.DEAD: {},
    }

    __slots__ = ()

    def __init__(
        self,
        config: HandshakeConfig,
        peer_id: bytes,
        purpose: Purpose,
        wall_ms: int,
        entropy: bytes,
    ) -> None:
        peer = config.roster.roster.member(peer_id)
        if peer is None:
            raise LocalProtocolError("the roster does not hold the node to dial")
        if peer_id == config.node_id:
            raise LocalProtocolError("a node does not dial itself")
        if len(entropy) != ENTROPY:
            raise LocalProtocolError(f"dialing takes {ENTROPY} bytes of entropy")
        dial = Dial(config, peer, purpose, wall_ms)
        super().__init__(TABLE, State.START, Start(dial, entropy))

    @fatal
    def dial(self) -> None:
        """Begin the handshake with INIT."""
        init, stage = self._current(Start, Event.DIAL).init()
        self._advance(Event.DIAL, stage)
        self._out.append(init)

    def sent(self, tag: bytes) -> bool:
        """True if the INIT with *tag* was sent, and waits for its answer."""
        return isinstance(self._stage, WaitResp) and self._stage.init.endswith(tag)

    @fatal
    def receive(self, frame: Frame) -> None:
        """A handshake frame came. Raises `RemoteProtocolError` or a subclass."""
        stage = self._stage
        if not isinstance(stage, WaitResp):
            raise RemoteProtocolError(f"a handshake frame came in {self.state.name}")
        following = stage.receive(frame)
        self._advance(Event.RESP_VERIFIED, following)
        self._events.append(SignatureRequested(following.payload))

    @fatal
    def provide_signature(self, signature: bytes) -> None:
        """The answer to `SignatureRequested`: send FIN."""
        fin, secrets, stage = self._current(WaitSignature, Event.SIGNED).fin(signature)
        self._advance(Event.SIGNED, stage)
        self._out.append(fin)
        self._events.append(PeerVerified(secrets))

    @fatal
    def receive_accept(self, accept: Accept) -> None:
        """ACCEPT, the first sealed frame, came. Raises `RemoteProtocolError` or a subclass."""
        stage = self._current(WaitAccept, Event.ACCEPTED).receive(accept)
        if isinstance(stage, WaitStore):
            self._advance(Event.ACCEPTED_WITH_ROSTER, stage)
            self._events.append(RosterReceived(stage.established.roster))
        else:
            self._advance(Event.ACCEPTED, stage)
            self._events.append(stage)

    @fatal
    def stored(self) -> None:
        """The answer to `RosterReceived`: the roster is stored."""
        stage = self._current(WaitStore, Event.STORED)
        self._advance(Event.STORED, stage.established)
        self._events.append(stage.established)
