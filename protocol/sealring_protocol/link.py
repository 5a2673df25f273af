"""One connection to one peer: bytes in, messages out; messages in, sealed bytes out.

A link is the frame decoder, the handshake (`link_handshake`) and then two sealed channels, with
keepalive, deadlines and limits around them. Feed it `receive_data`, take `next_event` until that
gives None, and send what `data_to_send` gives. Three events ask for work (a signature, an
encapsulation, storing a roster); one, `PeerProved`, asks for a decision, `admit` or `refuse`. Until
the answer comes the link processes no frame, and what it buffers is bounded.

An error is final: the link is dead, and every call but `data_to_send` raises the error again. An
authenticated peer is told why in a last CLOSE among the bytes to send; a stranger is sent nothing.
An end of stream without CLOSE is a loss.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame
from sealring_protocol.codec.messages import Close, Message, Ping, Pong
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
)
from sealring_protocol.limits import (
    HANDSHAKE_TIMEOUT,
    INIT_TIMEOUT,
    MAX_CLOCK_SKEW_MS,
    MAX_UNSENT,
    MIN_FRAME_RATE,
)
from sealring_protocol.link_events import (
    Hop,
    LinkClosed,
    LinkEvent,
    LinkUp,
    PeerProved,
    RosterReceived,
)
from sealring_protocol.links.link_handshake import NOTHING, LinkHandshake, LinkMove, LinkState
from sealring_protocol.security import handshake as hs
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.roles import Purpose

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

_HOUSEKEEPING: Final = frozenset({Ping, Pong, Close})


class Link(LinkHandshake):
    """One end of one link, made by `dial` or `accept`. Times are monotonic seconds."""

    @property
    def key_updates(self) -> int:
        """Key updates of both directions since the link came up."""
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
        """The end that dials *peer* (node id). *wall_ms* is the time of day in milliseconds since
        1970; *entropy* is 96 random bytes.

        Raises `LocalProtocolError` if the peer is no member, or is this node.
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
        """The end that was dialed from the address *source*. *wall_ms* is the time of day in
        milliseconds since 1970; *entropy* is 32 random bytes."""
        handshake = hs.Responder(config, wall_ms, entropy, admission.replay)
        return cls(config, handshake, partial(admission.take_signature, source), now, wall_ms)

    # ---------------------------------------------------------------- in, out

    @property
    def established(self) -> bool:
        """True if messages may be sent."""
        return self._state.state is LinkState.UP

    @property
    def has_data_to_send(self) -> bool:
        """True if `data_to_send` has bytes to give."""
        return bool(self._out)

    @property
    def lacking(self) -> int:
        """Bytes missing from the frame under way; 0 between frames. A reader that reads about this
        many at a time is not slowed down by thousands of small frames."""
        return self._decoder.lacking

    def data_to_send(self) -> bytes | bytearray:
        """Take all bytes that wait. The caller sends them in order, or gives up the link."""
        out = self._out
        self._unsent = 0
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def receive_data(self, data: bytes, now: float) -> None:
        """*data* came in. Raises `LimitExceeded` if a paused link cannot hold it, or the link's
        last error."""
        if self._error is not None:
            raise self._error
        self._now = now
        if self._state.state is LinkState.CLOSED:
            return
        self._decoder.receive_data(data)
        quiet = now - self._opened
        # Bytes of a long frame count as signs of life only at a minimum rate.
        patience = self.keepalive.patience.seconds(now)
        if quiet <= patience or quiet <= patience + self._decoder.awaited / MIN_FRAME_RATE:
            self.keepalive.heard(now)
        if self._state.state is LinkState.HANDSHAKE:
            self._check_room()

    def receive_eof(self) -> None:
        """The stream ended. Raises `ConnectionLost` unless CLOSE had come."""
        self._check_alive()
        if self._state.state is not LinkState.CLOSED:
            told = "the connection ended without CLOSE"
            if self._handshake.state is hs.InitiatorState.WAIT_RESP:
                told = (
                    "the peer ended the handshake without a word. Perhaps the two clocks are more "
                    "than 2 minutes apart, or it has another roster or key; its log says which"
                )
            elif self._outranked():
                self.put_out = True
                told = f"{told}; the peer holds a newer roster, perhaps without this node"
            self._die(ConnectionLost(told))

    def next_event(self) -> LinkEvent | None:
        """The next event; None until more data or an answer comes.

        Raises `RemoteProtocolError`, or a subclass, for what the peer may not do.
        """
        while not self._events:
            state = self._state.state
            if self._error is not None:
                raise self._error
            if state is LinkState.CLOSED or (state is LinkState.HANDSHAKE and self._paused()):
                return None
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return None
                if state is LinkState.UP:
                    event = self._message(frame)
                    if event is not None:
                        return event
                else:
                    self._before_up(frame)
            except RemoteProtocolError as error:
                self._die(error)
        return self._events.popleft()

    def send(self, message: Message) -> None:
        """Seal *message* for sending. Raises `LocalProtocolError` if it may not be sent now or does
        not fit, and `LimitExceeded` if the peer leaves too much unread."""
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
        """Close both directions, and tell the peer why. Nothing may be sent afterwards."""
        self._check_alive()
        if self._state.state is LinkState.CLOSED:
            return
        self._say_close(code, reason)
        self._handshake.close()
        self._state.fire(LinkMove.CLOSE)
        self._may_send = NOTHING

    def fail(self, error: SealringError) -> None:
        """The owner found *error*, the peer's or its own: the link dies, and tells the peer."""
        if self._error is None:
            self._bury(error)

    # ----------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None on a link that is over."""
        state = self._state.state
        if state is LinkState.DEAD or state is LinkState.CLOSED:
            return None
        if state is LinkState.HANDSHAKE:
            early = self._handshake.state is hs.ResponderState.WAIT_INIT
            return self._started + (INIT_TIMEOUT if early else HANDSHAKE_TIMEOUT)
        return min(self.keepalive.deadline, self._expires)

    def handle_timeout(self, now: float) -> None:
        """Send a PING if it is due. Raises `PeerTimeout` or `RosterExpired` if the link's time is
        over."""
        self._check_alive()
        deadline = self.next_timeout()
        if deadline is None or now < deadline:
            return
        self._now = now
        if self._state.state is LinkState.HANDSHAKE:
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
        """The message in *frame* of an established link; None if the link handled it itself."""
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
                early = self._now + MAX_CLOCK_SKEW_MS / 1000 < self._expires
                self.put_out = code == CloseCode.ROSTER_EXPIRED and early
                self._handshake.close()
                self._state.fire(LinkMove.CLOSE)
                self._may_send = NOTHING
                return LinkClosed(code, reason)
        return None
