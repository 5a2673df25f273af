"""The handshake's key schedule: transcripts, the keys of RESP and FIN, and a link's secrets.

The transcript hashes are chained, each over all bytes before it as they were received::

    t1 = H(P || cluster || pub_B || INIT)      t2 = H(t1 || R)
    t3 = H(t1 || RESP)                         t4 = H(t3 || FIN)

P is the suite's protocol string. So every key and signature covers the chosen suite, and through
INIT the set that was offered. The exchange is hybrid: the shared secrets of ML-KEM-768 (FIPS 203)
and X25519 (RFC 7748) go into one extraction, which is as strong as the stronger of the two. Every
function here runs once per handshake. Its result is dropped as soon as the next stage has been made
from it. Python cannot wipe memory, so erasing means that nothing refers to the secret any more.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import AuthenticationFailed, RemoteProtocolError
from sealring_protocol.security.keys import (
    NONCE,
    PROTOCOL,
    Label,
    SignContext,
    Suite,
    expand,
    extract,
    sha256,
)

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
