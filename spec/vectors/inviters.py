"""Joins as the member that gave the invitation sees them (sections 14.3, 14.5 and 14.6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sealring_protocol.errors import CloseCode

from spec.vectors.ends import Delivery
from spec.vectors.initiators import SMALL_ORDER, high_s
from spec.vectors.join_talk import (
    EXPIRES_S,
    JOINED,
    PAPER,
    PINNED,
    JoinTalk,
    Paper,
    admit_of,
    inviter,
    kept,
    met,
    newcomer_met,
    said,
)
from spec.vectors.join_talk import GIVEN as _ENDS
from spec.vectors.joiners import CLOSED, HELLO, PING, PONG, ROLE, TIMEOUT
from spec.vectors.model import FORGED, LIMIT, MALFORMED, Json, Vector, refused, valid
from spec.vectors.plain import frame, header, hmac
from spec.vectors.talk import Talk, flipped
from spec.vectors.world import ADA, BEN, CAT, EVE, NOW, entropy

_FIRST: Final = met()
GIVEN: Final = {
    **_ENDS,
    "join_init": _FIRST.init_frame,
    "join_fin": _FIRST.fin_frame,
    "join_resp": _FIRST.resp_frame,
}
REFUSED: Final = CloseCode.REFUSED
OTHER: Final = Paper(secret=entropy("another invitation", 16))


def vectors() -> Iterator[Vector]:
    """Eve asks ada."""
    yield from _good()
    yield from _bad_init()
    yield from _bad_fin()
    yield from _bad_claims()
    yield from _told_why()
    yield from _decisions()
    yield from _times()


def _up(talk: JoinTalk, *plaintexts: bytes) -> tuple[Delivery, ...]:
    frames = (talk.to_answerer(i, plain) for i, plain in enumerate(plaintexts))
    return talk.init_frame, talk.fin_frame, *frames


def _joins(
    name: str,
    ids: str,
    about: str,
    talk: JoinTalk,
    plaintexts: Sequence[bytes] = (JOINED,),
    answers: Sequence[bytes] | None = None,
    *,
    skew_ms: int = 0,
    closed: int | None = None,
    **say: Any,
) -> Vector:
    given = inviter(talk, *_up(talk, *plaintexts), **say)
    sealed = [admit_of()] if answers is None else answers
    frames = [talk.to_dialer(i, answer) for i, answer in enumerate(sealed)]
    out = [each for each in plaintexts if each == JOINED]
    output = said((talk.resp_frame, *frames), None, out, newcomer_met(talk, skew_ms), closed)
    return valid(f"inviter/{name}", "inviter", ids, about, given, output)


def _good() -> Iterator[Vector]:
    core = "JN-06 JN-07 JN-15 JN-16 JN-17 JN-20 JN-22 JN-27 KS-02 KS-03"
    for suite, name in ((1, "aes"), (2, "chacha")):
        about = f"a join with suite {suite}"
        yield _joins(name, core, about, met(suite=suite), suites=[suite, 3 - suite])
    about = "suites offered that it does not know"
    yield _joins("unknown-suites", "HS-05", about, met({"suites": 0xFFFF_FFFF}))
    for skew in (-120_000, 120_000):
        talk = met({"wall_ms": NOW + skew})
        yield _joins(f"skew{skew:+d}", "JN-19", f"a clock {skew} ms off", talk, skew_ms=skew)
    about = "the second of two invitations"
    yield _joins("second", "JN-07", about, met(), invitations=[kept(OTHER), kept()])
    about = "the third machine that tries"
    yield _joins("third", "JN-20", about, met(), invitations=[kept(tries=2)])
    about = "the machine that was admitted comes again"
    yield _joins("again", "JN-27", about, met(), invitations=[kept(admitted=EVE.id)])
    about = "nobody has decided, and the joiner leaves"
    yield _joins("left", "JN-22 LK-02", about, met(), [CLOSED], [], closed=0, admit=None)
    about = "PINGs while somebody decides"
    yield _joins("pings", "JN-22 JN-23", about, met(), [PING], [PONG], admit=None)
    about = "a PING between ADMIT and JOINED"
    yield _joins("ping-between", "JN-22", about, met(), [PING, JOINED], [admit_of(), PONG])
    about = "in the last millisecond of the invitation"
    at = 1000 * EXPIRES_S - 21
    yield _joins("last-moment", "JN-20", about, met({"wall_ms": at}), wall_ms=at)


# -------------------------------------------------------------------------- JOIN_INIT


def _before_resp(
    name: str, ids: str, about: str, data: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = inviter(JoinTalk(), data, **say)
    ids = f"{ids} JN-21"
    return refused(f"inviter/{name}", "inviter", ids, about, given, why, output=said(()))


def _init(**say: Any) -> bytes:
    return JoinTalk().init(**say)


def _bad_init() -> Iterator[Vector]:
    init = _init()
    link = Talk(dialer=EVE, answerer=ADA).init()
    without = hmac(b"sealring/1join", PINNED)
    as_link = hmac(b"sealring/1adm", PINNED + PAPER.secret)
    for name, ids, about, data, why in [
        ("init-long", "FR-03 JN-06", "a byte too long", header(1, 1262), LIMIT),
        ("init-short", "JN-06", "a byte too short", header(1, 1260) + init[8:-1], MALFORMED),
        ("init-empty", "JN-06", "an empty frame", header(1, 0), MALFORMED),
        ("init-code", "JN-06", "JOIN_RESP's code", _init(code=b"\x16"), MALFORMED),
        ("scanner", "FR-01", "HTTP", b"GET / HTTP/1.1\r\n\r\n", MALFORMED),
        ("init-of-link", "JN-01", "the INIT of a link", link, MALFORMED),
        ("init-link-code", "JN-01", "INIT's code", _init(code=b"\x01"), MALFORMED),
        ("tag", "JN-07", "a bit of the tag flipped", flipped(init, -1), FORGED),
        ("tag-wall", "JN-07", "wall_ms changed", flipped(init, 16), FORGED),
        ("tag-suites", "JN-07", "a suite taken out", flipped(init, 20, 4), FORGED),
        ("tag-key", "JN-07", "ek_J changed", flipped(init, 61), FORGED),
        ("no-secret", "JN-07", "tagged without the secret", _init(key=without), FORGED),
        ("label", "JN-07 KS-01", "tagged as for a link", _init(key=as_link), FORGED),
        ("no-suite", "HS-05", "no suite", _init(suites=0), MALFORMED),
        ("ek", "HS-06", "coefficients beyond the modulus", _init(ek=b"\xff" * 1184), MALFORMED),
        ("x-zero", "HS-07", "x_J is 0", _init(x=bytes(32)), MALFORMED),
        ("x-order-8", "HS-07", "x_J has order 8", _init(x=SMALL_ORDER), MALFORMED),
        ("fin-first", "JN-06", "JOIN_FIN first", met().fin_frame, MALFORMED),
        ("sealed-first", "JN-21 FR-02", "a sealed frame", frame(2, bytes(64)), MALFORMED),
        ("impatient", "JN-21", "a byte after JOIN_INIT", init + b"\1", LIMIT),
    ]:
        yield _before_resp(name, ids, about, data, why)
    about = "an invitation that it has not given"
    data = JoinTalk(paper=OTHER).init()
    yield _before_resp("unknown", "JN-07", about, data, FORGED)
    long_ago = 1000 * (EXPIRES_S + 600)
    about = "an invitation that expired 600 s ago"
    data = JoinTalk().init(long_ago)
    yield _before_resp("forgotten", "JN-07", about, data, FORGED, wall_ms=long_ago)
    about = "it keeps no invitation"
    yield _before_resp("none", "JN-07", about, init, FORGED, invitations=[])
    about = "a JOIN_INIT that it has taken before"
    yield _before_resp("replay", "JN-08", about, init, FORGED, seen=[init[-32:]])


# --------------------------------------------------------------------------- JOIN_FIN


def _silent(name: str, ids: str, about: str, data: bytes, why: CloseCode) -> Vector:
    talk = met()
    given = inviter(talk, talk.init_frame, data)
    output = said((talk.resp_frame,))
    ids = f"{ids} JN-21"
    return refused(f"inviter/{name}", "inviter", ids, about, given, why, output=output)


def _bad_fin() -> Iterator[Vector]:
    talk = met()
    fin = talk.fin_frame
    longest = 1 + 129 + (2 + 64) + (2 + 128) + 2 + 4 * (2 + 255) + 112
    for name, ids, about, data, why in [
        ("fin-long", "FR-03 JN-15", "longer than any", header(1, longest + 1), LIMIT),
        ("fin-empty", "JN-15", "an empty frame", header(1, 0), MALFORMED),
        ("fin-short", "JN-15", "without a proof", frame(1, b"\x17" + bytes(111)), MALFORMED),
        ("fin-least", "JN-15", "a proof alone", frame(1, b"\x17" + bytes(112)), FORGED),
        ("init-twice", "JN-15", "JOIN_INIT again", _cut(talk.init_frame), MALFORMED),
        ("fin-flipped", "JN-15", "a bit of the seal flipped", flipped(fin, 50), FORGED),
        ("fin-tag", "JN-15", "a bit of the AEAD tag flipped", flipped(fin, -1), FORGED),
        ("fin-sealed", "JN-21 FR-02", "a sealed frame", frame(2, fin[8:]), MALFORMED),
    ]:
        yield _silent(name, ids, about, data, why)
    other = met(suite=2)
    about = "JOIN_FIN of a join with the other suite"
    yield _silent("fin-other", "JN-15", about, other.fin_frame, FORGED)


def _cut(init: bytes) -> bytes:
    """The fields of a JOIN_INIT in a frame that is no longer than a JOIN_FIN may be."""
    return frame(1, init[8:])


def _bad_claims() -> Iterator[Vector]:
    long = ["a" * 256]
    cases: list[tuple[str, str, str, dict[str, Any], CloseCode]] = [
        ("fin-code", "JN-15", "FIN's code", {"code": b"\x03"}, MALFORMED),
        ("fin-hdr", "JN-15 KS-03", "sealed for another header", {"hdr": bytes(9)}, FORGED),
        ("fin-key", "JN-15", "sealed with kR", {"key": met().key_r}, FORGED),
        ("fin-trailing", "JN-16", "a byte after the MAC", {"trailing": b"\0"}, MALFORMED),
        ("fin-cut", "JN-16", "the MAC a byte short", {"cut": 1}, MALFORMED),
        (
            "key-compressed",
            "JN-16 ID-01",
            "a key with the head of a compressed one",
            _key(2),
            MALFORMED,
        ),
        ("key-zero", "JN-16 ID-01", "a key that is no point", {"public": bytes(65)}, MALFORMED),
        ("name-blank", "JN-16", "a name of blanks", {"name": "  "}, MALFORMED),
        ("name-empty", "JN-16", "no name", {"name": ""}, MALFORMED),
        ("name-hidden", "JN-16", "a name that turns the text", {"name": "e\u202eve"}, MALFORMED),
        ("name-utf8", "JN-16 CV-03", "a name that is no UTF-8", {"name": b"\xff"}, MALFORMED),
        ("name-long", "JN-16 CV-02", "a name of 65 bytes", {"name": "e" * 65}, LIMIT),
        ("system-long", "JN-16 CV-02", "a system of 129 bytes", {"system": "x" * 129}, LIMIT),
        ("system-hidden", "JN-16", "an ESC in the system", {"system": "\x1b[2J"}, MALFORMED),
        ("no-address", "JN-16", "no address", {"addresses": []}, MALFORMED),
        ("five-addresses", "JN-16 CV-02", "five addresses", {"addresses": [*"abcde"]}, LIMIT),
        ("address-long", "JN-16 CV-02", "an address of 256 bytes", {"addresses": long}, LIMIT),
        ("address-empty", "JN-16", "an empty address", {"addresses": [""]}, MALFORMED),
        ("address-twice", "JN-16", "an address twice", {"addresses": ["a", "a"]}, MALFORMED),
        ("address-hidden", "JN-16", "an ESC in an address", {"addresses": ["\x1b"]}, MALFORMED),
        ("inviter", "JN-17", "id_H is another node's", {"inviter": CAT.id}, FORGED),
        ("signer", "JN-17", "signed by another key", {"signer": BEN}, FORGED),
        ("public", "JN-17", "shows another key", {"public": BEN.public}, FORGED),
        ("context", "JN-17 ID-03", "signed as FIN of a link", {"context": b"FIN"}, FORGED),
        ("transcript", "JN-17", "over another transcript", {"transcript": bytes(32)}, FORGED),
        ("high-s", "JN-17 ID-02", "s in the upper half", {"signature_of": high_s}, FORGED),
        ("mac", "JN-17", "a MAC of zeros", {"mac": bytes(32)}, FORGED),
        ("mac-r", "JN-17", "the MAC under mR", {"mac_key": met().mac_r}, FORGED),
    ]
    for name, ids, about, say, why in cases:
        yield _silent(name, ids, about, met().fin(**say), why)


def _key(head: int) -> dict[str, Any]:
    return {"public": bytes([head]) + EVE.public[1:]}


# ------------------------------------------------------------------------- the rest


def _told_why() -> Iterator[Vector]:
    for name, ids, about, state in [
        ("used", "JN-20 JN-27", "an invitation with which a machine has joined", {"used": True}),
        ("busy", "JN-20", "another machine is joining with it", {"busy": True}),
        ("tried", "JN-20", "three machines have tried it", {"tries": 3}),
        ("admitted", "JN-20 JN-27", "another machine was admitted", {"admitted": BEN.id}),
    ]:
        yield _refused(name, ids, about, met(), invitations=[kept(**state)])
    late = 1000 * EXPIRES_S
    about = "an invitation that has expired"
    yield _refused("expired", "JN-20", about, met({"wall_ms": late}), wall_ms=late)
    about = "one that expired not quite 600 s ago: it is told"
    at = late + 599_999
    yield _refused("expired-long", "JN-07 JN-20", about, met({"wall_ms": at}), wall_ms=at)
    about = "one that expires before JOIN_FIN comes"
    at = late - 20
    yield _refused("expires", "JN-20", about, met({"wall_ms": at}), wall_ms=at)
    for skew in (-120_001, 120_001):
        about = f"a clock {skew} ms off"
        yield _refused(f"skew{skew:+d}", "JN-19", about, met({"wall_ms": NOW + skew}))
    about = "the inviter's own key"
    yield _refused("own-key", "JN-18", about, met(dialer=ADA))


def _refused(name: str, ids: str, about: str, talk: JoinTalk, **say: Any) -> Vector:
    given = inviter(talk, *_up(talk), **say)
    output = said((talk.resp_frame,), int(REFUSED))
    return refused(f"inviter/{name}", "inviter", ids, about, given, REFUSED, output=output)


def _told(
    name: str,
    ids: str,
    about: str,
    talk: JoinTalk,
    given: Json,
    why: CloseCode,
    answers: Sequence[bytes] = (),
    given_out: Sequence[bytes] = (),
) -> Vector:
    sealed = [talk.to_dialer(i, answer) for i, answer in enumerate(answers)]
    output = said((talk.resp_frame, *sealed), int(why), given_out, newcomer_met(talk))
    name, released = f"inviter/{name}", b"".join(given_out)
    return refused(name, "inviter", ids, about, given, why, released=released, output=output)


def _decisions() -> Iterator[Vector]:
    talk = met()
    waiting: dict[str, Any] = {"admit": None}
    for name, ids, about, plaintext, why in [
        ("early-joined", "JN-22", "JOINED before ADMIT", JOINED, MALFORMED),
        ("hello", "JN-22", "HELLO", HELLO, ROLE),
        ("admit", "JN-22", "ADMIT to the inviter", admit_of(b"", ""), ROLE),
        ("pong", "JN-23 LK-03", "a PONG to no PING", PONG, MALFORMED),
    ]:
        given = inviter(talk, *_up(talk, plaintext), **waiting)
        yield _told(name, ids, about, talk, given, why)
    given = inviter(talk, *_up(talk, JOINED, JOINED))
    about = "JOINED twice"
    yield _told("joined-twice", "JN-22", about, talk, given, MALFORMED, [admit_of()], [JOINED])
    given = inviter(talk, *_up(talk), header(2, 278), **waiting)
    yield _told("decide-long", "FR-03", "a frame longer than any CLOSE", talk, given, LIMIT)
    given = inviter(talk, *_up(talk), talk.fin_frame, **waiting)
    yield _told("fin-twice", "JN-21 FR-02", "JOIN_FIN again", talk, given, MALFORMED)
    reflected = talk.to_dialer(0, JOINED)
    given = inviter(talk, *_up(talk), reflected, **waiting)
    yield _told("reflected", "SE-01 SE-02", "sealed for the joiner", talk, given, FORGED)
    given = inviter(talk, *_up(talk, *[PING] * 21), **waiting)
    given["deliveries"] = _at_once(given["deliveries"])
    yield _told("pings-21", "JN-23 LK-04", "21 PINGs at once", talk, given, LIMIT, [PONG] * 20)


def _at_once(deliveries: Json) -> Json:
    return [{**each, "at": min(each["at"], 0.03)} for each in deliveries]


def _times() -> Iterator[Vector]:
    talk = met()
    given = inviter(talk, (5.0, b""))
    about = "no JOIN_INIT for 5 s"
    ids = "JN-23 JN-21"
    yield refused("inviter/no-init", "inviter", ids, about, given, TIMEOUT, output=said(()))
    given = inviter(talk, (0.01, talk.init_frame), (5.0, talk.fin_frame))
    about = "JOIN_FIN after 5 s"
    output = said((talk.resp_frame,))
    yield refused("inviter/late", "inviter", ids, about, given, TIMEOUT, output=output)
    up: tuple[Delivery, ...] = ((0.01, talk.init_frame), (0.02, talk.fin_frame))
    given = inviter(talk, *up, (0.6, b""), (10.2, b""), admit=None)
    about = "silence for 10 s while somebody decides"
    yield _told("silence", "JN-23", about, talk, given, TIMEOUT, [PING])
    given = inviter(talk, *up, end=True, admit=None)
    about = "the stream ends before a decision"
    output = said((talk.resp_frame,), None, (), newcomer_met(talk))
    yield refused("inviter/lost", "inviter", "JN-23 LK-01", about, given, output=output)
    given = inviter(talk, *up, end=True)
    about = "the stream ends before JOINED"
    sent = (talk.resp_frame, talk.to_dialer(0, admit_of()))
    output = said(sent, None, (), newcomer_met(talk))
    yield refused("inviter/lost-joined", "inviter", "JN-23 LK-01", about, given, output=output)
