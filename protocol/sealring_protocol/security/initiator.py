"""The initiator of a handshake, which dials. See `security.handshake` for how to drive it."""

from __future__ import annotations

import enum
from hmac import compare_digest
from typing import ClassVar, Final

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterExpired,
)
from sealring_protocol.limits import AEAD_TAG, MAX_ELECTED, MAX_SEALED_BODY
from sealring_protocol.security.handshake import (
    RESP_BODY,
    Claims,
    Direction,
    Established,
    Exchange,
    Handshake,
    HandshakeConfig,
    HandshakeEvent,
    PeerVerified,
    RosterReceived,
    Secrets,
    SignatureRequested,
    VerifiedPeer,
    admission_key,
    begin,
    both_ways,
    chain,
    encode_fin_claims,
    exchange,
    fatal,
    first_transcript,
    key_exchange,
    open_once,
    parse_resp,
    parse_resp_claims,
    signed_payload,
)
from sealring_protocol.security.keys import SignContext
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, SignedRoster, check_conflict, newer
from sealring_protocol.table import Table

__all__ = ["Initiator", "State"]

# ---------------------------------------------------------------------- initiator stages
# The stages of the initiator: one class per state, holding only what is valid in it.
#
# Each stage makes the next one from what it waits for, or raises. `security.initiator` says which
# event that is, and whether it is legal. A stage is used once.


@attrs.frozen(eq=False)
class Dial:
    """Who dials whom, for what purpose and when: known to every stage."""

    config: HandshakeConfig
    peer: Member
    purpose: Purpose
    wall_ms: int


@attrs.frozen(eq=False)
class Start:
    """Nothing has been sent."""

    dial: Dial
    entropy: bytes = attrs.field(repr=False)

    def init(self) -> tuple[bytes, WaitResp]:
        """INIT, and the stage that waits for its answer."""
        dial, config = self.dial, self.dial.config
        admission = admission_key(config.roster.roster.cluster, dial.peer.public_key)
        x_private, kem_private, init = begin(admission, dial.wall_ms, config.suites, self.entropy)
        return init, WaitResp(dial, x_private, kem_private, init)


@attrs.frozen(eq=False)
class WaitResp:
    """INIT was sent."""

    dial: Dial
    x_private: X25519PrivateKey = attrs.field(repr=False)
    kem_private: MLKEM768PrivateKey = attrs.field(repr=False)
    init: bytes = attrs.field(repr=False)

    def receive(self, frame: Frame) -> WaitSignature:
        """The next stage, if *frame* is the peer's valid RESP. Raises `RemoteProtocolError` or a
        subclass."""
        config, peer = self.dial.config, self.dial.peer
        resp = parse_resp(frame)
        suite = next((suite for suite in config.suites if suite == resp.suite), None)
        if suite is None:
            raise RemoteProtocolError(f"RESP chooses suite {resp.suite}, which was not offered")
        t1 = first_transcript(suite, config.roster.roster.cluster, peer.public_key, self.init)
        t2 = chain(t1, resp.shares)
        kem_secret = self.kem_private.decapsulate(resp.ciphertext)
        keys = key_exchange(suite, kem_secret, exchange(self.x_private, resp.x_public), t2)
        plaintext = open_once(suite, keys.responder_key, resp.sealed, t2)
        claims, proven = parse_resp_claims(plaintext)
        verified = VerifiedPeer(keys, SignContext.RESP, peer.public_key, claims, proven, t2)
        return WaitSignature(
            self.dial, verified, keys, chain(t1, resp.whole), self._own_claims(claims)
        )

    def _own_claims(self, theirs: Claims) -> bytes:
        """The claims of FIN (cI), with the roster if it is newer than the peer's."""
        config = self.dial.config
        own = config.roster.roster
        check_conflict(own, theirs.serial, theirs.digest)
        if own.expired(self.dial.wall_ms) and theirs.serial <= own.serial:
            raise RosterExpired(f"roster {own.serial} has expired, and the peer has none newer")
        is_ahead = own.is_ahead(theirs.serial, theirs.digest, theirs.mandate)
        return encode_fin_claims(
            node_id=config.node_id,
            responder=self.dial.peer.id,
            instance=config.instance,
            serial=own.serial,
            digest=own.digest,
            mandate=own.mandate,
            purpose=self.dial.purpose,
            roster=config.roster.encoded if is_ahead else b"",
        )


@attrs.frozen(eq=False)
class WaitSignature:
    """RESP is verified; FIN waits for its signature."""

    dial: Dial
    peer: VerifiedPeer
    keys: Exchange
    transcript: bytes
    claims: bytes

    @property
    def payload(self) -> bytes:
        """The bytes to sign."""
        return signed_payload(self.keys.suite, SignContext.FIN, self.transcript, self.claims)

    def fin(self, signature: bytes) -> tuple[bytes, Secrets, WaitAccept]:
        """FIN, the secrets of the channels, and the stage that waits for ACCEPT."""
        fin = self.keys.fin(MessageCode.FIN, self.claims, signature, self.transcript)
        t4 = chain(self.transcript, fin)
        own, peer = self.dial.config.node_id, self.peer
        ways = both_ways(self.keys, Direction.TO_RESPONDER, own, peer.id, t4)
        secrets = Secrets(self.keys.suite, peer, self.dial.purpose, t4, *ways)
        return fin, secrets, WaitAccept(self.dial, peer, t4)


@attrs.frozen(eq=False)
class WaitAccept:
    """FIN was sent; only ACCEPT or CLOSE may come."""

    dial: Dial
    peer: VerifiedPeer
    transcript: bytes

    def receive(self, accept: Accept) -> Established | WaitStore:
        """The link; or, if ACCEPT brought a newer roster, the stage in which that is stored."""
        own, peer = self.dial.config.roster, self.peer
        if not compare_digest(accept.transcript, self.transcript):
            raise AuthenticationFailed("ACCEPT is for another transcript")
        if accept.serial != max(peer.serial, own.roster.serial):
            raise RemoteProtocolError(f"ACCEPT names roster {accept.serial}, which neither holds")
        if own.roster.is_behind(peer.serial, peer.digest, peer.mandate):
            return WaitStore(self._established(self._brought(accept)))
        if accept.roster:
            raise RemoteProtocolError("ACCEPT brings a roster that is not newer")
        return self._established(own)

    def _brought(self, accept: Accept) -> SignedRoster:
        config = self.dial.config
        current = config.roster.roster
        ends = (config.node_id, self.peer.id)
        signed = newer(config.coordinator, current, accept.roster, self.dial.wall_ms, *ends)
        brought = signed.roster.serial, signed.roster.digest, signed.roster.mandate
        if brought != (accept.serial, self.peer.digest, self.peer.mandate):
            raise RemoteProtocolError("ACCEPT brings another roster than RESP announced")
        return signed

    def _established(self, roster: SignedRoster) -> Established:
        return Established(self.peer, self.dial.purpose, self.transcript, roster)


@attrs.frozen(eq=False)
class WaitStore:
    """ACCEPT brought a newer roster; the link is up once it is stored."""

    established: Established


ENTROPY: Final = 32 + 64
"""Bytes of entropy for one dial: an X25519 key, and an ML-KEM seed."""

ACCEPT_BODY: Final = 1 + 32 + 8 + 4 + MAX_ELECTED + AEAD_TAG
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


class Initiator(Handshake[State, Event, HandshakeEvent]):
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
