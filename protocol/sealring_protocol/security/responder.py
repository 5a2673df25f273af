"""The responder of a handshake, which was dialed. See `security.handshake` for how to drive it."""

from __future__ import annotations

import contextlib
import enum
import math
from hmac import compare_digest
from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterExpired,
)
from sealring_protocol.limits import (
    AEAD_TAG,
    MAX_CLOCK_SKEW_MS,
    MAX_FIN_BODY,
    MAX_REASON,
    MAX_SEALED_BODY,
)
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake import (
    CIPHERTEXT,
    INIT_BODY,
    Closed,
    Direction,
    EncapsulationRequested,
    Established,
    Exchange,
    Fin,
    FinClaims,
    Handshake,
    HandshakeConfig,
    HandshakeEvent,
    Init,
    InitForAnother,
    PeerRefused,
    PeerVerified,
    Proven,
    RosterReceived,
    Secrets,
    SignatureRequested,
    VerifiedPeer,
    both_ways,
    chain,
    encode_resp_claims,
    encode_shares,
    fatal,
    first_transcript,
    key_exchange,
    open_once,
    parse_fin,
    parse_fin_claims,
    parse_init,
    signed_payload,
    take_init,
)
from sealring_protocol.security.identity import verify
from sealring_protocol.security.keys import SECRET, SignContext, Suite, mac
from sealring_protocol.security.roster import SignedRoster, check_conflict, newer
from sealring_protocol.table import Table
from sealring_protocol.words import lasting

__all__ = ["Responder", "State"]

# ---------------------------------------------------------------------- responder stages
# The stages of the responder: one class per state, holding only what is valid in it.
#
# Each stage makes the next one from what it waits for, or raises. `security.responder` says which
# event that is, and whether it is legal. A stage is used once.


_LONG_SKEW: Final = 600
"""Seconds of clock skew from which an error rounds it to a larger unit. Below, rounding would hide
the excess."""


@attrs.frozen(eq=False)
class WaitInit:
    """A connection came in."""

    config: HandshakeConfig
    wall_ms: int
    replay: ReplayCache = attrs.field(repr=False)
    entropy: bytes = attrs.field(repr=False)

    def receive(self, frame: Frame) -> tuple[EncapsulationRequested, WaitEncapsulation]:
        """What to ask for, and the next stage, if *frame* is a valid INIT to this node. Raises
        `RemoteProtocolError` or a subclass.

        The checks come in order of cost. Only an INIT by a reader of the roster passes the first.
        """
        init = parse_init(frame)
        self._admit(init)
        config = self.config
        request, suite, x_public, x_secret = take_init(init, config.suites, self.entropy)
        cluster = config.roster.roster.cluster
        return request, WaitEncapsulation(
            config,
            self.wall_ms,
            suite,
            x_public,
            x_secret,
            first_transcript(suite, cluster, config.signer_public_key, init.whole),
        )

    def _admit(self, init: Init) -> None:
        if not compare_digest(mac(self.config.admission, init.tagged), init.tag):
            raise InitForAnother(init.tag)
        skew = init.wall_ms - self.wall_ms
        if abs(skew) > MAX_CLOCK_SKEW_MS:
            side = "ahead of" if skew > 0 else "behind"
            seconds = math.ceil(abs(skew) / 1000)
            apart = lasting(seconds) if seconds >= _LONG_SKEW else f"{seconds} s"
            raise AuthenticationFailed(
                f"the peer's clock is {apart} {side} this one's; at most "
                f"{MAX_CLOCK_SKEW_MS // 1000} s are allowed. Set the one that is wrong"
            )
        self.replay.add(init.tag)


@attrs.frozen(eq=False)
class WaitEncapsulation:
    """INIT is valid; its ML-KEM key waits for the encapsulation."""

    config: HandshakeConfig
    wall_ms: int
    suite: Suite
    x_public: bytes
    x_secret: bytes = attrs.field(repr=False)
    transcript: bytes

    def encapsulated(self, ciphertext: bytes, secret: bytes) -> WaitSignature:
        """The next stage, which knows the bytes to sign."""
        if len(ciphertext) != CIPHERTEXT or len(secret) != SECRET:
            raise LocalProtocolError("an encapsulation is 1,088 bytes, and a secret of 32")
        roster = self.config.roster.roster
        shares = encode_shares(self.suite, self.x_public, ciphertext)
        t2 = chain(self.transcript, shares)
        return WaitSignature(
            self.config,
            self.wall_ms,
            key_exchange(self.suite, secret, self.x_secret, t2),
            self.transcript,
            t2,
            shares,
            encode_resp_claims(
                node_id=self.config.node_id,
                instance=self.config.instance,
                serial=roster.serial,
                digest=roster.digest,
                mandate=roster.mandate,
            ),
        )


