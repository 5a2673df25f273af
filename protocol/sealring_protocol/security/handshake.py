"""The handshake: SIGMA-I with a hybrid key exchange, and what its two roles share.

What it proves. Both ends hold P-256 keys named by one signed roster, and both saw the same bytes of
this exchange. Nobody else has its keys unless both X25519 and ML-KEM-768 are broken. Only the
responder can read the initiator's identity; the responder's is hidden from all who cannot read a
roster. The signatures are those of SIGMA (Krawczyk, 2003): each end signs the transcript and adds a
MAC over its own identity, so no third party's identity can be bound to the exchange. The roles are
in `initiator` and `responder`.

How to drive it. Both roles take handshake frames and the answers to their requests, and give bytes
(`data_to_send`) and events (`next_event`); drain both after each call. `frame_limits` has what the
frame decoder may accept in the present state; set it after each call.

========================== ======================== ==============================================
call                       role                     then
========================== ======================== ==============================================
``dial()``                 initiator                INIT is among the bytes
``receive(frame)``         both                     `EncapsulationRequested` (INIT was good),
                                                    `SignatureRequested` (RESP was good), or what
                                                    follows FIN, see below
``provide_encapsulation``  responder                `SignatureRequested`
``provide_signature``      both                     RESP or FIN is among the bytes; the initiator
                                                    also gives `PeerVerified`
``receive_accept(Accept)`` initiator                `Established`, or `RosterReceived`
``stored()``               both                     initiator: `Established`; responder: may admit
``admit() -> Accept``      responder                `Established`; seal that ACCEPT first
``refuse()``               responder                CLOSED; seal CLOSE
``close()``                both, peer verified      CLOSED: CLOSE was sent or has come
``fail(error)``            both                     DEAD: the stream ended, or a deadline passed
========================== ======================== ==============================================

FIN gives `PeerVerified`, and then `PeerRefused` (the machine is CLOSED: seal CLOSE with the error's
wire code), `RosterReceived` (state WAIT_STORE), or nothing (state WAIT_ADMIT). `PeerVerified` has
the `Secrets`: make the channels from them, and drop them. From then on the initiator's link opens
sealed frames. The first must be ACCEPT or CLOSE.

What the link has to do, because the handshake cannot:

- Call `Admission.take_signature` when a responder gives `EncapsulationRequested`, before the
  encapsulation is done. Count the connection (`opened`, `settled`) until `PeerVerified`, and then
  report that its source has `proved` a member.
- On an error before `PeerVerified`, close the connection without another byte; the machine has
  dropped what was not drained. On an error after it, send CLOSE with the code.
- Take no frames from the decoder in the initiator's WAIT_SIGNATURE and WAIT_STORE and the
  responder's WAIT_ENCAPSULATION and WAIT_SIGNATURE. In the initiator's WAIT_STORE, the peer may
  already send data. In the responder's WAIT_STORE and WAIT_ADMIT, it may send only CLOSE.
- A handshake authorizes by the roster in its config. If the node has a newer one by then, look the
  peer up in that before `admit`, and before using an `Established` link.

Every error is final: the handshake is DEAD, and each later call raises the same error. A call that
the table does not allow (`IllegalEvent`) is such an error, except on a CLOSED handshake.

INIT, RESP and FIN are one handshake frame each. A frame's ``hdr`` is its eight header bytes and the
message code after them: nine bytes that every tag and transcript covers. Fields have fixed sizes;
only the roster in FIN has a length before it. So INIT and RESP have one length each, and a parser
accepts all of a message or nothing.

===== ==========================================================================================
INIT  ``hdr · wall_ms u64 · suites u32 · x_I 32 · ek_I 1184 · tag 32``
RESP  ``hdr · suite u8 · x_R 32 · ct 1088 · AEAD(id_R 32 · instance u64 · serial u64 · digest 32 ·
      term u64 · head u16 · taken u8 · signature 64 · mac 32)``
FIN   ``hdr · AEAD(id_I 32 · id_R 32 · instance u64 · serial u64 · digest 32 · term u64 · head u16 ·
      taken u8 · purpose u8 · roster u32 + bytes · signature 64 · mac 32)``
===== ==========================================================================================

``suites`` is a set: bit n stands for the suite with code n. Bits of unknown suites are ignored, so
that a later version can offer more. An instance is a random number per process.

The transcript hashes are chained, each over all bytes before it as they were received::

    t1 = H(P || cluster || pub_B || INIT)      t2 = H(t1 || R)
    t3 = H(t1 || RESP)                         t4 = H(t3 || FIN)

P is the suite's protocol string. So every key and signature covers the chosen suite, and through
INIT the set that was offered. The exchange is hybrid: the shared secrets of ML-KEM-768 (FIPS 203)
and X25519 (RFC 7748) go into one extraction, which is as strong as the stronger of the two. Each
key function runs once per handshake. Its result is dropped as soon as the next stage has been made
from it. Python cannot wipe memory, so erasing means that nothing refers to the secret any more.

A role is a `Machine` over its table, and one stage object. The stage has the class of the machine's
state and holds only what is valid in it. Only `Handshake._advance` changes the state: it fires the
event and replaces the stage, after which nothing refers to the old stage's secrets.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from typing import Any, ClassVar, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, cast

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.frame import Frame, FrameKind, frame_header
from sealring_protocol.codec.wire import Buffer, Reader, layout, pack, vector
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    SealringError,
)
from sealring_protocol.limits import (
    AEAD_TAG,
    CLOCK_STEP_MS,
    FRAME_HEADER,
    MAX_ELECTED,
    MAX_FIN_BODY,
)
from sealring_protocol.security.identity import (
    SIGNATURE,
    check_own_signature,
    node_id,
    verify,
)
from sealring_protocol.security.keys import (
    NONCE,
    PROTOCOL,
    SECRET,
    Label,
    SignContext,
    Suite,
    expand,
    extract,
    mac,
    sha256,
)
from sealring_protocol.security.mandate import Mandate
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.table import IllegalEvent, Machine, Table

__all__ = [
    "EncapsulationRequested",
    "Established",
    "Handshake",
    "HandshakeConfig",
    "HandshakeEvent",
    "InitForAnother",
    "PeerRefused",
    "PeerVerified",
    "RosterReceived",
    "Secrets",
    "SignatureRequested",
    "TrafficSecrets",
    "VerifiedPeer",
]

CIPHERTEXT: Final = 1088
"""Bytes of an ML-KEM-768 ciphertext."""

HDR: Final = FRAME_HEADER + 1
"""Bytes of a frame header and the message code."""

_INIT: Final = layout("INIT")
_RESP: Final = layout("RESP")
_RESP_CLAIMS: Final = layout("RESP.claims")
_FIN_CLAIMS: Final = layout("FIN.claims", but=1)

INIT_BODY: Final = _INIT.size
"""Bytes of INIT's body, exactly."""

