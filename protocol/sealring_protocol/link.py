"""One connection to one peer: bytes in, messages out; messages in, sealed bytes out.

A link is the frame decoder, the handshake and then two sealed channels, with
keepalive, deadlines and limits around them. Feed it `receive_data`, take `next_event` until that
gives None, and send what `data_to_send` gives. Three events ask for work (a signature, an
encapsulation, storing a roster); one, `PeerProved`, asks for a decision, `admit` or `refuse`. Until
the answer comes the link processes no frame, and what it buffers is bounded.

An error is final: the link is dead, and every call but `data_to_send` raises the error again. An
authenticated peer gets the reason in a last CLOSE among the bytes to send; a stranger gets nothing.
An end of stream without CLOSE is a loss.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

import attrs

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Accept, Close, Message, Ping, Pong, Progress
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
from sealring_protocol.limits import (
    FRAME_HEADER,
    HANDSHAKE_TIMEOUT,
    INIT_TIMEOUT,
    LONGEST_PATIENCE,
    MAX_CLOCK_SKEW_MS,
    MAX_SEALED_BODY,
    MAX_UNANSWERED_PINGS,
    MAX_UNSENT,
    MIN_FRAME_RATE,
    PING_INTERVAL,
    PING_TIMEOUT,
    PINGS_PER_SECOND,
)
from sealring_protocol.security import handshake as hs
from sealring_protocol.security.admission import Admission, TokenBucket
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.security.initiator import Initiator
from sealring_protocol.security.initiator import State as InitiatorState
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.responder import Responder
from sealring_protocol.security.responder import State as ResponderState
from sealring_protocol.security.roles import Purpose, allowed
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import OpeningChannel, SealingChannel
from sealring_protocol.table import Machine, Table

PAUSE_SECONDS: Final = 600.0
"""Seconds for which a pause is remembered."""


class Patience:
    """The seconds that one peer may be silent, at least *floor*. Times are monotonic seconds.

    Patience is the silence allowed to a peer. It is short on a calm network, so that a dead
    machine is noticed soon. It grows with the round-trip time (RFC 6298, section 2), and to
    twice the pause for a while after a peer has paused and come back. It belongs to the peer
    and outlives its links, so a pause that cost a link counts as well.
    """

    __slots__ = ("_floor", "_pause", "_paused_at", "_srtt", "_variation")

    def __init__(self, floor: float = PING_TIMEOUT) -> None:
        self._floor = floor
        self._srtt: float | None = None
        self._variation = 0.0
        self._pause = 0.0
        self._paused_at = -math.inf

    def copy(self) -> Patience:
        """A copy with the same measurements, which then changes independently."""
        other = Patience(self._floor)
        other._srtt, other._variation = self._srtt, self._variation
        other._pause, other._paused_at = self._pause, self._paused_at
        return other

    def measured(self, rtt: float) -> None:
        """A round trip took *rtt* seconds."""
        if self._srtt is None:
            self._srtt, self._variation = rtt, rtt / 2
            return
        self._variation += (abs(self._srtt - rtt) - self._variation) / 4
        self._srtt += (rtt - self._srtt) / 8

    def paused(self, seconds: float, now: float) -> None:
        """The peer came back after *seconds* of silence."""
        if seconds >= self._pause or now - self._paused_at > PAUSE_SECONDS:
            self._pause, self._paused_at = seconds, now

    def seconds(self, now: float) -> float:
        """Seconds without a byte after which the peer is lost."""
        wanted = 0.0
        if self._srtt is not None:
            wanted = PING_INTERVAL + self._srtt + 4 * self._variation
        if now - self._paused_at <= PAUSE_SECONDS:
            wanted = max(wanted, 2 * self._pause)
        return max(self._floor, min(wanted, LONGEST_PATIENCE))


class Keepalive:
    """The keepalive of one link, in both directions. Times are monotonic seconds.

    A PING is due after `PING_INTERVAL` without a byte from the peer; where `reported` is
    set, without a report of its progress. The peer is lost if the
    rest of its patience then passes without a byte. That rest is counted from the PING, so a
    node that was itself asleep does not blame its peers. PONGs answer PINGs in order, each
    once.
    """

    __slots__ = (
        "_asked",
        "_budget",
        "_echo",
        "_pinged",
        "heard_at",
        "patience",
        "peer_progress",
        "progress",
        "reported",
        "rtt",
    )

    def __init__(self, now: float) -> None:
        self.progress = Progress()
        """This node's progress, as PINGs and PONGs report it."""
        self.peer_progress = Progress()
        """The peer's progress, as it last reported it."""
        self.rtt: float | None = None
        """The latest round-trip time, in seconds; None before the first PONG."""
        self.patience = Patience()
        """The patience with this peer. The owner of several links lets them share one."""
        self.heard_at = now
        """When bytes last came from the peer."""
        self.reported: float | None = None
        """When the peer last reported, or was asked to. None on a link that asks only a silent
        peer. Set it to now where other messages come without end, as those for a head's lease."""
        self._pinged: float | None = None  # when a PING was sent, if nothing came since
        self._asked: deque[tuple[int, float]] = deque()  # PINGs that wait for their PONG
        self._echo = 0
        self._budget = TokenBucket(PINGS_PER_SECOND, now)

    def heard(self, now: float) -> None:
        """Bytes came from the peer."""
        if self._pinged is not None:
            self.patience.paused(PING_INTERVAL + now - self._pinged, now)
        self.heard_at = now
        self._pinged = None

    @property
    def peer_starved(self) -> float | None:
        """Seconds that the peer's engine has starved in all, as the peer reports; None before it
        does."""
        return None if self.rtt is None else self.peer_progress.starved_us / 1e6

    @property
    def deadline(self) -> float:
        """When to call `overdue`: a PING is due, or the peer is lost."""
        if self._pinged is None:
            since = self.heard_at if self.reported is None else self.reported
            return since + PING_INTERVAL
        return self._pinged + self.patience.seconds(self._pinged) - PING_INTERVAL

    def overdue(self, now: float) -> Ping:
        """The deadline has passed. Returns the PING to send. Raises `PeerTimeout` if the last PING
        brought no bytes, or too many PINGs have no PONG."""
        if self._pinged is not None:
            raise PeerTimeout(f"not a byte for {now - self.heard_at:.1f} s")
        if len(self._asked) >= MAX_UNANSWERED_PINGS:
            raise PeerTimeout(f"{len(self._asked)} PINGs without an answer")
        self._pinged = now
        self._report_came(now)
        self._echo += 1
        self._asked.append((self._echo, now))
        return Ping(self._echo, self.progress)

    def ping(self, ping: Ping, now: float) -> Pong:
        """The answer to the peer's *ping*. Raises `LimitExceeded` if there are too many PINGs."""
        if not self._budget.take(now):
            raise LimitExceeded(f"more than {PINGS_PER_SECOND} PINGs a second")
        self.peer_progress = ping.progress
        self._report_came(now)
        return Pong(ping.echo, self.progress)

    def pong(self, pong: Pong, now: float) -> None:
        """The peer answered a PING. Raises `RemoteProtocolError` if *pong* answers none, or not the
        oldest."""
        if not self._asked or self._asked[0][0] != pong.echo:
            raise RemoteProtocolError("PONG to no PING")
        self.rtt = now - self._asked.popleft()[1]
        self.patience.measured(self.rtt)
        self.peer_progress = pong.progress
        self._report_came(now)

    def _report_came(self, now: float) -> None:
        if self.reported is not None:
            self.reported = now