@attrs.frozen(eq=False)
class WaitSignature:
    """RESP waits for its signature."""

    config: HandshakeConfig
    wall_ms: int
    keys: Exchange
    init_transcript: bytes
    transcript: bytes
    shares: bytes = attrs.field(repr=False)
    claims: bytes

    @property
    def payload(self) -> bytes:
        """The bytes to sign."""
        return signed_payload(self.keys.suite, SignContext.RESP, self.transcript, self.claims)

    def resp(self, signature: bytes) -> tuple[bytes, WaitFin]:
        """RESP, and the stage that waits for FIN."""
        resp = self.keys.resp(self.shares, self.claims, signature, self.transcript)
        t3 = chain(self.init_transcript, resp)
        return resp, WaitFin(self.config, self.wall_ms, self.keys, t3)


@attrs.frozen(eq=False)
class VerifiedFin:
    """FIN is authentic; `check_terms` says whether the peer is acceptable."""

    secrets: Secrets
    claims: FinClaims
    roster: SignedRoster
    """The roster that both ends hold once the peer is admitted."""


@attrs.frozen(eq=False)
class WaitFin:
    """RESP was sent."""

    config: HandshakeConfig
    wall_ms: int
    keys: Exchange
    transcript: bytes

    def receive(self, frame: Frame) -> VerifiedFin:
        """The contents of *frame*, if it is the valid FIN of a member. Raises `RemoteProtocolError`
        or a subclass."""
        keys, t3 = self.keys, self.transcript
        message = parse_fin(frame)
        plaintext = open_once(keys.suite, keys.initiator_key, message.sealed, t3 + message.hdr)
        fin, proven = parse_fin_claims(plaintext)
        own = self.config.node_id
        if fin.responder != own:
            raise AuthenticationFailed("FIN is for another node")
        if fin.claims.node_id == own:
            raise AuthenticationFailed("FIN claims this node's own id")
        roster = self._roster(fin)
        peer = self._verify(roster, fin, proven)
        return VerifiedFin(self._secrets(peer, fin, message), fin, roster)

    def _roster(self, fin: FinClaims) -> SignedRoster:
        """The roster that authorizes the peer: the peer's own if that is newer and valid."""
        config, claims = self.config, fin.claims
        own = config.roster.roster
        is_behind = own.is_behind(claims.serial, claims.digest, claims.mandate)
        if bool(fin.roster) != is_behind:
            raise RemoteProtocolError("FIN must carry a roster if, and only if, it is newer")
        if not fin.roster:
            return config.roster
        ends = (config.node_id, claims.node_id)
        signed = newer(config.coordinator, own, fin.roster, self.wall_ms, *ends)
        brought = signed.roster.serial, signed.roster.digest, signed.roster.mandate
        if brought != (claims.serial, claims.digest, claims.mandate):
            raise RemoteProtocolError("FIN carries another roster than it says")
        return signed

    def _verify(self, roster: SignedRoster, fin: FinClaims, proven: Proven) -> VerifiedPeer:
        keys, t3, claims = self.keys, self.transcript, fin.claims
        member = roster.roster.member(claims.node_id)
        if member is None:
            # Verify all the same, so that timing does not reveal who is a member.
            payload = signed_payload(keys.suite, SignContext.FIN, t3, claims.encoded)
            with contextlib.suppress(AuthenticationFailed):
                verify(self.config.signer_public_key, proven.signature, payload)
            raise AuthenticationFailed("it is no member of this cluster")
        return VerifiedPeer(keys, SignContext.FIN, member.public_key, claims, proven, t3)

    def _secrets(self, peer: VerifiedPeer, fin: FinClaims, message: Fin) -> Secrets:
        own, keys = self.config.node_id, self.keys
        t4 = chain(self.transcript, message.whole)
        ways = both_ways(keys, Direction.TO_INITIATOR, own, peer.id, t4)
        return Secrets(keys.suite, peer, fin.purpose, t4, *ways)

    def check_terms(self, fin: VerifiedFin) -> None:
        """Raise `RosterConflict` or `RosterExpired` if the verified peer must be refused."""
        own, peer = self.config.roster.roster, fin.secrets.peer
        check_conflict(own, peer.serial, peer.digest)
        if own.expired(self.wall_ms) and peer.serial <= own.serial:
            raise RosterExpired(f"roster {own.serial} has expired, and the peer has none newer")

    def admittable(self, fin: VerifiedFin) -> WaitAdmit:
        """The stage that waits for the owner's decision."""
        own, peer = self.config.roster, fin.secrets.peer
        is_ahead = own.roster.is_ahead(peer.serial, peer.digest, peer.mandate)
        return WaitAdmit(
            Established(peer, fin.secrets.purpose, fin.secrets.transcript, fin.roster),
            own.encoded if is_ahead else b"",
        )


@attrs.frozen(eq=False)
class WaitAdmit:
    """FIN is verified, and its roster is stored; the owner decides about the link."""

    established: Established
    roster: bytes
    """This node's roster if it is newer than the peer's, else empty."""

    def accept(self) -> Accept:
        """The ACCEPT to send."""
        link = self.established
        return Accept(link.transcript, link.roster.roster.serial, self.roster)


@attrs.frozen(eq=False)
class WaitStore:
    """FIN is verified and brought a newer roster, which has to be stored first."""

    admit: WaitAdmit


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


class Responder(Handshake[State, Event, HandshakeEvent]):
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