RESP_BODY: Final = _RESP.size + _RESP_CLAIMS.size + SIGNATURE + SECRET + AEAD_TAG
"""Bytes of RESP's body, exactly."""

_SHARES_END: Final = FRAME_HEADER + _RESP.size
_PURPOSES: Final = {int(purpose): purpose for purpose in Purpose}


class Init(NamedTuple):
    """INIT as received: *tag* covers *tagged*, and *whole* is the frame."""

    wall_ms: int
    suites: int
    x_public: bytes
    encapsulation_key: bytes
    tagged: bytes
    tag: bytes
    whole: bytes


class Resp(NamedTuple):
    """RESP as received: *shares* is R, the part before the *sealed* one, and *whole* is the
    frame."""

    suite: int
    x_public: bytes
    ciphertext: bytes
    shares: bytes
    sealed: bytes
    whole: bytes


class Fin(NamedTuple):
    """FIN as received."""

    hdr: bytes
    sealed: bytes
    whole: bytes


class Claims(NamedTuple):
    """What the sender of RESP or FIN claims to be, and *encoded*, the bytes of these claims."""

    node_id: bytes
    instance: int
    serial: int
    digest: bytes
    mandate: Mandate
    encoded: bytes


@attrs.frozen
class FinClaims:
    """FIN's claims, with those that only an initiator makes: the *responder* that it dials, the
    *purpose*, and its *roster* if that is newer than the responder's (else empty)."""

    claims: Claims
    responder: bytes
    purpose: Purpose
    roster: bytes


class Proven(NamedTuple):
    """The signature and MAC after the claims in a sealed part."""

    signature: bytes
    mac: bytes


# ------------------------------------------------------------------------ INIT


