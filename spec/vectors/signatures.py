"""Keys and signatures: the one form of each that is taken (section 3.1)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from spec.vectors.model import FORGED, Json, Vector, refused, valid
from spec.vectors.plain import sha256
from spec.vectors.talk import flipped
from spec.vectors.world import ADA, BEN, COORDINATOR

GIVEN: Final[Mapping[str, bytes]] = {"ada": ADA.public, "ben": BEN.public}
ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
PRIME: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
MESSAGE: Final = b"sealring/1 aes256gcmRESP" + sha256(b"a transcript and claims")


def _input(public: bytes, signature: bytes, message: bytes = MESSAGE) -> Json:
    return {"public_key": public.hex(), "signature": signature.hex(), "message": message.hex()}


def scalars(r: int, s: int) -> bytes:
    """A signature's 64 bytes."""
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def vectors() -> Iterator[Vector]:
    """Signatures, good and bad, and keys that are none."""
    for who in (ADA, BEN, COORDINATOR):
        given = {"scalar": who.scalar.hex(), "message": MESSAGE.hex()}
        output = {
            "public_key": who.public.hex(),
            "node_id": who.id.hex(),
            "signature": who.signer.sign(MESSAGE).hex(),
        }
        about = "public key, node id and the signature with RFC 6979's nonce"
        yield valid(f"signature/{who.name}", "sign", "ID-01 ID-02", about, given, output)
        given = _input(who.public, bytes.fromhex(output["signature"]))
        about = "a signature that verifies"
        yield valid(f"signature/{who.name}-verifies", "verify", "ID-02 ID-03", about, given)
    middle = (ORDER - 1) // 2
    about = "the greatest s that there may be"
    yield valid("signature/s-most", "verify", "ID-02", about, _by_nobody(middle))
    about = "the least s that is too great"
    given = _by_nobody(middle + 1)
    yield refused("signature/s-least", "verify", "ID-02", about, given, FORGED)
    for name, ids, about, given in (*_bad_signatures(), *_bad_keys()):
        yield refused(f"signature/{name}", "verify", ids, about, given, FORGED)


def _by_nobody(s: int) -> Json:
    """A signature with this *s* that ECDSA takes, under the key that it belongs to.

    ECDSA has s = (e + r·d) / k of a digest e, a key d and a nonce k; with k = 1, r is the x of the
    base point, and d = (s - e) / r.
    """
    numbers = ec.derive_private_key(1, ec.SECP256R1()).public_key().public_numbers()
    e = int.from_bytes(sha256(MESSAGE), "big")
    scalar = (s - e) * pow(numbers.x, -1, ORDER) % ORDER
    key = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    public = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return _input(public, scalars(numbers.x, s))


def _bad_signatures() -> Iterator[tuple[str, str, str, Json]]:
    good = ADA.signer.sign(MESSAGE)
    r, s = (int.from_bytes(part, "big") for part in (good[:32], good[32:]))
    for name, about, signature in [
        ("high-s", "s in the upper half, which ECDSA would take", scalars(r, ORDER - s)),
        ("r-zero", "r is 0", scalars(0, s)),
        ("s-zero", "s is 0", scalars(r, 0)),
        ("r-order", "r is the order", scalars(ORDER, s)),
        ("r-beyond", "r beyond the order", scalars(2**256 - 1, s)),
        ("short", "63 bytes", good[:-1]),
        ("long", "65 bytes", good + b"\0"),
        ("padded", "65 bytes, s with a zero before it", good[:32] + b"\0" + good[32:]),
        ("empty", "no bytes", b""),
        ("der", "DER", encode_dss_signature(r, s)),
        ("flipped", "one bit flipped", flipped(good, 7)),
        ("swapped", "s ‖ r", scalars(s, r)),
    ]:
        yield name, "ID-02", about, _input(ADA.public, signature)
    other = MESSAGE.replace(b"RESP", b"FIN")
    yield "other-context", "ID-03", "signed as RESP, shown as FIN", _input(ADA.public, good, other)
    other = MESSAGE.replace(b"aes256gcm", b"chacha20poly1305")
    yield "other-suite", "ID-03", "signed for the other suite", _input(ADA.public, good, other)
    yield "other-key", "ID-02", "another node's signature", _input(BEN.public, good)


def _bad_keys() -> Iterator[tuple[str, str, str, Json]]:
    public, good = ADA.public, ADA.signer.sign(MESSAGE)
    parity = public[64] & 1
    x = int.from_bytes(public[1:33], "big")
    for name, about, key in [
        ("key-compressed", "a compressed key", bytes([2 + parity]) + public[1:33]),
        ("key-hybrid", "the hybrid form, with its parity", bytes([6 + parity]) + public[1:]),
        ("key-infinity", "the point at infinity", b"\0"),
        ("key-raw", "x ‖ y without the leading 4", public[1:]),
        ("key-off-curve", "a point that is not on the curve", flipped(public, 64)),
        ("key-zero", "x = y = 0", b"\4" + bytes(64)),
        ("key-x-beyond", "x beyond the field's prime", b"\4" + _beyond(x) + public[33:]),
        ("key-long", "66 bytes", public + b"\0"),
        ("key-empty", "no bytes", b""),
    ]:
        yield name, "ID-01", about, _input(key, good)


def _beyond(x: int) -> bytes:
    """x and the prime, if that fits; else the largest number."""
    return struct.pack(">32s", min(x + PRIME, 2**256 - 1).to_bytes(32, "big"))
