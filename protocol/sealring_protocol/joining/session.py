"""One connection by which a machine joins: bytes in, events out; decisions in, sealed bytes out.

`JoinSession.ask` is the newcomer's end and `JoinSession.answer` the inviter's. Feed it
`receive_data`, take `next_event` until that gives None, and send what `data_to_send` gives. It asks
for signatures and an encapsulation as a link does. Then the newcomer gets `InviterProved`, and the
inviter `Introduced`: it answers with `admit` or `close`, however long a person takes. The newcomer
gets `Admitted`, stores that, and calls `stored`; the inviter then gets `Joined`. An error is final:
every later call raises it.

Both ends send PINGs meanwhile: either notices within `JOIN_PATIENCE` that the other is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn, Self

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Admit, Close, Joined, Message, Ping, Pong
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    Declined,
    LimitExceeded,
    LocalProtocolError,
    PeerTimeout,
    RoleViolation,
    SealringError,
    wire_code,
)
from sealring_protocol.joining.exchange import (
    Admitted,
    Host,
    Introduced,
    Inviter,
    InviterProved,
    InviterState,
    Joiner,
    JoinerState,
    JoinSecrets,
    Newcomer,
)
from sealring_protocol.joining.invitation import USED, Invitation, Invitations
from sealring_protocol.limits import HANDSHAKE_TIMEOUT, JOIN_PATIENCE, MAX_CLOCK_SKEW_MS
from sealring_protocol.link import Keepalive, LinkClosed, Patience
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import OpeningChannel, SealingChannel
from sealring_protocol.words import lasting

JoinEvent = (
    EncapsulationRequested
    | SignatureRequested
    | InviterProved
    | Introduced
    | Admitted
    | Joined
    | LinkClosed
)

_WAITS: Final = (
    JoinerState.WAIT_SIGNATURE,
    InviterState.WAIT_ENCAPSULATION,
    InviterState.WAIT_SIGNATURE,
)
"""States in which no frame may come: the other end waits for this one."""

STILL_GOOD: Final = "; the invitation is still good"
"""How the reason ends for which a machine is sent away without taking its invitation."""


class JoinSession:
    """One end of one join. Times are monotonic seconds, and milliseconds since 1970."""

    def __init__(
        self,
        role: Joiner | Inviter,
        spend: Callable[[float], None],
        invitations: Invitations | None,
        now: float,
        wall_ms: int,
    ) -> None:
        self._role = role
        self._spend = spend
        self._invitations = invitations
        self._taken: Invitation | None = None  # which the newcomer of this session holds
        self._newcomer = b""  # the node id of that newcomer
        self._own = b""  # the node id of an inviter
        self._decoder = FrameDecoder(role.frame_limits)
        self._events: deque[JoinEvent] = deque()
        self._out: list[bytes | bytearray] = []
        self._keepalive = Keepalive(now)
        self._keepalive.patience = Patience(JOIN_PATIENCE)
        self._sealer: SealingChannel | None = None
        self._opener: OpeningChannel | None = None
        self._error: SealringError | None = None
        self._closed = False
        self._started = self._now = now
        self._wall_offset_ms = wall_ms - round(now * 1000)

    @classmethod
    def ask(
        cls,
        invitation: Invitation,
        newcomer: Newcomer,
        now: float,
        wall_ms: int,
        entropy: bytes,
        suites: tuple[Suite, ...] = tuple(Suite),
    ) -> Self:
        """The end of *newcomer*, which holds *invitation*. *entropy* is `JOINER_ENTROPY` random
        bytes."""
        role = Joiner(invitation, newcomer, wall_ms, entropy, suites)
        session = cls(role, lambda _: None, None, now, wall_ms)
        role.dial()
        session._follow()
        return session

    @classmethod
    def answer(
        cls, host: Host, invitations: Invitations, now: float, wall_ms: int, entropy: bytes
    ) -> Self:
        """The end of *host*, which has given *invitations*. *entropy* is `INVITER_ENTROPY` random
        bytes."""
        role = Inviter(host, invitations, wall_ms, entropy)
        session = cls(role, invitations.spend, invitations, now, wall_ms)
        session._own = node_id(host.signer_public_key)
        return session

    # ---------------------------------------------------------------- in, out

    @property
    def introduced(self) -> bool:
        """True once both ends have proved what they have to."""
        return self._sealer is not None

    @property
    def known(self) -> bool:
        """True, at the inviter, once the newcomer has shown an invitation in JOIN_INIT."""
        return self._role.state is not InviterState.WAIT_INIT

    def data_to_send(self) -> bytes:
        """Take all bytes that wait."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive_data(self, data: bytes, now: float) -> None:
        """*data* came in. Raises the last error of a session that has failed."""
        self._check_alive()
        self._now = now
        if self._closed:
            return
        self._decoder.receive_data(data)
        self._keepalive.heard(now)
        self._waits()

    def receive_eof(self) -> None:
        """The stream ended. Raises `ConnectionLost` unless CLOSE had come."""
        self._check_alive()
        if self._closed:
            return
        reason = "the connection ended"
        if self._role.state is JoinerState.WAIT_RESP:
            reason = (
                "it ended the connection without a word. It has given no such invitation, has "
                "forgotten it because it expired long ago, or was started again since"
            )
        self._die(ConnectionLost(reason))

    def next_event(self) -> JoinEvent | None:
        """The next event; None until more data or an answer comes. Raises `RemoteProtocolError`,
        or a subclass, for what the other end may not do."""
        while not self._events:
            self._check_alive()
            if self._closed or self._waits():
                return None
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return None
                self._frame(frame)
            except SealringError as error:
                self._die(error)
        return self._events.popleft()

    # ---------------------------------------------------------------- answers

    def provide_encapsulation(self, ciphertext: bytes, secret: bytes, now: float) -> None:
        """The answer to `EncapsulationRequested`."""
        self._do(lambda: self._inviter().provide_encapsulation(ciphertext, secret), now)

    def provide_signature(self, signature: bytes, now: float) -> None:
        """The answer to `SignatureRequested`: 64 bytes r || s, low s."""
        self._do(lambda: self._role.provide_signature(signature), now)

    def admit(self, admit: Admit, now: float) -> None:
        """The answer to `Introduced`: the newcomer may join, and gets *admit*. From now on no other
        machine can join with its invitation. Raises `LocalProtocolError`, and changes nothing, if
        *admit* is beyond a limit."""
        self._check_alive()
        encode(admit)
        self._do(self._inviter().admit, now)
        if self._invitations is not None and self._taken is not None:
            self._invitations.admitted(self._taken, self._newcomer)
        self._send(admit)

    def stored(self, now: float) -> None:
        """The answer to `Admitted`: it is stored. The newcomer has joined."""
        if not isinstance(self._role, Joiner):
            raise LocalProtocolError("only the newcomer stores what it was given")
        self._do(self._role.stored, now)
        self._send(Joined())

    def close(self, code: CloseCode, reason: str) -> None:
        """End the session, and send the reason if the other end has proved who it is."""
        self._check_alive()
        if self._closed:
            return
        if self.introduced:
            self._send(Close(code, reason))
            self._role.close()
        self._shut()

    # ----------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None if the session is over."""
        if self._closed or self._error is not None:
            return None
        return self._keepalive.deadline if self.introduced else self._started + HANDSHAKE_TIMEOUT

    def handle_timeout(self, now: float) -> None:
        """Send a PING if it is due. Raises `PeerTimeout` if the other end has been silent for too
        long."""
        self._check_alive()
        deadline = self.next_timeout()
        if deadline is None or now < deadline:
            return
        self._now = now
        if not self.introduced:
            self._die(PeerTimeout(f"no answer within {now - self._started:.0f} s"))
        try:
            ping = self._keepalive.overdue(now)
        except PeerTimeout as error:
            self._die(error)
        self._send(ping)

    # ----------------------------------------------------------------- inside

    def _inviter(self) -> Inviter:
        if not isinstance(self._role, Inviter):
            raise LocalProtocolError("only the inviter can do that")
        return self._role

    def _waits(self) -> bool:
        """True if this end has to answer before the next frame, and the other end to wait."""
        waits = self._role.state in _WAITS
        if waits and self._decoder.buffered:
            self._die(LimitExceeded("data came while this end has to answer"))
        return waits

    def _wall_ms(self) -> int:
        return self._wall_offset_ms + round(self._now * 1000)

    def _frame(self, frame: Frame) -> None:
        if frame.kind == FrameKind.HANDSHAKE:
            self._role.receive(frame)
        elif self._opener is not None:
            self._message(decode(self._opener.open(frame)))
        self._follow()

    def _message(self, message: Message) -> None:
        role = self._role
        match message:
            case Ping():
                self._send(self._keepalive.ping(message, self._now))
            case Pong():
                self._keepalive.pong(message, self._now)
            case Close(code, reason):
                role.close()
                self._events.append(LinkClosed(code, reason))
                self._shut()
            case Admit() if isinstance(role, Joiner):
                role.receive_admit(message, self._wall_ms())
            case Joined() if isinstance(role, Inviter):
                role.receive_joined()
                if self._invitations is not None and self._taken is not None:
                    self._invitations.end(self._taken, USED)
                self._events.append(message)
            case _:
                raise RoleViolation(f"{message.CODE.name} has no place in a join")

    def _do(self, action: Callable[[], None], now: float) -> None:
        self._check_alive()
        if self._closed:
            raise LocalProtocolError("this join is over: one of its ends has closed it")
        self._now = now
        try:
            action()
            self._follow()
        except SealringError as error:
            self._die(error)

    def _follow(self) -> None:
        """Take the role's bytes and events, and apply the frame limits of its state."""
        if data := self._role.data_to_send():
            self._out.append(data)
        while (event := self._role.next_event()) is not None:
            match event:
                case EncapsulationRequested():
                    self._spend(self._now)
                case InviterProved(secrets=secrets):
                    self._seal(secrets)
                case Introduced(secrets=secrets):
                    self._seal(secrets)
                    if not self._may_join(event):
                        continue
            self._events.append(event)
        self._decoder.set_limits(self._role.frame_limits)

    def _may_join(self, event: Introduced) -> bool:
        """Close the session of a newcomer that cannot join, whoever decides; else take its
        invitation."""
        invitations, invitation = self._invitations, event.invitation
        newcomer = event.newcomer.id
        if invitations is None:
            return False
        if newcomer == self._own:
            why = (
                "the machine that joins has the inviter's own key. It is the same machine, or its "
                f"folder is a copy: remove the copy's node.key, and a new one is made{STILL_GOOD}"
            )
        elif abs(event.skew_ms) > MAX_CLOCK_SKEW_MS:
            side = "ahead of" if event.skew_ms > 0 else "behind"
            apart = lasting(abs(event.skew_ms) / 1000)
            why = (
                f"the clock of the machine that joins is {apart} {side} the inviter's: set the one "
                f"that is wrong{STILL_GOOD}"
            )
        else:
            why = invitations.fault(invitation, self._wall_ms(), newcomer)
        if why:
            self._die(JoinRefused(why, event.newcomer))
        invitations.take(invitation)
        self._taken, self._newcomer = invitation, newcomer
        return True

    def _seal(self, secrets: JoinSecrets) -> None:
        self._sealer = SealingChannel(secrets.suite, secrets.send)
        self._opener = OpeningChannel(secrets.suite, secrets.receive)

    def _send(self, message: Message) -> None:
        if self._sealer is None:
            raise LocalProtocolError(f"{message.CODE.name} cannot be sent yet")
        self._out.append(self._sealer.seal(encode(message)))

    # ------------------------------------------------------------------ death

    def _shut(self) -> None:
        self._closed = True
        if self._invitations is not None and self._taken is not None:
            self._invitations.give_back(self._taken)
        self._taken = None
        self._sealer = self._opener = None

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _die(self, error: SealringError) -> NoReturn:
        """End the session with *error*, and raise it. Whoever has proved himself hears of it."""
        if self._error is None:
            if self._sealer is None:
                self._out.clear()
            elif not isinstance(error, ConnectionLost):
                self._send(Close(wire_code(error), str(error)))
            self._error = error
            error.__context__ = None  # it would keep frames of the stack alive, and keys in them
            self._events.clear()
            if not self._role.over:
                self._role.fail(error)
            self._shut()
        raise error


class JoinRefused(Declined):
    """*newcomer* cannot join, because of the reason."""

    def __init__(self, reason: str, newcomer: Newcomer) -> None:
        super().__init__(reason)
        self.newcomer = newcomer