def begin(
    admission: bytes,
    wall_ms: int,
    suites: Iterable[Suite],
    entropy: bytes,
    code: MessageCode = MessageCode.INIT,
) -> tuple[X25519PrivateKey, MLKEM768PrivateKey, bytes]:
    """The private keys that *entropy* makes, 32 bytes of X25519 and an ML-KEM seed of 64, and the
    whole frame of INIT, or of JOIN_INIT (*code*), with its tag under the key *admission*."""
    x_private = X25519PrivateKey.from_private_bytes(entropy[:32])
    kem_private = MLKEM768PrivateKey.from_seed_bytes(entropy[32:])
    fields = (
        code,
        wall_ms // CLOCK_STEP_MS * CLOCK_STEP_MS,
        sum(1 << suite for suite in suites),
        x_private.public_key().public_bytes_raw(),
        kem_private.public_key().public_bytes_raw(),
        b"",
    )
    frame = frame_header(FrameKind.HANDSHAKE, INIT_BODY) + pack(_INIT, *fields)
    tagged = frame[:-SECRET]
    return x_private, kem_private, tagged + mac(admission, tagged)


def parse_init(frame: Frame, code: MessageCode = MessageCode.INIT) -> Init:
    """The fields of INIT, or of JOIN_INIT (*code*). Raises `RemoteProtocolError`."""
    whole = whole_frame(frame, code, INIT_BODY)
    _, wall_ms, suites, x_public, key, tag = _INIT.unpack_from(whole, FRAME_HEADER)
    return Init(wall_ms, suites, x_public, key, whole[:-SECRET], tag, whole)


def take_init(
    init: Init, suites: Iterable[Suite], entropy: bytes
) -> tuple[EncapsulationRequested, Suite, bytes, bytes]:
    """The request to encapsulate to the key in *init*, the first of *suites* that it offers, and
    the X25519 public key that *entropy* makes, with the secret that it shares. Raises
    `RemoteProtocolError`."""
    suite = next((suite for suite in suites if init.suites >> suite & 1), None)
    if suite is None:
        name = MessageCode(init.whole[FRAME_HEADER]).name
        raise RemoteProtocolError(f"{name} offers no suite that this node takes")
    try:
        key = MLKEM768PublicKey.from_public_bytes(init.encapsulation_key)
    except ValueError:
        raise RemoteProtocolError("an ML-KEM key is malformed") from None
    x_private = X25519PrivateKey.from_private_bytes(entropy)
    x_public = x_private.public_key().public_bytes_raw()
    request = EncapsulationRequested(init.encapsulation_key, key)
    return request, suite, x_public, exchange(x_private, init.x_public)


# ------------------------------------------------------------------------ RESP


def encode_shares(suite: Suite, x_public: bytes, ciphertext: bytes) -> bytes:
    """R: RESP up to its sealed part, with the header of the whole frame."""
    header = frame_header(FrameKind.HANDSHAKE, RESP_BODY)
    return header + pack(_RESP, MessageCode.RESP, suite, x_public, ciphertext)


def encode_resp_claims(
    *, node_id: bytes, instance: int, serial: int, digest: bytes, mandate: Mandate
) -> bytes:
    """The claims of RESP (cR)."""
    elected = mandate.term, mandate.head, mandate.taken
    return pack(_RESP_CLAIMS, node_id, instance, serial, digest, *elected)


def parse_resp(frame: Frame) -> Resp:
    """RESP's fields. Raises `RemoteProtocolError`."""
    whole = whole_frame(frame, MessageCode.RESP, RESP_BODY)
    _, suite, x_public, ciphertext = _RESP.unpack_from(whole, FRAME_HEADER)
    return Resp(suite, x_public, ciphertext, whole[:_SHARES_END], whole[_SHARES_END:], whole)


def parse_resp_claims(plaintext: bytes) -> tuple[Claims, Proven]:
    """The claims and proof in RESP's sealed part, whose length is fixed. Raises
    `RemoteProtocolError`."""
    reader = Reader(plaintext)
    node_id, instance, serial, digest, *elected = reader.unpack(_RESP_CLAIMS)
    encoded = plaintext[: reader.position]
    claims = Claims(node_id, instance, serial, digest, _mandate(*elected), encoded)
    return claims, read_proven(reader)


# ------------------------------------------------------------------------- FIN


