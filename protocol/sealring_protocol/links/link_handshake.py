"""The first phase of a link, from the first byte to the last proof; and how a link dies in any.

`link.Link` is what its owner holds; this is the half of it that lasts until the peer has proved
who it is and both ends hold the same roster. Frames go to the handshake, and what the handshake
asks for goes to the owner as events, whose answers come back through the methods here. Until an
answer comes no frame is taken, and no more is buffered than the state has a use for.

With the peer verified come the two sealed channels, so that a peer which is refused, or which does
wrong later, can be told why; before that, a dying link says nothing at all.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Accept, Close
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    SealringError,
    wire_code,
)
from sealring_protocol.limits import FRAME_HEADER, MAX_SEALED_BODY
from sealring_protocol.link_events import (
    Hop,
    LinkClosed,
    LinkEvent,
    LinkUp,
    PeerProved,
    RosterReceived,
)
from sealring_protocol.links.keepalive import Keepalive
from sealring_protocol.security import handshake as hs
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import allowed
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import OpeningChannel, SealingChannel
from sealring_protocol.table import Machine, Table

# What may be buffered in states that take no frame. While one end signs or encapsulates the
# other has nothing to say; while the initiator stores a roster, data may be under way.
_PAUSED: Final = {
    hs.ResponderState.WAIT_ENCAPSULATION: 0,
    hs.ResponderState.WAIT_SIGNATURE: 0,
    hs.InitiatorState.WAIT_SIGNATURE: 0,
    hs.InitiatorState.WAIT_STORE: FRAME_HEADER + MAX_SEALED_BODY,
}


class LinkState(enum.Enum):
    """What a link does."""

    HANDSHAKE = "handshake"
    UP = "up"
    CLOSED = "closed"
    DEAD = "dead"


class LinkMove(enum.Enum):
    """What moves it: both ends have proved who they are; either has said CLOSE; or an error."""

    UP = "up"
    CLOSE = "close"
    FAIL = "fail"


LINK_TABLE: Final[Table[LinkState, LinkMove]] = {
    (LinkState.HANDSHAKE, LinkMove.UP): LinkState.UP,
    (LinkState.HANDSHAKE, LinkMove.CLOSE): LinkState.CLOSED,
    (LinkState.HANDSHAKE, LinkMove.FAIL): LinkState.DEAD,
    (LinkState.UP, LinkMove.CLOSE): LinkState.CLOSED,
    (LinkState.UP, LinkMove.FAIL): LinkState.DEAD,
    (LinkState.CLOSED, LinkMove.FAIL): LinkState.DEAD,
}

NOTHING: Final[frozenset[type[Any]]] = frozenset()
"""The messages that a link takes or sends while it is not up."""


class LinkHandshake:
    """A link's state, its handshake and its death; see `link.Link`."""

    def __init__(
        self,
        config: hs.HandshakeConfig,
        handshake: hs.Initiator | hs.Responder,
        spend: Callable[[float], None],
        now: float,
        wall_ms: int,
    ) -> None:
        self.keepalive = Keepalive(now)
        """Its `progress` is what PINGs say; its `rtt` and `peer_progress`, what came back."""
        self.suite: Suite | None = None
        self._config = config
        self._roster = config.roster
        self._handshake = handshake
        self._spend = spend  # a signature of the budget, at a time
        self._decoder = FrameDecoder(handshake.frame_limits)
        self._events: deque[LinkEvent] = deque()
        self._out: list[bytes | bytearray] = []
        self._unsent = 0
        self._state = Machine(LINK_TABLE, LinkState.HANDSHAKE)
        self._error: SealringError | None = None  # what it is DEAD of
        self._secrets: hs.Secrets | None = None
        self._sealer: SealingChannel | None = None
        self._opener: OpeningChannel | None = None
        self._may_send = self._may_receive = NOTHING
        self._started = self._now = now
        self._opened = now  # the last frame
        self._wall_offset = wall_ms / 1000 - now
        self._expires = float("inf")
        self.put_out = False
        """The peer seems to hold a newer roster in which this node is no member."""

    # ---------------------------------------------------------------- answers

    def provide_signature(self, signature: bytes, now: float) -> None:
        """The answer to `SignatureRequested`: 64 bytes r || s, low s."""
        self._answer(lambda: self._handshake.provide_signature(signature), now)

    def provide_encapsulation(self, ciphertext: bytes, secret: bytes, now: float) -> None:
        """The answer to `EncapsulationRequested`."""
        handshake = self._responder()
        self._answer(lambda: handshake.provide_encapsulation(ciphertext, secret), now)

    def roster_stored(self, now: float) -> None:
        """The answer to `RosterReceived`."""
        self._answer(self._handshake.stored, now)
        self._ask_admission()

    def admit(self, now: float) -> None:
        """Take the peer that proved itself: the link is up."""
        self._check_alive()
        self._now = now
        accept = self._responder().admit()
        if self._sealer is not None:
            self._out.append(self._sealer.seal(encode(accept)))
        self._follow()

    def refuse(self, code: CloseCode, reason: str) -> None:
        """Do not take it, and say why. The link is over: send what it has to send, and hang up."""
        self._check_alive()
        self._responder().refuse()
        self._state.fire(LinkMove.CLOSE)
        self._say_close(code, reason)

    def renew(self, roster: SignedRoster) -> None:
        """Live as long as *roster*, in which both ends have the ranks that they had."""
        self._expires = roster.roster.expires_ms / 1000 - self._wall_offset

    def _outranked(self) -> bool:
        """The peer has proved itself, has this node's FIN, and holds a newer roster than it."""
        waits = self._handshake.state is hs.InitiatorState.WAIT_ACCEPT
        own = self._config.roster.roster.serial
        return waits and self._secrets is not None and self._secrets.peer.serial > own

    def _responder(self) -> hs.Responder:
        if not isinstance(self._handshake, hs.Responder):
            raise LocalProtocolError("only the end that was dialed can do that")
        return self._handshake

    def _answer(self, action: Callable[[], None], now: float) -> None:
        self._check_alive()
        self._check_room()
        self._now = now
        try:
            action()
        except SealringError as error:
            self._die(error)
        self._follow()

    # ----------------------------------------------------------------- frames

    def _before_up(self, frame: Frame) -> None:
        if frame.kind == FrameKind.HANDSHAKE:
            self._handshake.receive(frame)
        elif self._opener is not None:
            message = decode(self._opener.open(frame))
            if isinstance(message, Close):
                self._handshake.close()
                self._state.fire(LinkMove.CLOSE)
                self._events.append(LinkClosed(message.code, message.reason))
            elif isinstance(message, Accept) and isinstance(self._handshake, hs.Initiator):
                self._handshake.receive_accept(message)
            else:
                raise RemoteProtocolError(f"{message.CODE.name} came before the link was up")
        self._follow()
        self._ask_admission()

    def _paused(self) -> bool:
        """Whether an answer has to come before the next frame."""
        self._check_room()
        return self._handshake.state in _PAUSED

    def _check_room(self) -> None:
        """A paused link holds no more than its state has a use for."""
        room = _PAUSED.get(self._handshake.state)
        if room is not None and self._decoder.buffered > room:
            self._die(LimitExceeded("data came while the handshake has none to expect"))

    def _follow(self) -> None:
        """Take what the handshake has: bytes, events, and the limits of its state."""
        try:
            while (event := self._handshake.next_event()) is not None:
                self._on(event)
            data = self._handshake.data_to_send()
            if data:
                self._out.append(data)
        except SealringError as error:
            self._die(error)
        self._decoder.set_limits(self._handshake.frame_limits)

    def _on(self, event: hs.HandshakeEvent) -> None:
        match event:
            case hs.EncapsulationRequested():
                self._spend(self._now)
                self._events.append(event)
            case hs.SignatureRequested():
                self._events.append(event)
            case hs.PeerVerified(secrets):
                self._secrets = secrets
                self.suite = secrets.suite
                self._log_keys(secrets)
                self._sealer = SealingChannel(secrets.suite, secrets.send_traffic)
                self._opener = OpeningChannel(secrets.suite, secrets.receive_traffic)
            case hs.PeerRefused(error):
                self._say_close(wire_code(error), str(error))
                self._state.fire(LinkMove.FAIL)
                self._error = error
                self._events.clear()
                self._secrets = self._sealer = self._opener = None
            case hs.RosterReceived(roster):
                self._roster = roster
                self._events.append(RosterReceived(roster))
            case hs.Established():
                self._come_up(event)

    def _log_keys(self, secrets: hs.Secrets) -> None:
        if self._config.key_log is not None:
            ways = secrets.send_traffic, secrets.receive_traffic
            ways = ways if isinstance(self._handshake, hs.Initiator) else ways[::-1]
            told = hs.TrafficSecrets(secrets.suite, secrets.transcript, *ways)
            self._config.key_log(told)

    def _ask_admission(self) -> None:
        if self._handshake.state is hs.ResponderState.WAIT_ADMIT and self._secrets is not None:
            peer, purpose = self._secrets.peer, self._secrets.purpose
            self._events.append(PeerProved(peer.id, peer.instance, purpose, self._roster))

    def _come_up(self, event: hs.Established) -> None:
        secrets, self._secrets = self._secrets, None
        roster = event.roster.roster
        own, peer = roster.rank(self._config.node_id), roster.rank(event.peer.id)
        world = len(roster.members)
        self._may_send = allowed(event.purpose, own, peer, world)
        self._may_receive = allowed(event.purpose, peer, own, world)
        self.renew(event.roster)
        self._state.fire(LinkMove.UP)
        self._opened = self._now
        self.keepalive.heard(self._now)
        if secrets is not None:
            hop = Hop(secrets.suite, secrets.send_activation, secrets.receive_activation)
            self._events.append(
                LinkUp(
                    event.peer.id,
                    event.peer.instance,
                    event.purpose,
                    secrets.suite,
                    hop,
                    event.roster,
                )
            )

    # ------------------------------------------------------------------ death

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error

    def _say_close(self, code: CloseCode, reason: str) -> None:
        if self._sealer is not None:
            self._out.append(self._sealer.seal(encode(Close(code, reason))))

    def _die(self, error: SealringError) -> None:
        """The link is dead of *error*, which is raised."""
        if self._error is None:
            self._bury(error)
        raise error

    def _bury(self, error: SealringError) -> None:
        self._state.fire(LinkMove.FAIL)
        self._error = error
        self._events.clear()
        self._secrets = None
        if self._sealer is None:
            self._out.clear()
        elif not isinstance(error, ConnectionLost):
            self._say_close(wire_code(error), str(error))
        self._sealer = self._opener = None
        self._may_send = self._may_receive = NOTHING
        if not self._handshake.over:
            self._handshake.fail(error)
