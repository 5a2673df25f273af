"""A join from the specification's formulas, both ends at once, for the targets that lie in it.

As `spec.vectors.talk` is for a link: it shares nothing with the package but the signer, and says
what an honest end would say or, where a keyword overrides it, what a dishonest one would.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from sealring_protocol.joining.exchange import Newcomer
from sealring_protocol.joining.invitation import Invitation

from spec.vectors.plain import PROTOCOLS, expand, header, hmac, seal, sha256, text
from spec.vectors.talk import CT, EK, SS, X_ANSWERING, X_DIALING
from spec.vectors.world import ADA, COORDINATOR, EVE, HOME, NOW, TERMS, Node, entropy, signed

JOINER: Final = EVE
INVITER: Final = ADA
INVITATION: Final = Invitation(
    ("ada.example:7471",),
    sha256(COORDINATOR.public),
    entropy("invitation", 16),
    NOW // 1000 + 600,
)
NEWCOMER: Final = Newcomer(JOINER.public, "eve", "Linux", 1 << 34, 7, ("eve.example:7470",))
ADMITTED: Final = signed(attrs.evolve(TERMS, serial=6, members=(*TERMS.members, EVE.member)))
OTHERS: Final = (
    HOME,
    ADMITTED,
    signed(attrs.evolve(TERMS, serial=6)),
    signed(attrs.evolve(TERMS, serial=6, expires_ms=NOW)),
    signed(attrs.evolve(TERMS, serial=6), EVE),
    signed(attrs.evolve(TERMS, serial=7, members=(EVE.member,))),
    b"",
)


class JoinTalk:
    """One join of `JOINER` with `INVITER`."""

    def __init__(self, suite: int = 1) -> None:
        self.suite = suite
        self.protocol = PROTOCOLS[suite]

    def init(self, **say: Any) -> bytes:
        """JOIN_INIT. *say*: wall_ms, suites, code, x, secret, tag, trailing."""
        body = (
            say.get("code", b"\x15")
            + struct.pack(">QI", say.get("wall_ms", NOW), say.get("suites", 0b110))
            + say.get("x", X_DIALING.public_key().public_bytes_raw())
            + EK
        )
        trailing = say.get("trailing", b"")
        tagged = header(1, len(body) + 32 + len(trailing)) + body
        key = hmac(b"sealring/1join", INVITATION.coordinator + self._secret(say))
        self.init_frame = bytes(tagged + say.get("tag", hmac(key, tagged)) + trailing)
        return self.init_frame

    def _secret(self, say: dict[str, Any]) -> bytes:
        return bytes(say.get("secret", INVITATION.secret))

    def resp(self, **say: Any) -> bytes:
        """JOIN_RESP. *say*: code, suite, x, ct, kem_secret, secret, coordinator, id, roster,
        roster_length, signer, context, transcript, signature, mac, trailing."""
        roster = say.get("roster", HOME)
        size = struct.pack(">I", say.get("roster_length", len(roster)))
        coordinator = say.get("coordinator", COORDINATOR).public
        claims = coordinator + say.get("id", INVITER.id) + size + roster
        trailing = say.get("trailing", b"")
        shares = (
            header(1, 1122 + len(claims) + 96 + len(trailing) + 16)
            + say.get("code", b"\x16")
            + bytes([say.get("suite", self.suite)])
            + say.get("x", X_ANSWERING.public_key().public_bytes_raw())
            + say.get("ct", CT)
        )
        self._agree(shares, say)
        proven = self._proven(b"JOIN-RESP", self.t2, claims, self.mac_r, INVITER, say)
        sealed = seal(self.suite, self.key_r, bytes(12), claims + proven + trailing, self.t2)
        self.resp_frame = bytes(shares + sealed)
        self.t3 = sha256(self.t1, self.resp_frame)
        return self.resp_frame

    def _agree(self, shares: bytes, say: dict[str, Any]) -> None:
        protocol = self.protocol
        x_secret = X_ANSWERING.exchange(
            X25519PublicKey.from_public_bytes(X_DIALING.public_key().public_bytes_raw())
        )
        self.t1 = sha256(protocol, b"join", INVITATION.coordinator, self.init_frame)
        self.t2 = sha256(self.t1, shares)
        secrets = say.get("kem_secret", SS) + x_secret + self._secret(say)
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
        payload = self.protocol + say.get("context", context)
        signed_hash = sha256(say.get("transcript", transcript), claims)
        signature = say.get("signature") or say.get("signer", who).signer.sign(
            payload + signed_hash
        )
        tag = hmac(mac_key, sha256(transcript, claims, signature))
        return bytes(signature + say.get("mac", tag))

    def fin(self, **say: Any) -> bytes:
        """JOIN_FIN. *say*: who, public_key, id, name, system, build, memory, addresses, count,
        signer, context, transcript, signature, mac, trailing, cut, code."""
        addresses = say.get("addresses", NEWCOMER.addresses)
        claims = (
            say.get("public_key", say.get("who", JOINER).public)
            + say.get("id", INVITER.id)
            + struct.pack(">QQ", say.get("build", NEWCOMER.build), NEWCOMER.memory)
            + text(say.get("name", NEWCOMER.name))
            + text(say.get("system", NEWCOMER.system))
            + struct.pack(">H", say.get("count", len(addresses)))
            + b"".join(map(text, addresses))
        )
        claims = claims[: len(claims) - say.get("cut", 0)]
        proven = self._proven(b"JOIN-FIN", self.t3, claims, self.mac_i, JOINER, say)
        plaintext = claims + proven + say.get("trailing", b"")
        hdr = header(1, 1 + len(plaintext) + 16) + say.get("code", b"\x17")
        sealed = seal(self.suite, self.key_i, bytes(12), plaintext, self.t3 + hdr)
        self.fin_frame = bytes(hdr + sealed)
        self.t4 = sha256(self.t3, self.fin_frame)
        return self.fin_frame

    def traffic(
        self, direction: int, joiner: bytes = JOINER.id, inviter: bytes = INVITER.id
    ) -> bytes:
        """The traffic secret towards the inviter (0) or the joiner (1)."""
        ends = (joiner, inviter)
        sender, receiver = ends if direction == 0 else ends[::-1]
        info = b"traffic" + bytes([direction]) + sender + receiver + self.t4
        return expand(self.prk, self.protocol + info)
