"""A whole handshake from the specification's formulas, both ends at once.

A `Talk` knows the secrets of both ends, so it can say what an honest end would say and, where a
keyword overrides it, what a dishonest one would: with tags, signatures and MACs that are right
for what it says, unless those are what is wrong.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from spec.vectors.plain import PROTOCOLS, expand, header, hmac, seal, sealed_frame, sha256
from spec.vectors.world import (
    ADA,
    BEN,
    CLUSTER,
    HOME,
    NOW,
    Node,
    entropy,
    recorded_encapsulation,
)

DIALING: Final = entropy("dialing", 96)
ANSWERING: Final = entropy("answering", 32)
X_DIALING: Final = X25519PrivateKey.from_private_bytes(DIALING[:32])
X_ANSWERING: Final = X25519PrivateKey.from_private_bytes(ANSWERING)
KEM: Final = MLKEM768PrivateKey.from_seed_bytes(DIALING[32:])
EK: Final = KEM.public_key().public_bytes_raw()
CT, SS = recorded_encapsulation(EK)
X_SECRET: Final = X_ANSWERING.exchange(X_DIALING.public_key())


def signed_part(roster: bytes) -> bytes:
    """A signed roster without the certificate before it."""
    if roster[:1] != b"\3":
        return roster
    return roster[1 + 12 + 66 * int.from_bytes(roster[11:13], "big") :]


def _terms_at(roster: bytes) -> int:
    name = 33 + 266 * (roster[:1] == b"\2")
    return name + 2 + int.from_bytes(roster[name : name + 2], "big")


def serial_of(roster: bytes) -> int:
    """The serial of a signed roster."""
    roster = signed_part(roster)
    at = _terms_at(roster)
    return int.from_bytes(roster[at : at + 8], "big")


def digest_of(roster: bytes) -> bytes:
    """The digest of a signed roster."""
    return sha256(signed_part(roster)[:-64])


def mandate_of(roster: bytes) -> tuple[int, int, int]:
    """Term, head and taken of a signed roster."""
    bare = signed_part(roster)
    if bare is roster:
        return 0, 0, 0
    at = _terms_at(bare) + 25
    members = int.from_bytes(bare[at : at + 2], "big")
    term, head, votes = struct.unpack(">QHH", roster[1:13])
    return term, head, int(2 * votes <= members)


def _order(roster: bytes) -> tuple[int, int, bool, int]:
    term, head, taken = mandate_of(roster)
    return serial_of(roster), term, not taken, -head


class Talk:
    """One handshake of *dialer* with *answerer*, who hold *ours* and *theirs*."""

    def __init__(
        self,
        suite: int = 1,
        *,
        dialer: Node = ADA,
        answerer: Node = BEN,
        ours: bytes = HOME,
        theirs: bytes = HOME,
        purpose: int = 1,
    ) -> None:
        self.suite = suite
        self.protocol = PROTOCOLS[suite]
        self.dialer = dialer
        self.answerer = answerer
        self.ours = ours
        self.theirs = theirs
        self.purpose = purpose

    # ------------------------------------------------------------------- INIT

    def init(self, wall_ms: int = NOW, **say: Any) -> bytes:
        """INIT. *say*: header, code, suites, x, ek, key, tag, trailing."""
        body = (
            say.get("code", b"\x01")
            + struct.pack(">QI", wall_ms, say.get("suites", 0b110))
            + say.get("x", X_DIALING.public_key().public_bytes_raw())
            + say.get("ek", EK)
        )
        trailing = say.get("trailing", b"")
        tagged = say.get("header", header(1, len(body) + 32 + len(trailing))) + body
        key = say.get("key", hmac(b"sealring/1adm", CLUSTER + self.answerer.public))
        self.init_frame = bytes(tagged + say.get("tag", hmac(key, tagged)) + trailing)
        return self.init_frame

    # ------------------------------------------------------------------- RESP

    def resp(self, **say: Any) -> bytes:
        """RESP. *say*: code, suite, x, ct, kem_secret, responder, id, instance, serial, digest,
        mandate, context, transcript, signer, signature, mac_key, mac, key, trailing."""
        claims = (
            say.get("id", self.answerer.id)
            + struct.pack(">Q", say.get("instance", self.answerer.instance))
            + struct.pack(">Q", say.get("serial", serial_of(self.theirs)))
            + say.get("digest", digest_of(self.theirs))
            + struct.pack(">QHB", *say.get("mandate", mandate_of(self.theirs)))
        )
        return self._resp(b"\x02", b"RESP", claims, say)

    def _resp(
        self, code: bytes, context: bytes, claims: bytes, say: dict[str, Any], secret: bytes = b""
    ) -> bytes:
        trailing = say.get("trailing", b"")
        size = len(claims) + 64 + 32 + len(trailing) - say.get("cut", 0)
        self.shares = (
            header(1, 1122 + size + 16)
            + say.get("code", code)
            + bytes([say.get("suite", self.suite)])
            + say.get("x", X_ANSWERING.public_key().public_bytes_raw())
            + say.get("ct", CT)
        )
        self._agree(self.shares, say.get("kem_secret", SS) + X_SECRET + secret)
        proven = self._proven(context, self.t2, claims, self.mac_r, self.answerer, say)
        plaintext = (claims + proven + trailing)[:size]
        sealed = seal(self.suite, self.key_r, bytes(12), plaintext, self.t2)
        if "flip" in say:
            sealed = flipped(sealed, say["flip"])
        self.resp_frame = bytes(self.shares + sealed)
        self.t3 = sha256(self.t1, self.resp_frame)
        return self.resp_frame

    def _parties(self) -> tuple[bytes, ...]:
        """What t1 has before INIT."""
        return CLUSTER, self.answerer.public

    def _agree(self, shares: bytes, secrets: bytes) -> None:
        protocol = self.protocol
        self.t1 = sha256(protocol, *self._parties(), self.init_frame)
        self.t2 = sha256(self.t1, shares)
        self.prk = hmac(sha256(protocol), secrets)
        self.key_r = expand(self.prk, protocol + b"kR" + self.t2)
        self.mac_r = expand(self.prk, protocol + b"mR" + self.t2)
        self.key_i = expand(self.prk, protocol + b"kI" + self.t2)
        self.mac_i = expand(self.prk, protocol + b"mI" + self.t2)

    def _proven(
        self,
        context: bytes,
        transcript: bytes,
        claims: bytes,
        mac_key: bytes,
        who: Node,
        say: dict[str, Any],
    ) -> bytes:
        """Signature and MAC."""
        signed = say.get("transcript", transcript)
        payload = say.get("protocol", self.protocol) + say.get("context", context)
        signer = say.get("signer", who).signer
        signature = say.get("signature") or signer.sign(payload + sha256(signed, claims))
        if "signature_of" in say:
            signature = say["signature_of"](signature)
        key = say.get("mac_key", mac_key)
        return bytes(signature + say.get("mac", hmac(key, sha256(transcript, claims, signature))))

    # -------------------------------------------------------------------- FIN

    def fin(self, **say: Any) -> bytes:
        """FIN. *say*: as for RESP, and also responder, purpose, roster, roster_length, header."""
        newer = _order(self.ours) > _order(self.theirs)
        roster = say.get("roster", self.ours if newer else b"")
        claims = (
            say.get("id", self.dialer.id)
            + say.get("responder", self.answerer.id)
            + struct.pack(">Q", say.get("instance", self.dialer.instance))
            + struct.pack(">Q", say.get("serial", serial_of(self.ours)))
            + say.get("digest", digest_of(self.ours))
            + struct.pack(">QHB", *say.get("mandate", mandate_of(self.ours)))
            + bytes([say.get("purpose", self.purpose)])
            + struct.pack(">I", say.get("roster_length", len(roster)))
            + roster
        )
        return self._fin(b"\x03", b"FIN", claims, say)

    def _fin(self, code: bytes, context: bytes, claims: bytes, say: dict[str, Any]) -> bytes:
        proven = self._proven(context, self.t3, claims, self.mac_i, self.dialer, say)
        plaintext = claims + proven + say.get("trailing", b"")
        plaintext = plaintext[: len(plaintext) - say.get("cut", 0)]
        hdr = header(1, 1 + len(plaintext) + 16) + say.get("code", code)
        associated = self.t3 + say.get("hdr", hdr)
        sealed = seal(self.suite, say.get("key", self.key_i), bytes(12), plaintext, associated)
        if "flip" in say:
            sealed = flipped(sealed, say["flip"])
        self.fin_frame = bytes(hdr + sealed)
        self.t4 = sha256(self.t3, self.fin_frame)
        return self.fin_frame

    # ------------------------------------------------------------------- link

    def secret(self, label: bytes, direction: int) -> bytes:
        """A link's secret; direction 0 is towards the answerer."""
        parties = [self.dialer.id, self.answerer.id]
        if direction:
            parties.reverse()
        info = self.protocol + label + bytes([direction]) + b"".join(parties) + self.t4
        return expand(self.prk, info)

    def to_answerer(self, number: int, plaintext: bytes, **wrong: Any) -> bytes:
        """Sealed frame *number* of the dialer."""
        return sealed_frame(self.suite, self.secret(b"traffic", 0), number, plaintext, **wrong)

    def to_dialer(self, number: int, plaintext: bytes, **wrong: Any) -> bytes:
        """Sealed frame *number* of the answerer."""
        return sealed_frame(self.suite, self.secret(b"traffic", 1), number, plaintext, **wrong)

    def accept(self, **say: Any) -> bytes:
        """ACCEPT, sealed as the answerer's first frame. *say*: transcript, serial, roster."""
        newer = _order(self.theirs) > _order(self.ours)
        roster = say.get("roster", self.theirs if newer else b"")
        serial = max(serial_of(self.ours), serial_of(self.theirs))
        plaintext = (
            b"\x04"
            + say.get("transcript", self.t4)
            + struct.pack(">QI", say.get("serial", serial), len(roster))
            + roster
        )
        return self.to_dialer(0, plaintext)


def flipped(data: bytes, at: int, bits: int = 1) -> bytes:
    """*data* with *bits* of one byte flipped."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