__all__ = [
    "EncapsulationRequested",
    "Hop",
    "Link",
    "LinkClosed",
    "LinkEvent",
    "LinkOpened",
    "PeerProved",
    "RosterReceived",
    "SignatureRequested",
]


@attrs.frozen
class Hop:
    """The activation secrets of a link, 32 bytes each, as this end sees them, and their suite."""

    suite: Suite
    send: bytes = attrs.field(repr=False)
    receive: bytes = attrs.field(repr=False)


@attrs.frozen
class PeerProved:
    """The dialing *peer* (node id) is authenticated: call `admit` or `refuse`."""

    peer: bytes
    instance: int
    purpose: Purpose
    roster: SignedRoster = attrs.field(repr=False)
    """The roster that authorized the peer. Check that it is still in force."""


@attrs.frozen
class LinkOpened:
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
    | LinkOpened
    | LinkClosed
    | Message
)


# Bytes that may be buffered in states that take no frame. While one end signs or encapsulates,
# the other has nothing to send; while the initiator stores a roster, data may be under way.
_PAUSED: Final = {
    ResponderState.WAIT_ENCAPSULATION: 0,
    ResponderState.WAIT_SIGNATURE: 0,
    InitiatorState.WAIT_SIGNATURE: 0,
    InitiatorState.WAIT_STORE: FRAME_HEADER + MAX_SEALED_BODY,
}


