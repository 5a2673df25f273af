"""The stages of the responder: one class per state, holding only what is valid in it.

Each stage makes the next one from what it waits for, or raises. `security.responder` says which
event that is, and whether it is legal. A stage is used once.
"""

from __future__ import annotations

import contextlib
import math
from hmac import compare_digest
from typing import Final

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealring_protocol.codec.frame import Frame
from sealring_protocol.codec.messages import Accept
from sealring_protocol.diagnosis.words import lasting
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterExpired,
)
from sealring_protocol.limits import (
    MAX_CLOCK_SKEW_MS,
)
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake_messages import (
    CIPHERTEXT,
    Fin,
    FinClaims,
    Init,
    Proven,
    encode_resp_claims,
    encode_shares,
    parse_fin,
    parse_fin_claims,
    parse_init,
)
from sealring_protocol.security.handshake_values import (
    EncapsulationRequested,
    Established,
    HandshakeConfig,
    InitForAnother,
    Secrets,
    VerifiedPeer,
)
from sealring_protocol.security.identity import check_own_signature, verify
from sealring_protocol.security.keys import SECRET, SignContext, Suite, mac
from sealring_protocol.security.roster import SignedRoster, is_newer, newer
from sealring_protocol.security.schedule import (
    Direction,
    Exchange,
    chain,
    exchange,
    first_transcript,
    key_exchange,
    link_secrets,
    maced_payload,
    open_once,
    seal_once,
    signed_payload,
)

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
        suite = next((suite for suite in config.suites if init.suites >> suite & 1), None)
        if suite is None:
            raise RemoteProtocolError("INIT offers no suite that this node takes")
        try:
            key = MLKEM768PublicKey.from_public_bytes(init.encapsulation_key)
        except ValueError:
            raise RemoteProtocolError("an ML-KEM key is malformed") from None
        x_private = X25519PrivateKey.from_private_bytes(self.entropy)
        cluster = config.roster.roster.cluster
        request = EncapsulationRequested(init.encapsulation_key, key)
        return request, WaitEncapsulation(
            config,
            self.wall_ms,
            suite,
            x_private.public_key().public_bytes_raw(),
            exchange(x_private, init.x_public),
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
                self.config.node_id, self.config.instance, roster.serial, roster.digest
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
        check_own_signature(signature)
        keys, t2 = self.keys, self.transcript
        tag = mac(keys.responder_mac, maced_payload(t2, self.claims, signature))
        plaintext = self.claims + signature + tag
        resp = self.shares + seal_once(keys.suite, keys.responder_key, plaintext, t2)
        return resp, WaitFin(self.config, self.wall_ms, keys, chain(self.init_transcript, resp))


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
        if bool(fin.roster) != (claims.serial > own.serial):
            raise RemoteProtocolError("FIN must carry a roster if, and only if, it is newer")
        if not fin.roster:
            return config.roster
        ends = (config.node_id, claims.node_id)
        signed = newer(config.coordinator, own, fin.roster, self.wall_ms, *ends)
        if (signed.roster.serial, signed.roster.digest) != (claims.serial, claims.digest):
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
            raise AuthenticationFailed("FIN comes from no member")
        return VerifiedPeer(
            member.public_key,
            claims,
            proven,
            suite=keys.suite,
            context=SignContext.FIN,
            transcript=t3,
            mac_key=keys.initiator_mac,
        )

    def _secrets(self, peer: VerifiedPeer, fin: FinClaims, message: Fin) -> Secrets:
        own, keys = self.config.node_id, self.keys
        t4 = chain(self.transcript, message.whole)
        return Secrets(
            keys.suite,
            peer,
            fin.purpose,
            t4,
            *link_secrets(keys, Direction.TO_INITIATOR, own, peer.id, t4),
            *link_secrets(keys, Direction.TO_RESPONDER, peer.id, own, t4),
        )

    def check_terms(self, fin: VerifiedFin) -> None:
        """Raise `RosterConflict` or `RosterExpired` if the verified peer must be refused."""
        own, peer = self.config.roster.roster, fin.secrets.peer
        peer_is_newer = is_newer(own, peer.serial, peer.digest)
        if own.expired(self.wall_ms) and not peer_is_newer:
            raise RosterExpired(f"roster {own.serial} has expired, and the peer has none newer")

    def admittable(self, fin: VerifiedFin) -> WaitAdmit:
        """The stage that waits for the owner's decision."""
        own, peer = self.config.roster, fin.secrets.peer
        return WaitAdmit(
            Established(peer, fin.secrets.purpose, fin.secrets.transcript, fin.roster),
            own.encoded if peer.serial < own.roster.serial else b"",
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