def encode_fin_claims(
    *,
    node_id: bytes,
    responder: bytes,
    instance: int,
    serial: int,
    digest: bytes,
    mandate: Mandate,
    purpose: Purpose,
    roster: bytes,
) -> bytes:
    """The claims of FIN (cI). *roster* is empty unless it is newer than the responder's."""
    elected = mandate.term, mandate.head, mandate.taken
    fields = (node_id, responder, instance, serial, digest, *elected, purpose)
    return pack(_FIN_CLAIMS, *fields) + vector(roster, MAX_ELECTED)


def parse_fin(frame: Frame) -> Fin:
    """FIN's two parts. Raises `RemoteProtocolError` or `LimitExceeded`."""
    if len(frame.body) > MAX_FIN_BODY:
        raise LimitExceeded(f"FIN of {len(frame.body)} bytes; the limit is {MAX_FIN_BODY}")
    whole = whole_frame(frame, MessageCode.FIN, len(frame.body))
    return Fin(whole[:HDR], whole[HDR:], whole)


def parse_fin_claims(plaintext: bytes) -> tuple[FinClaims, Proven]:
    """The claims and proof in FIN's sealed part. Raises `RemoteProtocolError` or
    `LimitExceeded`."""
    reader = Reader(plaintext)
    node_id, responder, instance, serial, digest, *elected, code = reader.unpack(_FIN_CLAIMS)
    roster = reader.vector(MAX_ELECTED)
    encoded = plaintext[: reader.position]
    proven = read_proven(reader)
    purpose = _PURPOSES.get(code)
    if purpose is None:
        raise RemoteProtocolError(f"FIN for an unknown purpose {code}")
    claims = Claims(node_id, instance, serial, digest, _mandate(*elected), encoded)
    return FinClaims(claims, responder, purpose, roster), proven


def _mandate(term: int, head: int, taken: int) -> Mandate:
    """The mandate that claims name. Raises `RemoteProtocolError`."""
    if taken > 1:
        raise RemoteProtocolError(f"an election is taken or not, and not {taken}")
    return Mandate(term, head, taken=bool(taken))


def read_proven(reader: Reader) -> Proven:
    """The signature and MAC that end a sealed part. Raises `RemoteProtocolError`."""
    proven = Proven(reader.fixed(SIGNATURE), reader.fixed(SECRET))
    reader.end()
    return proven


def whole_frame(frame: Frame, code: MessageCode, length: int) -> bytes:
    """The header and body of *frame*, if it is the handshake message *code* of *length* bytes.
    Raises `RemoteProtocolError`."""
    body = frame.body
    if frame.kind != FrameKind.HANDSHAKE:
        raise RemoteProtocolError(f"{code.name} is due, and a frame of kind {frame.kind} came")
    if len(body) != length or not length or body[0] != code:
        raise RemoteProtocolError(f"{code.name} is due, and something else came")
    return frame.header + bytes(body)


# ---------------------------------------------------------------------- key schedule


ZERO_NONCE: Final = bytes(NONCE)
"""The nonce of a handshake's keys, zero because each key seals one message."""

_SALTS: Final = {suite: sha256(suite.protocol) for suite in Suite}


class Direction(bytes, enum.Enum):
    """The direction of the frames that a secret protects."""

    TO_RESPONDER = b"\x00"
    TO_INITIATOR = b"\x01"


def admission_key(cluster: bytes, responder: bytes) -> bytes:
    """K_B, the key for the tags of INITs to the node with public key *responder*.

    The tag only filters cheaply and does not authenticate: every reader of a roster can make it.
    Its key depends on no suite, because none has been chosen yet.
    """
    return extract(PROTOCOL + Label.ADMISSION, cluster + responder)


def first_transcript(suite: Suite, cluster: bytes, responder: bytes, init: bytes) -> bytes:
    """t1, from the whole frame of INIT."""
    return sha256(suite.protocol, cluster, responder, init)


def chain(transcript: bytes, message: Buffer) -> bytes:
    """The transcript after *message*, given the one before it."""
    return sha256(transcript, message)


def signed_payload(suite: Suite, context: SignContext, transcript: bytes, claims: bytes) -> bytes:
    """The bytes that a node signs in RESP or FIN."""
    return suite.protocol + context + sha256(transcript, claims)


def maced_payload(transcript: bytes, claims: bytes, signature: bytes) -> bytes:
    """The bytes that the MAC of RESP or FIN covers."""
    return sha256(transcript, claims, signature)


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    """The X25519 shared secret, 32 bytes.

    Raises `RemoteProtocolError` for a *public* of small order (RFC 7748 section 6.1).
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise RemoteProtocolError("an X25519 key has small order") from None


def seal_once(suite: Suite, key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Seal *plaintext* as the only message under *key*."""
    return suite.aead(key).encrypt(ZERO_NONCE, plaintext, associated)


