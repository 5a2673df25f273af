"""Node identities: ECDSA keys on P-256, behind a `Signer` that may be hardware.

A node's id is the SHA-256 of its public key. A key travels as the 65 bytes of an uncompressed SEC1
point (SEC 1 section 2.3.3), and a signature as the 64 bytes of r and s with s in the lower half. So
each key and each signature has exactly one encoding. `cryptography` accepts further encodings; this
module refuses them.

Verifying signatures is the most expensive part of a handshake, and decoding the public point is the
part that can be cached. Only keys in a signed roster, pinned by the owner, or of machines that hold
an invitation come here, so strangers cannot fill the cache.
"""

from __future__ import annotations

import functools
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError
from sealring_protocol.limits import MAX_MEMBERS
from sealring_protocol.security.keys import sha256

PUBLIC_KEY: Final = 65
"""Bytes of a public key: 0x04, x, y."""

SIGNATURE: Final = 64
"""Bytes of a signature: r, s."""

ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256's group (FIPS 186-5, SP 800-186 section 3.2.1.3)."""

_HALF: Final = ORDER // 2
_CURVE: Final = ec.SECP256R1()
_VERIFYING: Final = ec.ECDSA(hashes.SHA256())
# Nonces by RFC 6979, so that signing draws no entropy.
_SIGNING: Final = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
_UNCOMPRESSED: Final = 4


class Signer(Protocol):
    """A private P-256 key that signs, and that may never leave its device.

    Signing may be slow and need not be deterministic. The machines ask for it as an event.
    """

    @property
    def public_key(self) -> bytes:
        """The 65 bytes of the public key."""

    def sign(self, message: bytes) -> bytes:
        """ECDSA with SHA-256 over *message*: 64 bytes, low s."""


class SoftwareSigner:
    """A `Signer` whose private key is in this process's memory."""

    __slots__ = ("_private", "_public")

    def __init__(self, private_key: ec.EllipticCurvePrivateKey) -> None:
        """Sign with *private_key*. Raises `LocalProtocolError` if it is not on P-256."""
        if not isinstance(private_key.curve, ec.SECP256R1):
            raise LocalProtocolError(f"a node key is on P-256, not on {private_key.curve.name}")
        self._private = private_key
        point = private_key.public_key().public_numbers()
        x, y = point.x.to_bytes(32, "big"), point.y.to_bytes(32, "big")
        self._public = bytes([_UNCOMPRESSED]) + x + y

    @classmethod
    def from_scalar(cls, scalar: int) -> SoftwareSigner:
        """The signer with the private *scalar*. Raises `LocalProtocolError` if it is out of
        range."""
        if not 0 < scalar < ORDER:
            raise LocalProtocolError("a private scalar is from 1 to the group's order less 1")
        return cls(ec.derive_private_key(scalar, _CURVE))

    @classmethod
    def from_pem(cls, data: bytes) -> SoftwareSigner:
        """The signer whose key is in *data*, PEM of PKCS 8 without a password. Raises
        `LocalProtocolError`."""
        # Imported here because it takes a fifth of this package's import time, and few need PEM.
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        try:
            key = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise LocalProtocolError(f"not a private key without a password: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise LocalProtocolError("a node key is an elliptic curve key")
        return cls(key)

    def to_pem(self) -> bytes:
        """The private key as PEM of PKCS 8, without a password."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def public_key(self) -> bytes:
        """The 65 bytes of the public key."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """ECDSA with SHA-256 over *message*, nonce by RFC 6979: 64 bytes, low s."""
        return from_der(self._private.sign(message, _SIGNING))


def node_id(public_key: bytes) -> bytes:
    """The id of the node that holds *public_key*: its SHA-256, 32 bytes."""
    return sha256(public_key)


def from_der(signature: bytes) -> bytes:
    """A DER *signature*, as most signers make it, in sealring's encoding: 64 bytes, low s.

    Raises `LocalProtocolError` if it is invalid, because the signer is the caller's own.
    """
    try:
        r, s = decode_dss_signature(signature)
    except ValueError:
        raise LocalProtocolError("a signer gave a signature that is not DER") from None
    if not (0 < r < ORDER and 0 < s < ORDER):
        raise LocalProtocolError("a signer gave a signature that is out of range")
    return r.to_bytes(32, "big") + min(s, ORDER - s).to_bytes(32, "big")


@functools.lru_cache(maxsize=4 * MAX_MEMBERS)
def parse_key(public_key: bytes) -> ec.EllipticCurvePublicKey:
    """The point in *public_key*. Raises `AuthenticationFailed` if that is not 65 bytes, or no
    point.

    Memory: 4 x 64 keys of about 1 KiB.
    """
    if len(public_key) != PUBLIC_KEY or public_key[0] != _UNCOMPRESSED:
        raise AuthenticationFailed("a public key is not an uncompressed point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, public_key)
    except ValueError:
        raise AuthenticationFailed("a public key is not a point of P-256") from None


def verify(public_key: bytes, signature: bytes, message: bytes) -> None:
    """Check the 64-byte *signature* over *message*.

    Raises `AuthenticationFailed` if it does not verify, has another length, or has a high s.
    """
    key = parse_key(public_key)
    r, s = _scalars(signature)
    try:
        key.verify(encode_dss_signature(r, s), message, _VERIFYING)
    except InvalidSignature:
        raise AuthenticationFailed("a signature does not verify") from None


def check_own_signature(signature: bytes) -> None:
    """Raise `LocalProtocolError` if this node's own signer made a *signature* that peers would
    refuse."""
    try:
        _scalars(signature)
    except AuthenticationFailed as error:
        raise LocalProtocolError(f"from this node's own signer: {error}") from None


def _scalars(signature: bytes) -> tuple[int, int]:
    if len(signature) != SIGNATURE:
        raise AuthenticationFailed(f"a signature has {SIGNATURE} bytes, not {len(signature)}")
    r = int.from_bytes(signature[:32], "big")
    s = int.from_bytes(signature[32:], "big")
    if not (0 < r < ORDER and 0 < s <= _HALF):
        raise AuthenticationFailed("a signature has r out of range, or s not in the lower half")
    return r, s
