"""The responder of a handshake, which was dialed. See `security.handshake` for how to drive it."""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import (
    AEAD_TAG,
    MAX_FIN_BODY,
    MAX_REASON,
    MAX_SEALED_BODY,
)
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake_base import Closed, Handshake, fatal
from sealring_protocol.security.handshake_messages import (
    INIT_BODY,
)
from sealring_protocol.security.handshake_values import (
    HandshakeConfig,
    PeerRefused,
    PeerVerified,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.security.responder_stages import (
    WaitAdmit,
    WaitEncapsulation,
    WaitFin,
    WaitInit,
    WaitSignature,
    WaitStore,
)
from sealring_protocol.table import Table

ENTROPY: Final = 32
"""Bytes of entropy for one answer: an X25519 key."""

CLOSE_BODY: Final = 1 + 2 + 2 + MAX_REASON + AEAD_TAG
"""Bytes of the longest CLOSE body. No other sealed frame may come before the link is up."""


class State(enum.Enum):
    """The state of a responder, named for what it waits for."""

    WAIT_INIT = enum.auto()
    WAIT_ENCAPSULATION = enum.auto()
    WAIT_SIGNATURE = enum.auto()
    WAIT_FIN = enum.auto()
    WAIT_STORE = enum.auto()
    WAIT_ADMIT = enum.auto()
    ESTABLISHED = enum.auto()
    CLOSED = enum.auto()
    DEAD = enum.auto()


class Event(enum.Enum):
    """What changes a responder's state."""

    INIT_ADMITTED = enum.auto()
    ENCAPSULATED = enum.auto()
    SIGNED = enum.auto()
    FIN_VERIFIED = enum.auto()
    FIN_WITH_ROSTER = enum.auto()
    FIN_REFUSED = enum.auto()
    STORED = enum.auto()
    ADMIT = enum.auto()
    REFUSE = enum.auto()
    CLOSE = enum.auto()
    FAIL = enum.auto()


TABLE: Final[Table[State, Event]] = {
    (State.WAIT_INIT, Event.INIT_ADMITTED): State.WAIT_ENCAPSULATION,
    (State.WAIT_INIT, Event.FAIL): State.DEAD,
    (State.WAIT_ENCAPSULATION, Event.ENCAPSULATED): State.WAIT_SIGNATURE,
    (State.WAIT_ENCAPSULATION, Event.FAIL): State.DEAD,
    (State.WAIT_SIGNATURE, Event.SIGNED): State.WAIT_FIN,
    (State.WAIT_SIGNATURE, Event.FAIL): State.DEAD,
    (State.WAIT_FIN, Event.FIN_VERIFIED): State.WAIT_ADMIT,
    (State.WAIT_FIN, Event.FIN_WITH_ROSTER): State.WAIT_STORE,
    (State.WAIT_FIN, Event.FIN_REFUSED): State.CLOSED,
    (State.WAIT_FIN, Event.FAIL): State.DEAD,
    (State.WAIT_STORE, Event.STORED): State.WAIT_ADMIT,
    (State.WAIT_STORE, Event.REFUSE): State.CLOSED,
    (State.WAIT_STORE, Event.CLOSE): State.CLOSED,
    (State.WAIT_STORE, Event.FAIL): State.DEAD,
    (State.WAIT_ADMIT, Event.ADMIT): State.ESTABLISHED,
    (State.WAIT_ADMIT, Event.REFUSE): State.CLOSED,
    (State.WAIT_ADMIT, Event.CLOSE): State.CLOSED,
    (State.WAIT_ADMIT, Event.FAIL): State.DEAD,
    (State.ESTABLISHED, Event.CLOSE): State.CLOSED,
    (State.ESTABLISHED, Event.FAIL): State.DEAD,
}
"""The legal moves of a responder."""


class Responder(Handshake[State, Event]):
    """The end that was dialed.

    *wall_ms* is the time of day in milliseconds since 1970. *entropy* has `ENTROPY` random bytes.
    All responders of the node share *replay*. Raises `LocalProtocolError` if *entropy* has another
    length.
    """

    FAIL = Event.FAIL
    CLOSE = Event.CLOSE
    LIMITS: ClassVar = {
        State.WAIT_INIT: {FrameKind.HANDSHAKE: INIT_BODY},
        State.WAIT_ENCAPSULATION: {},
        State.WAIT_SIGNATURE: {},
        State.WAIT_FIN: {FrameKind.HANDSHAKE: MAX_FIN_BODY},
        State.WAIT_STORE: {FrameKind.SEALED: CLOSE_BODY},
        State.WAIT_ADMIT: {FrameKind.SEALED: CLOSE_BODY},
        State.ESTABLISHED: {FrameKind.SEALED: MAX_SEALED_BODY},
        State.CLOSED: {},
        State.DEAD: {},
    }

    __slots__ = ()

    def __init__(
        self, config: HandshakeConfig, wall_ms: int, entropy: bytes, replay: ReplayCache
    ) -> None:
        if len(entropy) != ENTROPY:
            raise LocalProtocolError(f"answering takes {ENTROPY} bytes of entropy")
        stage = WaitInit(config, wall_ms, replay, entropy)
        super().__init__(TABLE, State.WAIT_INIT, stage)

    @fatal
    def receive(self, frame: Frame) -> None:
        """A handshake frame came. Raises `RemoteProtocolError` or a subclass."""
        stage = self._stage
        if isinstance(stage, WaitInit):
            request, following = stage.receive(frame)
            self._advance(Event.INIT_ADMITTED, following)
            self._events.append(request)
        elif isinstance(stage, WaitFin):
            self._receive_fin(stage, frame)
        else:
            raise RemoteProtocolError(f"a handshake frame came in {self.state.name}")

    def _receive_fin(self, stage: WaitFin, frame: Frame) -> None:
        fin = stage.receive(frame)
        self._events.append(PeerVerified(fin.secrets))
        try:
            stage.check_terms(fin)
        except RemoteProtocolError as error:
            self._advance(Event.FIN_REFUSED, Closed())
            self._events.append(PeerRefused(error))
            return
        admit = stage.admittable(fin)
        if fin.claims.roster:
            self._advance(Event.FIN_WITH_ROSTER, WaitStore(admit))
            self._events.append(RosterReceived(fin.roster))
        else:
            self._advance(Event.FIN_VERIFIED, admit)

    @fatal
    def provide_encapsulation(self, ciphertext: bytes, shared_secret: bytes) -> None:
        """The answer to `EncapsulationRequested`."""
        stage = self._current(WaitEncapsulation, Event.ENCAPSULATED)
        following = stage.encapsulated(ciphertext, shared_secret)
        self._advance(Event.ENCAPSULATED, following)
        self._events.append(SignatureRequested(following.payload))

    @fatal
    def provide_signature(self, signature: bytes) -> None:
        """The answer to `SignatureRequested`: send RESP."""
        resp, following = self._current(WaitSignature, Event.SIGNED).resp(signature)
        self._advance(Event.SIGNED, following)
        self._out.append(resp)

    @fatal
    def stored(self) -> None:
        """The answer to `RosterReceived`: the roster is stored."""
        stage = self._current(WaitStore, Event.STORED)
        self._advance(Event.STORED, stage.admit)

    @fatal
    def admit(self) -> Accept:
        """Admit the peer. The ACCEPT that this returns is the first frame to seal."""
        stage = self._current(WaitAdmit, Event.ADMIT)
        self._advance(Event.ADMIT, stage.established)
        self._events.append(stage.established)
        return stage.accept()

    @fatal
    def refuse(self) -> None:
        """Refuse the peer, for example as a duplicate. The caller sends CLOSE with the reason."""
        self._advance(Event.REFUSE, Closed())