class LinkState(enum.Enum):
    """The state of a link."""

    HANDSHAKE = "handshake"
    UP = "up"
    CLOSED = "closed"
    DEAD = "dead"


class LinkMove(enum.Enum):
    """What changes the state. UP: both ends are authenticated. CLOSE: either end sent CLOSE. FAIL:
    an error."""

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
"""The messages that may travel while the link is not up: none."""


_HOUSEKEEPING: Final = frozenset({Ping, Pong, Close})


class Link:
    """One end of one link, made by `dial` or `accept`. Times are monotonic seconds.

    Until both ends hold the same roster, frames go to the handshake, and what that asks for goes to
    the owner as events. While an answer is missing no frame is processed, and no more is buffered
    than the state can use. The two sealed channels exist once the peer is verified. From then on a
    refused or faulty peer gets the reason. Before that, a dying link sends nothing.
    """

    def __init__(
        self,
        config: hs.HandshakeConfig,
        handshake: Initiator | Responder,
        spend: Callable[[float], None],
        now: float,
        wall_ms: int,
    ) -> None:
        self.keepalive = Keepalive(now)
        """The keepalive: `progress` is reported to the peer; `rtt` and `peer_progress` come from
        it."""
        self.suite: Suite | None = None
        self._config = config
        self._roster = config.roster
        self._handshake = handshake
        self._spend = spend  # takes a signature from the budget, at a time
        self._decoder = FrameDecoder(handshake.frame_limits)
        self._events: deque[LinkEvent] = deque()
        self._out: list[bytes | bytearray] = []
        self._unsent = 0
        self._state = Machine(LINK_TABLE, LinkState.HANDSHAKE)
        self._error: SealringError | None = None  # why the link is DEAD
        self._secrets: hs.Secrets | None = None
        self._sealer: SealingChannel | None = None
        self._opener: OpeningChannel | None = None
        self._may_send = self._may_receive = NOTHING
        self._started = self._now = now
        self._opened = now  # when the last frame came
        self._wall_offset = wall_ms / 1000 - now
        self._expires = float("inf")
        self.put_out = False
        """True if the peer seems to hold a newer roster that does not name this node."""

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
    ) -> Self:
        """The end that dials *peer* (node id). *wall_ms* is the time of day in milliseconds since
        1970; *entropy* is 96 random bytes.

        Raises `LocalProtocolError` if the peer is no member, or is this node.
        """
        handshake = Initiator(config, peer, purpose, wall_ms, entropy)
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
    ) -> Self:
        """The end that was dialed from the address *source*. *wall_ms* is the time of day in
        milliseconds since 1970; *entropy* is 32 random bytes."""
        handshake = Responder(config, wall_ms, entropy, admission.replay)
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
            reason = "the connection ended without CLOSE"
            if self._handshake.state is InitiatorState.WAIT_RESP:
                reason = (
                    "the peer ended the handshake without a word. Perhaps the two clocks are more "
                    "than 2 minutes apart, or it has another roster or key; its log says which"
                )
            elif self._outranked():
                self.put_out = True
                reason = f"{reason}; the peer holds a newer roster, perhaps without this node"
            self._die(ConnectionLost(reason))

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
        """Close both directions, and send the peer the reason. Nothing may be sent afterwards."""
        self._check_alive()
        if self._state.state is LinkState.CLOSED:
            return
        self._say_close(code, reason)
        self._handshake.close()
        self._state.fire(LinkMove.CLOSE)
        self._may_send = NOTHING

    def fail(self, error: SealringError) -> None:
        """The owner found *error*, the peer's or its own: it dies, and CLOSE has the reason."""
        if self._error is None:
            self._bury(error)

    # ----------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None on a link that is over."""
        state = self._state.state
        if state is LinkState.DEAD or state is LinkState.CLOSED:
            return None
        if state is LinkState.HANDSHAKE:
            early = self._handshake.state is ResponderState.WAIT_INIT
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
        """Admit the authenticated peer: the link is up."""
        self._check_alive()
        self._now = now
        accept = self._responder().admit()
        if self._sealer is not None:
            self._out.append(self._sealer.seal(encode(accept)))
        self._follow()

    def refuse(self, code: CloseCode, reason: str) -> None:
        """Refuse the authenticated peer with *reason*. The link is over: send its data, then hang
        up."""
        self._check_alive()
        self._responder().refuse()
        self._state.fire(LinkMove.CLOSE)
        self._say_close(code, reason)

    def renew(self, roster: SignedRoster) -> None:
        """Let the link last until *roster* expires. Both ends must keep their ranks in it."""
        self._expires = roster.roster.expires_ms / 1000 - self._wall_offset

    @property
    def verified(self) -> bool:
        """True from when the peer is verified until the link is over: it can be sent CLOSE."""
        return self._sealer is not None and self._error is None

    def sent(self, tag: bytes) -> bool:
        """True if this end has sent the INIT with *tag*, and waits for its answer."""
        return isinstance(self._handshake, Initiator) and self._handshake.sent(tag)

    def _outranked(self) -> bool:
        """True if this node has sent FIN, and waits for ACCEPT from a peer that holds a newer
        roster."""
        waits = self._handshake.state is InitiatorState.WAIT_ACCEPT
        if not waits or self._secrets is None:
            return False
        peer = self._secrets.peer
        return self._config.roster.roster.is_behind(peer.serial, peer.digest, peer.mandate)

    def _responder(self) -> Responder:
        if not isinstance(self._handshake, Responder):
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

    # ------------------------------------------------------- the handshake

    def _before_up(self, frame: Frame) -> None:
        if frame.kind == FrameKind.HANDSHAKE:
            self._handshake.receive(frame)
        elif self._opener is not None:
            message = decode(self._opener.open(frame))
            if isinstance(message, Close):
                self._handshake.close()
                self._state.fire(LinkMove.CLOSE)
                self._events.append(LinkClosed(message.code, message.reason))
            elif isinstance(message, Accept) and isinstance(self._handshake, Initiator):
                self._handshake.receive_accept(message)
            else:
                raise RemoteProtocolError(f"{message.CODE.name} came before the link was up")
        self._follow()
        self._ask_admission()

    def _paused(self) -> bool:
        """True if an answer of the owner is needed before the next frame."""
        self._check_room()
        return self._handshake.state in _PAUSED

    def _check_room(self) -> None:
        """Fail a paused link that has buffered more than its state can use."""
        room = _PAUSED.get(self._handshake.state)
        if room is not None and self._decoder.buffered > room:
            self._die(LimitExceeded("data came while the handshake expects none"))

    def _follow(self) -> None:
        """Take the handshake's bytes and events, and apply the frame limits of its state."""
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
            case EncapsulationRequested():
                self._spend(self._now)
                self._events.append(event)
            case SignatureRequested():
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
            case RosterReceived(roster):
                self._roster = roster
                self._events.append(event)
            case hs.Established():
                self._come_up(event)

    def _log_keys(self, secrets: hs.Secrets) -> None:
        if self._config.key_log is not None:
            ways = secrets.send_traffic, secrets.receive_traffic
            ways = ways if isinstance(self._handshake, Initiator) else ways[::-1]
            self._config.key_log(hs.TrafficSecrets(secrets.suite, secrets.transcript, *ways))

    def _ask_admission(self) -> None:
        if self._handshake.state is ResponderState.WAIT_ADMIT and self._secrets is not None:
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
                LinkOpened(
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
        """Make the link dead with *error*, and raise it."""
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
