"""The handshake once more, straight down the specification, with nothing of the package's key
schedule: the standard library's SHA-256 and HMAC, and `cryptography` for the rest.

It serves as the other end in the tests: honest, to compare every byte with, and dishonest in
whatever a test overrides, with tags, signatures and MACs that are right for what it says.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any

from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from sealring_protocol.security.identity import SoftwareSigner

STRINGS = {1: b"sealring/1 aes256gcm", 2: b"sealring/1 chacha20poly1305"}
AEADS: dict[int, Any] = {1: AESGCM, 2: ChaCha20Poly1305}


def H(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def extract(salt: bytes, material: bytes) -> bytes:
    return mac(salt, material)


def expand(secret: bytes, info: bytes, length: int = 32) -> bytes:
    block, out = b"", b""
    for counter in range(1, 256):
        block = mac(secret, block + info + bytes([counter]))
        out += block
        if len(out) >= length:
            return out[:length]
    raise AssertionError


def header(length: int) -> bytes:
    return struct.pack(">BBHI", 1, 1, 0, length)


class End:
    """What both ends compute."""

    def __init__(self, cluster: bytes, responder: bytes, signer: SoftwareSigner) -> None:
        self.cluster = cluster
        self.responder = responder
        self.signer = signer
        self.id = H(signer.public_key)
        self.init_bytes = b""
        self.suite = 0

    def admission(self) -> bytes:
        return extract(b"sealring/1" + b"adm", self.cluster + self.responder)

    def agree(self, suite: int, kem_secret: bytes, x_secret: bytes, shares: bytes) -> None:
        self.suite = suite
        self.P = STRINGS[suite]
        self.t1 = H(self.P, self.cluster, self.responder, self.init_bytes)
        self.t2 = H(self.t1, shares)
        self.prk = extract(H(self.P), kem_secret + x_secret)
        self.kR, self.mR, self.kI, self.mI = (
            expand(self.prk, self.P + label + self.t2) for label in (b"kR", b"mR", b"kI", b"mI")
        )

    def seal(self, key: bytes, plaintext: bytes, associated: bytes) -> bytes:
        return bytes(AEADS[self.suite](key).encrypt(bytes(12), plaintext, associated))

    def open(self, key: bytes, sealed: bytes, associated: bytes) -> bytes:
        return bytes(AEADS[self.suite](key).decrypt(bytes(12), sealed, associated))

    def traffic(
        self, label: bytes, direction: bytes, sender: bytes, receiver: bytes, t4: bytes
    ) -> bytes:
        return expand(self.prk, self.P + label + direction + sender + receiver + t4)


class ReferenceInitiator(End):
    """Dials; every keyword overrides what an honest node would say."""

    def __init__(
        self, cluster: bytes, responder: bytes, signer: SoftwareSigner, entropy: bytes
    ) -> None:
        super().__init__(cluster, responder, signer)
        self.x = X25519PrivateKey.from_private_bytes(entropy[:32])
        self.kem = MLKEM768PrivateKey.from_seed_bytes(entropy[32:])

    def init(self, wall_ms: int, **say: Any) -> bytes:
        body = (
            say.get("code", b"\x01")
            + struct.pack(">QI", wall_ms, say.get("suites", 0b110))
            + say.get("x_public", self.x.public_key().public_bytes_raw())
            + say.get("ek", self.kem.public_key().public_bytes_raw())
        )
        tagged = header(len(body) + 32) + body
        self.init_bytes = tagged + mac(say.get("admission", self.admission()), tagged)
        return self.init_bytes

    def receive(self, resp: bytes) -> bytes:
        """What RESP's sealed part says."""
        suite, x_public, ct = resp[9], resp[10:42], resp[42:1130]
        x_secret = self.x.exchange(X25519PublicKey.from_public_bytes(x_public))
        self.agree(suite, self.kem.decapsulate(ct), x_secret, resp[:1130])
        self.t3 = H(self.t1, resp)
        return self.open(self.kR, resp[1130:], self.t2)

    def fin(self, serial: int, digest: bytes, **say: Any) -> bytes:
        roster = say.get("roster", b"")
        claims = (
            say.get("id", self.id)
            + say.get("responder", H(self.responder))
            + struct.pack(">QQ", say.get("instance", 7), serial)
            + digest
            + struct.pack(">QHB", *say.get("mandate", (0, 0, 0)))
            + struct.pack(">B", say.get("purpose", 1))
            + struct.pack(">I", say.get("roster_length", len(roster)))
            + roster
        )
        context = say.get("context", b"FIN")
        signature = say.get("signature") or say.get("signer", self.signer).sign(
            self.P + context + H(say.get("transcript", self.t3), claims)
        )
        tag = say.get("mac", mac(say.get("mac_key", self.mI), H(self.t3, claims, signature)))
        plaintext = claims + signature + tag + say.get("trailing", b"")
        hdr = header(1 + len(plaintext) + 16) + say.get("code", b"\x03")
        fin = hdr + self.seal(say.get("key", self.kI), plaintext, self.t3 + hdr)
        self.t4 = H(self.t3, fin)
        return fin


class ReferenceResponder(End):
    """Answers; every keyword overrides what an honest node would say."""

    def __init__(self, cluster: bytes, signer: SoftwareSigner, entropy: bytes) -> None:
        super().__init__(cluster, signer.public_key, signer)
        self.x = X25519PrivateKey.from_private_bytes(entropy)

    def receive(self, init: bytes) -> None:
        self.init_bytes = init
        self.peer_x = init[21:53]
        secret, ciphertext = MLKEM768PublicKey.from_public_bytes(init[53:1237]).encapsulate()
        self.kem_secret, self.ct = secret, ciphertext

    def resp(self, serial: int, digest: bytes, **say: Any) -> bytes:
        suite = say.get("suite", 1)
        shares = (
            header(1 + 1 + 32 + 1088 + 91 + 64 + 32 + 16 + len(say.get("trailing", b"")))
            + say.get("code", b"\x02")
            + bytes([say.get("said_suite", suite)])
            + say.get("x_public", self.x.public_key().public_bytes_raw())
            + say.get("ct", self.ct)
        )
        x_secret = self.x.exchange(X25519PublicKey.from_public_bytes(self.peer_x))
        self.agree(suite, self.kem_secret, x_secret, shares)
        claims = say.get("id", self.id) + struct.pack(">QQ", say.get("instance", 9), serial)
        claims += digest + struct.pack(">QHB", *say.get("mandate", (0, 0, 0)))
        signature = say.get("signature") or say.get("signer", self.signer).sign(
            self.P + say.get("context", b"RESP") + H(say.get("transcript", self.t2), claims)
        )
        tag = say.get("mac", mac(say.get("mac_key", self.mR), H(self.t2, claims, signature)))
        plaintext = claims + signature + tag + say.get("trailing", b"")
        resp = shares + self.seal(say.get("key", self.kR), plaintext, self.t2)
        self.t3 = H(self.t1, resp)
        return resp

    def receive_fin(self, fin: bytes) -> bytes:
        """What FIN's sealed part says."""
        self.t4 = H(self.t3, fin)
        return self.open(self.kI, fin[9:], self.t3 + fin[:9])
