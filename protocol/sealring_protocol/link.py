"""One connection to one peer: bytes in, messages out; messages in, sealed bytes out.

A link is the frame decoder, the handshake and then two sealed channels, with keepalive, deadlines
and limits around them. Feed it `receive_data`, take `next_event` until that gives None, and send
what `data_to_send` gives. Three events ask for something (a signature, an encapsulation, a roster
to be stored) and one, `PeerProved`, for a decision: `admit` or `refuse`. Until the answer comes,
the link takes no frame, and what it may buffer meanwhile is bounded.

An error is final: the link is dead, and every call but `data_to_send` raises it again. A peer
that has proved who it is is told why, in a last CLOSE among the bytes to send; a stranger gets not
a byte. An end of stream without CLOSE is a loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Accept, Close, Message, Ping, Pong
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    PeerTimeout,
    RemoteProtocolError,
    RoleViolation,
    RosterExpired,
    SealringError,
    wire_code,
)
from sealring_protocol.keepalive import Keepalive
from sealring_protocol.limits import (
    FRAME_HEADER,
    HANDSHAKE_TIMEOUT,
    INIT_TIMEOUT,
    MAX_SEALED_BODY,
    MAX_UNSENT,
    MIN_FRAME_RATE,
    PING_TIMEOUT,
)
from sealring_protocol.link_events import (
    Hop,
    LinkClosed,
    LinkEvent,
    LinkUp,
    PeerProved,
    RosterReceived,
)
from sealring_protocol.security import handshake as hs
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose, allowed
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import OpeningChannel, SealingChannel

__all__ = [
    "EncapsulationRequested",
    "Hop",
    "Link",
    "LinkClosed",
    "LinkEvent",
    "LinkUp",
    "PeerProved",
    "RosterReceived",
    "SignatureRequested",
]

# What may be buffered in states that take no frame. While one end signs or encapsulates the
# other has nothing to say; while the initiator stores a roster, data may be under way.
_PAUSED: Final = {
    hs.ResponderState.WAIT_ENCAPSULATION: 0,
    hs.ResponderState.WAIT_SIGNATURE: 0,
    hs.InitiatorState.WAIT_SIGNATURE: 0,
    hs.InitiatorState.WAIT_STORE: FRAME_HEADER + MAX_SEALED_BODY,
}
_NONE: Final[frozenset[type[Any]]] = frozenset()
_HOUSEKEEPING: Final = frozenset({Ping, Pong, Close})


class Link:
    """One end of one link. Make it with `dial` or `accept`. Times are monotonic seconds."""

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
        self._error: SealringError | None = None
        self._up = False
        self._over = False  # the handshake is CLOSED or DEAD, kept here for it is asked so often
        self._secrets: hs.Secrets | None = None
        self._sealer: SealingChannel | None = None
        self._opener: OpeningChannel | None = None
        self._may_send = self._may_receive = _NONE
        self._started = self._now = now
        self._opened = now  # the last frame
        self._wall_offset = wall_ms / 1000 - now
        self._expires = float("inf")

    @property
    def key_updates(self) -> int:
        """Keys that both directions have gone through since the link came up."""
        return sum(c.updates for c in (self._sealer, self._opener) if c is not None)

    @classmethod
    def dial(
        cls,
        config: hs.HandshakeConfig,
        peer: bytes,
        purpose: Purpose,
        now: float,
        wall_ms: int,
        entropy: bytes,
    ) -> Link:
        """The end that dialed *peer* (node id); *entropy* is 96 random bytes.

        Raises `LocalProtocolError` when the peer is no member, or is this node.
        """
        handshake = hs.Initiator(config, peer, purpose, wall_ms, entropy)
        link = cls(config, handshake, lambda _: None, now, wall_ms)
        handshake.dial()
        link._follow()
        return link

    @classmethod
    def accept(
        cls,
        config: hs.HandshakeConfig,
        admission: Admission,
        source: str,
        now: float,
        wall_ms: int,
        entropy: bytes,
    ) -> Link:
        """The end that was dialed from the address *source*; *entropy* is 32 random bytes."""
        handshake = hs.Responder(config, wall_ms, entropy, admission.replay)
        return cls(config, handshake, partial(admission.take_signature, source), now, wall_ms)

    # ---------------------------------------------------------------- in, out

    @property
    def established(self) -> bool:
        """Messages may be sent."""
        return self._up and self._error is None

    @property
    def silent(self) -> bool:
        """The peer has not sent its INIT yet."""
        return self._handshake.state is hs.ResponderState.WAIT_INIT and self._error is None

    @property
    def has_data_to_send(self) -> bool:
        """`data_to_send` has something to give."""
        return bool(self._out)

    def data_to_send(self) -> bytes | bytearray:
        """All bytes that wait to be sent. Send them in order, or let the link die."""
        out = self._out
        self._unsent = 0
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def receive_data(self, data: bytes, now: float) -> None:
        """Bytes came in. Raises `LimitExceeded` when they are too many for a paused link."""
        if self._error is not None:
            raise self._error
        self._now = now
        if self._over:
            return
        self._decoder.receive_data(data)
        quiet = now - self._opened
        # Bytes of a long frame are signs of life, but not for ever.
        if quiet <= PING_TIMEOUT or quiet <= PING_TIMEOUT + self._decoder.awaited / MIN_FRAME_RATE:
            self.keepalive.heard(now)
        if not self._up:
            self._check_room()

    def _check_room(self) -> None:
        """A paused link holds no more than its state has a use for."""
        room = _PAUSED.get(self._handshake.state)
        if room is not None and self._decoder.buffered > room:
            self._die(LimitExceeded("data came while the handshake has none to expect"))

    def receive_eof(self) -> None:
        """The stream ended. Raises `ConnectionLost` unless CLOSE came before."""
        self._check_alive()
        if not self._over:
            self._die(ConnectionLost("the connection ended without CLOSE"))

    def next_event(self) -> LinkEvent | None:
        """The next event, or None until more data or an answer comes.

        Raises `RemoteProtocolError` or a child of it for what the peer may not do.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            if not self._up:
                self._check_room()
                if self._handshake.state in _PAUSED:
                    return None
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return None
                if self._up:
                    event = self._message(frame)
                    if event is not None:
                        return event
                else:
                    self._before_up(frame)
            except RemoteProtocolError as error:
                self._die(error)
        return self._events.popleft()

    def send(self, message: Message) -> None:
        """Seal *message*. Raises `LocalProtocolError` where it may not be sent, or does not fit."""
        if self._error is not None:
            raise self._error
        if type(message) not in self._may_send or self._sealer is None:
            raise LocalProtocolError(f"{message.CODE.name} cannot be sent on this link now")
        frame = self._sealer.seal(encode(message))
        self._out.append(frame)
        self._unsent += len(frame)
        if self._unsent > MAX_UNSENT:
            self._die(LimitExceeded(f"the peer leaves more than {MAX_UNSENT} bytes unread"))

    def close(self, code: CloseCode, reason: str) -> None:
        """End both directions, telling the peer why. Nothing may be sent afterwards."""
        self._check_alive()
        if self._over:
            return
        self._say_close(code, reason)
        self._handshake.close()
        self._over = True
        self._may_send = _NONE

    def fail(self, error: RemoteProtocolError) -> None:
        """The owner found the peer at fault: the link dies of *error*, and says so."""
        if self._error is None:
            self._bury(error)

    def renew(self, roster: SignedRoster) -> None:
        """Live as long as *roster*, in which both ends have the ranks that they had."""
        self._expires = roster.roster.expires_ms / 1000 - self._wall_offset

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
        self._over = True
        self._say_close(code, reason)

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

    # ----------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called; None on a dead link."""
        if self._error is not None or self._over:
            return None
        if not self._up:
            early = self._handshake.state is hs.ResponderState.WAIT_INIT
            return self._started + (INIT_TIMEOUT if early else HANDSHAKE_TIMEOUT)
        return min(self.keepalive.deadline, self._expires)

    def handle_timeout(self, now: float) -> None:
        """Time has passed. Raises `PeerTimeout` or `RosterExpired` when it was too much."""
        self._check_alive()
        deadline = self.next_timeout()
        if deadline is None or now < deadline:
            return
        self._now = now
        if not self._up:
            self._die(PeerTimeout(f"the handshake took more than {now - self._started:.1f} s"))
        if now >= self._expires:
            self._die(RosterExpired("the roster that both ends hold has expired"))
        try:
            ping = self.keepalive.overdue(now)
        except PeerTimeout as error:
            self._die(error)
        else:
            self.send(ping)

    # --------------------------------------------------------------- messages

    def _message(self, frame: Frame) -> Message | LinkClosed | None:
        """What an established link gives out of *frame*."""
        if self._opener is None:
            return None
        message = decode(self._opener.open(frame))
        self._opened = self._now
        self.keepalive.heard(self._now)
        kind = type(message)
        if kind not in self._may_receive:
            raise RoleViolation(f"{message.CODE.name} may not be sent by this peer here")
        if kind in _HOUSEKEEPING:
            return self._housekeeping(message)
        return message

    def _housekeeping(self, message: Message) -> LinkClosed | None:
        match message:
            case Ping():
                self.send(self.keepalive.ping(message, self._now))
            case Pong():
                self.keepalive.pong(message, self._now)
            case Close(code, reason):
                self._handshake.close()
                self._over = True
                self._may_send = _NONE
                return LinkClosed(code, reason)
        return None

    # -------------------------------------------------------------- handshake

    def _before_up(self, frame: Frame) -> None:
        if frame.kind == FrameKind.HANDSHAKE:
            self._handshake.receive(frame)
        elif self._opener is not None:
            message = decode(self._opener.open(frame))
            if isinstance(message, Close):
                self._handshake.close()
                self._over = True
                self._events.append(LinkClosed(message.code, message.reason))
            elif isinstance(message, Accept) and isinstance(self._handshake, hs.Initiator):
                self._handshake.receive_accept(message)
            else:
                raise RemoteProtocolError(f"{message.CODE.name} came before the link was up")
        self._follow()
        self._ask_admission()

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
                self._over = True
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
        self._up = True
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
        self._error = error
        self._events.clear()
        self._secrets = None
        if self._sealer is None:
            self._out.clear()
        elif not isinstance(error, ConnectionLost):
            self._say_close(wire_code(error), str(error))
        self._sealer = self._opener = None
        self._may_send = self._may_receive = _NONE
        self._over = True
        if not self._handshake.over:
            self._handshake.fail(error)