def open_once(suite: Suite, key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Open what `seal_once` sealed. Raises `AuthenticationFailed`."""
    try:
        return suite.aead(key).decrypt(ZERO_NONCE, sealed, associated)
    except InvalidTag:
        raise AuthenticationFailed("the sealed part of a handshake does not open") from None


@attrs.frozen(eq=False)
class Exchange:
    """The secrets that both ends hold after the key exchange: PRK, and the keys of RESP and FIN."""

    suite: Suite
    prk: bytes = attrs.field(repr=False)
    responder_key: bytes = attrs.field(repr=False)
    responder_mac: bytes = attrs.field(repr=False)
    initiator_key: bytes = attrs.field(repr=False)
    initiator_mac: bytes = attrs.field(repr=False)

    def resp(self, shares: bytes, claims: bytes, signature: bytes, transcript: bytes) -> bytes:
        """RESP or JOIN_RESP, of which *shares* is R, at *transcript* t2. Raises
        `LocalProtocolError` for a malformed *signature*."""
        plaintext = _proved(self.responder_mac, claims, signature, transcript)
        return shares + seal_once(self.suite, self.responder_key, plaintext, transcript)

    def fin(self, code: MessageCode, claims: bytes, signature: bytes, transcript: bytes) -> bytes:
        """FIN or JOIN_FIN (*code*), at *transcript* t3. Raises `LocalProtocolError` for a malformed
        *signature*."""
        plaintext = _proved(self.initiator_mac, claims, signature, transcript)
        length = 1 + len(plaintext) + AEAD_TAG
        hdr = frame_header(FrameKind.HANDSHAKE, length) + bytes([code])
        return hdr + seal_once(self.suite, self.initiator_key, plaintext, transcript + hdr)


def _proved(mac_key: bytes, claims: bytes, signature: bytes, transcript: bytes) -> bytes:
    check_own_signature(signature)
    return claims + signature + mac(mac_key, maced_payload(transcript, claims, signature))


def key_exchange(suite: Suite, kem_secret: bytes, x_secret: bytes, transcript: bytes) -> Exchange:
    """PRK and the handshake's keys, derived at *transcript* t2."""
    prk = extract(_SALTS[suite], kem_secret + x_secret)
    protocol = suite.protocol
    return Exchange(
        suite,
        prk,
        expand(prk, protocol + Label.RESPONDER_KEY + transcript),
        expand(prk, protocol + Label.RESPONDER_MAC + transcript),
        expand(prk, protocol + Label.INITIATOR_KEY + transcript),
        expand(prk, protocol + Label.INITIATOR_MAC + transcript),
    )


def link_secrets(
    keys: Exchange, direction: Direction, sender: bytes, receiver: bytes, transcript: bytes
) -> tuple[bytes, bytes]:
    """The traffic and the activation secret of one direction, from node id *sender* to node id
    *receiver*, derived at *transcript* t4."""
    protocol = keys.suite.protocol
    parties = direction + sender + receiver + transcript
    return (
        expand(keys.prk, protocol + Label.TRAFFIC + parties),
        expand(keys.prk, protocol + Label.ACTIVATION + parties),
    )


def both_ways(
    keys: Exchange, sends: Direction, own: bytes, peer: bytes, transcript: bytes
) -> tuple[bytes, bytes, bytes, bytes]:
    """The traffic and the activation secret of the direction in which the end with node id *own*
    *sends*, and then of the one in which *peer* does, derived at *transcript* t4."""
    to_responder = sends is Direction.TO_RESPONDER
    receives = Direction.TO_INITIATOR if to_responder else Direction.TO_RESPONDER
    return (
        *link_secrets(keys, sends, own, peer, transcript),
        *link_secrets(keys, receives, peer, own, transcript),
    )


# ---------------------------------------------------------------------- values


class InitForAnother(AuthenticationFailed):
    """An INIT with *tag* came that is not for this node."""

    def __init__(self, tag: bytes) -> None:
        super().__init__("it asks for another machine, or for one of another cluster")
        self.tag = tag


@attrs.frozen
class TrafficSecrets:
    """The first traffic secrets of a link, 32 bytes each, for a key log that makes recorded frames
    readable.

    *transcript* is t4, which the link's ACCEPT repeats. There are no activation secrets here:
    another process has them, and tensors stay sealed to the reader of such a log.
    """

    suite: Suite
    transcript: bytes
    to_responder: bytes = attrs.field(repr=False)
    to_initiator: bytes = attrs.field(repr=False)


@attrs.frozen
class HandshakeConfig:
    """A node's part in each of its handshakes. Make a new one when the roster changes.

    *signer_public_key* and *coordinator* (pinned) are 65-byte keys. *instance* is a random u64 of
    this process. *suites* are in order of preference. *key_log*, if any, is called with the traffic
    secrets of every link whose peer is verified: whoever reads them can read those links.

    Raises `AuthenticationFailed` if the roster is not signed by the coordinator, and
    `LocalProtocolError` if this node is no member or a field is out of range.
    """

    signer_public_key: bytes
    roster: SignedRoster
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...] = tuple(Suite)
    key_log: Callable[[TrafficSecrets], None] | None = attrs.field(
        default=None, eq=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        self.roster.verify(self.coordinator)
        if self.node_id not in self.roster.roster:
            raise LocalProtocolError("the roster does not hold this node")
        if not 0 <= self.instance < 1 << 64:
            raise LocalProtocolError("an instance is a u64")
        if not self.suites or len(set(self.suites)) < len(self.suites):
            raise LocalProtocolError("suites are one or more, each once")

    @functools.cached_property
    def node_id(self) -> bytes:
        """This node's id."""
        return node_id(self.signer_public_key)

    @functools.cached_property
    def admission(self) -> bytes:
        """The key for the tags of INITs to this node."""
        return admission_key(self.roster.roster.cluster, self.signer_public_key)


def check_proof(
    keys: Exchange,
    context: SignContext,
    public_key: bytes,
    encoded: bytes,
    proven: Proven,
    transcript: bytes,
) -> None:
    """Check that the holder of *public_key* and of *keys* made the claims *encoded* in the message
    that *context* names, at *transcript*: the signature, and then the MAC of that message's sender.
    Raises `AuthenticationFailed`."""
    responds = context in (SignContext.RESP, SignContext.JOIN_RESP)
    mac_key = keys.responder_mac if responds else keys.initiator_mac
    verify(public_key, proven.signature, signed_payload(keys.suite, context, transcript, encoded))
    expected = mac(mac_key, maced_payload(transcript, encoded, proven.signature))
    if not compare_digest(expected, proven.mac):
        raise AuthenticationFailed(f"the MAC in {context.name} does not verify")


@attrs.frozen(init=False)
class VerifiedPeer:
    """The proof that a peer holds its key and the keys of this exchange. It cannot be made
    otherwise: its constructor checks the signature and then the MAC.

    Raises `AuthenticationFailed`.
    """

    id: bytes
    instance: int
    serial: int
    digest: bytes
    mandate: Mandate

    def __init__(
        self,
        keys: Exchange,
        context: SignContext,
        public_key: bytes,
        claims: Claims,
        proven: Proven,
        transcript: bytes,
    ) -> None:
        check_proof(keys, context, public_key, claims.encoded, proven, transcript)
        if node_id(public_key) != claims.node_id:
            raise AuthenticationFailed(f"{context.name} comes from another node")
        named = claims.serial, claims.digest, claims.mandate
        self.__attrs_init__(claims.node_id, claims.instance, *named)


@attrs.frozen(eq=False)
class Secrets:
    """The secrets of a link, 32 bytes each, once the peer is verified. Take them, then drop this.

    *transcript* is t4. Send and receive are as this end sees them.
    """

    suite: Suite
    peer: VerifiedPeer
    purpose: Purpose
    transcript: bytes
    send_traffic: bytes = attrs.field(repr=False)
    send_activation: bytes = attrs.field(repr=False)
    receive_traffic: bytes = attrs.field(repr=False)
    receive_activation: bytes = attrs.field(repr=False)


# ---------------------------------------------------------------------- events


@attrs.frozen(eq=False)
class EncapsulationRequested:
    """Encapsulate to *key* (``shared_secret, ciphertext = key.encapsulate()``). Answer with
    `Responder.provide_encapsulation`. *encapsulation_key* has the same key as bytes, for
    records."""

    encapsulation_key: bytes
    key: MLKEM768PublicKey = attrs.field(repr=False)


@attrs.frozen
class SignatureRequested:
    """Sign *payload* with the node's `Signer`. Answer with `provide_signature`."""

    payload: bytes


@attrs.frozen(eq=False)
class PeerVerified:
    """The peer is authenticated; the channels can be made from *secrets*."""

    secrets: Secrets


@attrs.frozen(eq=False)
class PeerRefused:
    """A verified peer is refused, for the reason in *error*: send CLOSE with its code.

    The machine is CLOSED.
    """

    error: RemoteProtocolError


@attrs.frozen
class RosterReceived:
    """The peer brought a newer, valid roster: store it, then call `stored`."""

    roster: SignedRoster


@attrs.frozen(eq=False)
class Established:
    """The link is up. Both ends now hold *roster*."""

    peer: VerifiedPeer
    purpose: Purpose
    transcript: bytes
    roster: SignedRoster


HandshakeEvent = (
    EncapsulationRequested
    | SignatureRequested
    | PeerVerified
    | PeerRefused
    | RosterReceived
    | Established
)


# ---------------------------------------------------------------------- both roles


S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
V = TypeVar("V")
H = TypeVar("H", bound="Handshake[Any, Any, Any]")


@attrs.frozen
class Closed:
    """The link was closed normally."""


@attrs.frozen(eq=False)
class Dead:
    """The link has failed with *error*, which every later call raises again."""

    error: SealringError


def fatal(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Make an error of *method* kill the handshake; a dead handshake raises its error again."""

    @functools.wraps(method)
    def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_alive()
        try:
            return method(self, *args, **kwargs)
        except SealringError as error:
            self._die(error)
            raise

    return guarded


_ENDS = (Closed, Dead)


class Handshake(Generic[S, E, V]):
    """One end of one handshake, with states S, moves E and events V. See the module for how to
    drive it."""

    LIMITS: ClassVar[Mapping[Any, Mapping[int, int]]]
    FAIL: ClassVar[Any]
    CLOSE: ClassVar[Any]

    __slots__ = ("_events", "_machine", "_out", "_stage")

    def __init__(self, table: Table[S, E], initial: S, stage: object) -> None:
        self._machine = Machine(table, initial)
        self._stage = stage
        self._events: deque[V] = deque()
        self._out: list[bytes] = []

    @property
    def state(self) -> S:
        """The state of the handshake."""
        return self._machine.state

    @property
    def over(self) -> bool:
        """True if the link was closed, or has failed."""
        return isinstance(self._stage, _ENDS)

    @property
    def frame_limits(self) -> Mapping[int, int]:
        """The frames to accept in this state: the longest body in bytes for each kind."""
        return self.LIMITS[self._machine.state]

    def next_event(self) -> V | None:
        """The next event; None if there is none. A dead handshake raises its error."""
        self._check_alive()
        return self._events.popleft() if self._events else None

    def data_to_send(self) -> bytes:
        """Take the bytes to send, which may be none. A dead handshake raises its error."""
        self._check_alive()
        data = b"".join(self._out)
        self._out.clear()
        return data

    @fatal
    def close(self) -> None:
        """CLOSE was sent or received, on a link whose peer is verified."""
        self._advance(self.CLOSE, Closed())

    def fail(self, error: SealringError) -> None:
        """The link has failed with *error*, for example because the stream ended or a deadline
        passed.

        Raises the earlier error of a dead handshake, and `IllegalEvent` on a closed one.
        """
        self._check_alive()
        self._machine.fire(self.FAIL)
        self._bury(error)

    def _check_alive(self) -> None:
        stage = self._stage
        if isinstance(stage, Dead):
            raise stage.error.with_traceback(None)

    def _current(self, kind: type[T], event: E) -> T:
        """The present stage, which has the class *kind* in every state where *event* is legal.
        Raises `IllegalEvent` in any other state."""
        self._machine.after(event)
        return cast(T, self._stage)

    def _advance(self, event: E, stage: object) -> None:
        self._machine.fire(event)
        self._stage = stage

    def _die(self, error: SealringError) -> None:
        try:
            self._machine.fire(self.FAIL)
        except IllegalEvent:
            return  # closed already: nothing after CLOSE changes that
        # The error is kept. Its traceback would keep stack frames alive, and the keys in them.
        error.__traceback__ = error.__context__ = None
        self._bury(error)

    def _bury(self, error: SealringError) -> None:
        # Bytes that were not drained are dropped: a stranger gets not one byte.
        self._stage = Dead(error)
        self._events.clear()
