"""A whole join from the specification's formulas, both ends at once (section 14), and what a vector
tells either end of it.

As in a `Talk`, keywords override what an honest end would say, with tags, signatures and MACs that
are right for what it says, unless those are what is wrong.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs

from spec.vectors import ends
from spec.vectors.ends import Delivery, heard
from spec.vectors.model import Json, u64
from spec.vectors.plain import hmac, sha256, text
from spec.vectors.talk import (
    ANSWERING,
    CT,
    DIALING,
    SS,
    Talk,
    digest_of,
)
from spec.vectors.world import ADA, COORDINATOR, EVE, HOME, NOW, TERMS, Node, entropy, signed

SECRET: Final = entropy("invitation", 16)
PINNED: Final = sha256(COORDINATOR.public)
EXPIRES_S: Final = NOW // 1000 + 600
ADDRESSES: Final = ("192.168.1.10:7471", "[fd00::10]:7471")
AFTER: Final = signed(attrs.evolve(TERMS, serial=6, members=(*TERMS.members, EVE.member)))
"""The roster that holds the joiner, eve."""
SETTINGS: Final = '{"model": "tiny"}'


@attrs.frozen
class Paper:
    """What an invitation says. *texts* are its addresses; *check* and *tail* may be wrong."""

    expires_s: int = EXPIRES_S
    coordinator: bytes = PINNED
    secret: bytes = SECRET
    texts: Sequence[str | bytes] = ADDRESSES
    count: int | None = None
    check: bytes | None = None
    tail: bytes = b""

    @property
    def data(self) -> bytes:
        """The bytes."""
        count = len(self.texts) if self.count is None else self.count
        body = struct.pack(">I", self.expires_s) + self.coordinator + self.secret
        body += bytes([count]) + b"".join(text(each) for each in self.texts) + self.tail
        return body + (sha256(body)[:4] if self.check is None else self.check)

    @property
    def words(self) -> str:
        """The text."""
        return "sr1-" + base64.b32encode(self.data).decode().rstrip("=").lower()


PAPER: Final = Paper()


class JoinTalk(Talk):
    """One join of *dialer* by *paper*, which *answerer* gave, who holds *theirs*."""

    def __init__(
        self,
        suite: int = 1,
        *,
        paper: Paper = PAPER,
        dialer: Node = EVE,
        answerer: Node = ADA,
        theirs: bytes = HOME,
    ) -> None:
        super().__init__(suite, dialer=dialer, answerer=answerer, theirs=theirs)
        self.paper = paper

    def init(self, wall_ms: int = NOW, **say: Any) -> bytes:
        """JOIN_INIT. *say*: as for INIT, and secret."""
        secret = say.get("secret", self.paper.secret)
        key = hmac(b"sealring/1join", self.paper.coordinator + secret)
        return super().init(wall_ms, **{"code": b"\x15", "key": key, **say})

    def resp(self, **say: Any) -> bytes:
        """JOIN_RESP. *say*: code, suite, x, ct, kem_secret, secret, coordinator, id, roster,
        roster_length, trailing, cut, context, signer, signature, mac_key, mac."""
        roster = say.get("roster", self.theirs)
        claims = (
            say.get("coordinator", COORDINATOR.public)
            + say.get("id", self.answerer.id)
            + struct.pack(">I", say.get("roster_length", len(roster)))
            + roster
        )
        secret = say.get("secret", self.paper.secret)
        return self._resp(b"\x16", b"JOIN-RESP", claims, say, secret)

    def _parties(self) -> tuple[bytes, ...]:
        return b"join", self.paper.coordinator

    def fin(self, **say: Any) -> bytes:
        """JOIN_FIN. *say*: public, inviter, build, memory, name, system, addresses, count, short
        (bytes that the claims lack), code, key, hdr, and as for JOIN_RESP from trailing on."""
        told = NEWCOMER | say
        claims = (
            say.get("public", self.dialer.public)
            + say.get("inviter", self.answerer.id)
            + struct.pack(">QQ", told["build"], told["memory"])
            + text(told["name"])
            + text(told["system"])
            + struct.pack(">H", say.get("count", len(told["addresses"])))
            + b"".join(text(each) for each in told["addresses"])
        )
        claims = claims[: len(claims) - say.get("short", 0)]
        return self._fin(b"\x17", b"JOIN-FIN", claims, say)


def admit_of(roster: bytes = AFTER, settings: str | bytes = SETTINGS) -> bytes:
    """The plaintext of ADMIT, whose lengths come before its contents."""
    data = settings.encode() if isinstance(settings, str) else settings
    return b"\x18" + struct.pack(">IH", len(roster), len(data)) + roster + data


JOINED: Final = b"\x19"
NEWCOMER: Final[dict[str, Any]] = {
    "name": "eve",
    "system": "Linux 6.12, 8 cores",
    "memory": 64 << 30,
    "build": 7,
    "addresses": ["eve.example:7470"],
}
"""What the joiner says of itself."""

GIVEN: Final = {
    "dialing": DIALING,
    "answering": ANSWERING,
    "ciphertext": CT,
    "shared_secret": SS,
    "home": HOME,
    "after": AFTER,
    "coordinator": COORDINATOR.public,
    "ada_scalar": ADA.scalar,
    "eve_scalar": EVE.scalar,
    "eve_public": EVE.public,
    "ada_id": ADA.id,
}


def met(about_init: dict[str, Any] | None = None, **talk: Any) -> JoinTalk:
    """A join of which all handshake messages are said."""
    conversation = JoinTalk(**talk)
    conversation.init(**(about_init or {}))
    conversation.resp()
    conversation.fin()
    return conversation


def joiner(talk: JoinTalk, *deliveries: Delivery, **say: Any) -> Json:
    """The input of the joiner. *say*: suites, wall_ms, end."""
    told = {**NEWCOMER, "memory": u64(NEWCOMER["memory"]), "build": u64(NEWCOMER["build"])}
    return {
        "scalar": talk.dialer.scalar.hex(),
        **heard(deliveries, say),
        **told,
        "invitation": talk.paper.words,
        "entropy": DIALING.hex(),
    }


def kept(paper: Paper = PAPER, **state: Any) -> Json:
    """An invitation as the inviter keeps it. *state*: tries, busy, used, admitted (a node id)."""
    admitted = state.get("admitted")
    return {
        "text": paper.words,
        "tries": state.get("tries", 0),
        "busy": state.get("busy", False),
        "used": state.get("used", False),
        "admitted": None if admitted is None else admitted.hex(),
    }


def inviter(talk: JoinTalk, *deliveries: Delivery, **say: Any) -> Json:
    """The input of the inviter. *say*: suites, wall_ms, end, seen, invitations, admit (the roster,
    or None)."""
    roster = say.get("admit", AFTER)
    return {
        "scalar": talk.answerer.scalar.hex(),
        **heard(deliveries, say),
        "roster": talk.theirs.hex(),
        "coordinator": COORDINATOR.public.hex(),
        "entropy": ANSWERING.hex(),
        "encapsulation": {"ciphertext": CT.hex(), "secret": SS.hex()},
        "invitations": say.get("invitations", [kept(talk.paper)]),
        "seen": [tag.hex() for tag in say.get("seen", ())],
        "admit": None if roster is None else {"roster": roster.hex(), "settings": SETTINGS},
    }


said: Final = partial(ends.said, name="met")
"""The output of an end."""


def inviter_met(talk: JoinTalk) -> Json:
    """What the joiner knows once it has sent JOIN_FIN."""
    return {
        "suite": talk.suite,
        "send": talk.secret(b"traffic", 0).hex(),
        "receive": talk.secret(b"traffic", 1).hex(),
        "inviter": talk.answerer.id.hex(),
        "roster": digest_of(talk.theirs).hex(),
    }


def newcomer_met(talk: JoinTalk, skew_ms: int = 0) -> Json:
    """What the inviter knows once JOIN_FIN is verified."""
    return {
        "suite": talk.suite,
        "send": talk.secret(b"traffic", 1).hex(),
        "receive": talk.secret(b"traffic", 0).hex(),
        "public_key": talk.dialer.public.hex(),
        **NEWCOMER,
        "memory": u64(NEWCOMER["memory"]),
        "build": u64(NEWCOMER["build"]),
        "skew_ms": skew_ms,
    }
