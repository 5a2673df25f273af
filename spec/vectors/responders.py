"""Handshakes as the end that was dialed sees them (sections 5.2 and 5.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
from sealring_protocol.codec.messages import Close
from sealring_protocol.errors import CloseCode

from spec.vectors.elections import HOME_ELECTED, HOME_LATER
from spec.vectors.ends import answerer, link_of, said
from spec.vectors.initiators import EXPIRED_5, OTHER_5, SMALL_ORDER, high_s, met, talk_to
from spec.vectors.initiators import GIVEN as _GIVEN
from spec.vectors.model import FORGED, LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plain import frame, header, hmac
from spec.vectors.plaintexts import flat
from spec.vectors.rosters import sized
from spec.vectors.talk import Talk, flipped
from spec.vectors.whole_messages import BOOTSTRAP
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    CLUSTER,
    EVE,
    HOME,
    HOME_6,
    HOME_CHANGED,
    HOME_SPARED,
    NOW,
    OTHER_CLUSTER,
    TERMS,
    Node,
    appointed,
    signed,
    spared,
)

GIVEN: Final = _GIVEN
WITH_EVE: Final = signed(attrs.evolve(TERMS, serial=6, members=(*TERMS.members, EVE.member)))
WITHOUT_ADA: Final = signed(attrs.evolve(TERMS, serial=6, members=(BEN.member, CAT.member)))
WITHOUT_BEN: Final = signed(attrs.evolve(TERMS, serial=6, members=(ADA.member, CAT.member)))
LONG_6: Final = signed(sized(49153, serial=6))
EXPIRED: Final = CloseCode.ROSTER_EXPIRED


def vectors() -> Iterator[Vector]:
    """Connections that come in."""
    yield from _good()
    yield from _bad_init()
    yield from _bad_fin()
    yield from _bad_rosters()
    yield from _bad_proofs()
    yield from _told_why()


# ------------------------------------------------------------------------- good


def _answer(name: str, ids: str, about: str, talk: Talk, **say: Any) -> Vector:
    talk.resp()
    talk.fin()
    given = answerer(talk, talk.init_frame, talk.fin_frame, **say)
    output = said((talk.resp_frame, talk.accept()), link=link_of(talk, dialing=False))
    return valid(f"responder/{name}", "responder", ids, about, given, output)


def _good() -> Iterator[Vector]:
    core = "HS-01 HS-02 HS-15 HS-17 HS-19 HS-20 KS-01 KS-02 KS-03"
    for suite, name in ((1, "aes"), (2, "chacha")):
        talk = talk_to(suite=suite)
        yield _answer(
            name, core, f"a handshake with suite {suite}", talk, suites=[suite, 3 - suite]
        )
    about = "both suites offered: its own first"
    yield _answer("preference", "HS-05", about, talk_to(suite=2), suites=[2, 1])
    about = "suites offered that it does not know"
    unknown = talk_to({"suites": 0xFFFF_FFFF})
    yield _answer("unknown-suites", "HS-05", about, unknown)
    for skew in (-120_000, 120_000):
        about = f"a clock {skew} ms off"
        talk = talk_to({"wall_ms": NOW + skew})
        yield _answer(f"skew{skew:+d}", "HS-03", about, talk)
    for purpose in (2, 3, 4, 5):
        talk = talk_to(purpose=purpose)
        yield _answer(f"purpose-{purpose}", "HS-16", f"purpose {purpose}", talk)
    about = "the initiator brings a newer roster"
    yield _answer("gets", "HS-18 HS-24", about, talk_to(ours=HOME_6))
    about = "it holds the newer roster itself"
    yield _answer("brings", "HS-25", about, talk_to(theirs=HOME_6))
    about = "the initiator brings a change of the coordinator"
    talk = talk_to(ours=HOME_CHANGED, theirs=HOME_SPARED)
    yield _answer("gets-change", "HS-18 RO-17 RO-19", about, talk)
    for name, about, ours, theirs in [
        ("gets-election", "the initiator brings an election", HOME_ELECTED, HOME),
        ("gets-later", "the initiator brings a later election", HOME_LATER, HOME_ELECTED),
    ]:
        yield _answer(name, "HS-18 EL-05", about, talk_to(ours=ours, theirs=theirs))
    for name, about, ours, theirs in [
        ("brings-election", "it holds an election itself", HOME, HOME_ELECTED),
        ("brings-later", "it holds a later election itself", HOME_ELECTED, HOME_LATER),
        ("same-election", "both hold one election", HOME_LATER, HOME_LATER),
        ("brings-serial", "it holds a newer roster, for an election", HOME_LATER, HOME_6),
    ]:
        yield _answer(name, "HS-25 EL-05", about, talk_to(ours=ours, theirs=theirs))
    about = "a member of the newer roster alone"
    yield _answer("new-member", "HS-18 HS-19", about, talk_to(dialer=EVE, ours=WITH_EVE))
    about = "its own roster has expired, and a newer comes"
    yield _answer("saved", "HS-21", about, talk_to(ours=HOME_6, theirs=EXPIRED_5))


# ------------------------------------------------------------------------- INIT


def _before_resp(
    name: str, ids: str, about: str, data: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = answerer(Talk(), data, **say)
    ids = f"{ids} HS-28"
    return refused(f"responder/{name}", "responder", ids, about, given, why, output=said(()))


def _init(**say: Any) -> bytes:
    return Talk().init(**say)


def _bad_init() -> Iterator[Vector]:
    init = _init()
    versioned = b"\2" + init[1:8]
    for name, ids, about, data, why in [
        ("init-long", "FR-03 HS-01", "a byte too long", header(1, 1262), LIMIT),
        ("init-short", "HS-01", "a byte too short", header(1, 1260) + init[8:-1], MALFORMED),
        ("init-empty", "HS-01", "an empty frame", header(1, 0), MALFORMED),
        ("init-code", "HS-01", "RESP's code", _init(code=b"\x02"), MALFORMED),
        ("init-version", "FR-01", "frame version 2", _init(header=versioned), MALFORMED),
        ("scanner", "FR-01", "HTTP", b"GET / HTTP/1.1\r\n\r\n", MALFORMED),
        ("tls", "FR-01", "a TLS ClientHello", bytes.fromhex("160301020001000001fc"), MALFORMED),
        ("tag", "HS-02", "a bit of the tag flipped", flipped(init, -1), FORGED),
        ("tag-wall", "HS-02", "wall_ms changed", flipped(init, 16), FORGED),
        ("tag-suites", "HS-02", "a suite taken out", flipped(init, 20, 4), FORGED),
        ("tag-key", "HS-02", "ek_I changed", flipped(init, 61), FORGED),
        ("other-node", "HS-02", "an INIT to another node", _init(key=_key(CAT)), FORGED),
        (
            "other-cluster",
            "HS-02",
            "another cluster's",
            _init(key=_key(BEN, OTHER_CLUSTER)),
            FORGED,
        ),
        ("early", "HS-03", "120,001 ms behind", _init(wall_ms=NOW - 120_001), FORGED),
        ("late", "HS-03", "120,001 ms ahead", _init(wall_ms=NOW + 120_001), FORGED),
        ("no-suite", "HS-05", "no suite", _init(suites=0), MALFORMED),
        ("future-suite", "HS-05", "only suite 3", _init(suites=8), MALFORMED),
        ("ek", "HS-06", "coefficients beyond the modulus", _init(ek=b"\xff" * 1184), MALFORMED),
        ("x-zero", "HS-07", "x_I is 0", _init(x=bytes(32)), MALFORMED),
        ("x-order-8", "HS-07", "x_I has order 8", _init(x=SMALL_ORDER), MALFORMED),
        ("init-of-join", "JN-01 HS-01", "JOIN_INIT's code", _init(code=b"\x15"), MALFORMED),
        ("fin-first", "HS-01", "FIN where INIT is due", met().fin_frame, MALFORMED),
        ("sealed-first", "HS-29 FR-02", "a sealed frame", frame(2, bytes(64)), MALFORMED),
        ("impatient", "HS-29", "a byte after INIT", init + b"\x01", LIMIT),
    ]:
        yield _before_resp(name, ids, about, data, why)
    about = "a suite that it does not take"
    data = _init(suites=0b010)
    yield _before_resp("other-suite", "HS-05", about, data, MALFORMED, suites=[2])
    about = "an INIT that it has taken before"
    yield _before_resp("replay", "HS-04", about, init, FORGED, seen=[init[-32:]])


def _key(who: Node, cluster: bytes = CLUSTER) -> bytes:
    return hmac(b"sealring/1adm", cluster + who.public)


# -------------------------------------------------------------------------- FIN


def _silent(
    name: str, ids: str, about: str, talk: Talk, data: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = answerer(talk, talk.init_frame, data, **say)
    output = said((talk.resp_frame,))
    ids = f"{ids} HS-28"
    return refused(f"responder/{name}", "responder", ids, about, given, why, output=output)


def _bad_fin() -> Iterator[Vector]:
    talk = met()
    fin = talk.fin_frame
    for name, ids, about, data, why in [
        ("fin-long", "HS-15 FR-03", "a body of 65,537 bytes", header(1, 65537), LIMIT),
        ("fin-empty", "HS-15", "an empty frame", header(1, 0), MALFORMED),
        ("init-twice", "HS-15", "INIT again", talk.init_frame, MALFORMED),
        ("fin-bare", "HS-15", "the code alone", frame(1, b"\x03"), FORGED),
        ("fin-flipped", "HS-15", "a bit of the sealed part flipped", flipped(fin, 50), FORGED),
        ("fin-tag", "HS-15", "a bit of the AEAD tag flipped", flipped(fin, -1), FORGED),
        ("fin-longer", "HS-15", "a byte more", header(1, 242) + fin[8:] + b"\0", FORGED),
        ("fin-sealed", "HS-29 FR-02", "a sealed frame before FIN", frame(2, fin[8:]), MALFORMED),
        ("resp-reflected", "HS-15", "its own RESP comes back", talk.resp_frame, MALFORMED),
    ]:
        yield _silent(name, ids, about, talk, data, why)
    cases: list[tuple[str, str, str, dict[str, Any], CloseCode]] = [
        ("fin-code", "HS-15", "INIT's code", {"code": b"\x01"}, MALFORMED),
        ("fin-hdr", "HS-15 KS-03", "sealed for another header", {"hdr": bytes(9)}, FORGED),
        ("fin-key", "HS-15", "sealed with kR", {"key": met().key_r}, FORGED),
        ("fin-trailing", "HS-16", "a byte after the MAC", {"trailing": b"\0"}, MALFORMED),
        ("fin-cut", "HS-16", "the MAC a byte short", {"cut": 1}, MALFORMED),
        ("fin-nothing", "HS-16", "nothing under the seal", {"cut": 224}, MALFORMED),
        ("fin-taken", "HS-36", "taken is 2", {"mandate": (0, 0, 2)}, MALFORMED),
        ("purpose-0", "HS-16", "purpose 0", {"purpose": 0}, MALFORMED),
        ("purpose-6", "HS-16", "purpose 6", {"purpose": 6}, MALFORMED),
        ("responder", "HS-17", "id_R is another node's", {"responder": CAT.id}, FORGED),
        ("own-id", "HS-17", "id_I is the responder's", {"id": BEN.id, "signer": BEN}, FORGED),
    ]
    for name, ids, about, say, why in cases:
        talk = met()
        yield _silent(name, ids, about, talk, talk.fin(**say), why)
    other = met(suite=2)
    about = "FIN of a handshake with the other suite"
    yield _silent("fin-other", "HS-15", about, met(), other.fin_frame, FORGED)


def _bad_rosters() -> Iterator[Vector]:
    made = attrs.evolve(appointed(), naming=appointed(spare=EVE).naming)
    unnamed = signed(attrs.evolve(spared(0, 6), appointing=made))
    late = signed(attrs.evolve(TERMS, serial=6, expires_ms=NOW))
    elsewhere = signed(attrs.evolve(TERMS, serial=6, cluster=OTHER_CLUSTER))
    cases: list[tuple[str, str, str, bytes | None, dict[str, Any], CloseCode]] = [
        ("roster-same", "HS-18", "one that is not newer", None, {"roster": HOME_6}, MALFORMED),
        ("roster-none", "HS-18", "none, and serial 6", HOME_6, {"roster": b""}, MALFORMED),
        ("roster-serial", "HS-18", "serial 7, roster 6", HOME_6, {"serial": 7}, MALFORMED),
        ("roster-digest", "HS-18", "another digest", HOME_6, {"digest": bytes(32)}, MALFORMED),
        ("election-none", "HS-18", "none, and term 1", None, {"mandate": (1, 1, 0)}, MALFORMED),
        ("election-same", "HS-18", "term 0", HOME_ELECTED, {"mandate": (0, 0, 0)}, MALFORMED),
        ("election-term", "HS-18", "another term", HOME_ELECTED, {"mandate": (2, 1, 0)}, MALFORMED),
        ("election-head", "HS-18", "another head", HOME_ELECTED, {"mandate": (1, 0, 0)}, MALFORMED),
        ("election-taken", "HS-18", "taken", HOME_ELECTED, {"mandate": (1, 1, 1)}, MALFORMED),
        ("roster-long", "RO-07 CV-02", "a roster of 49,153 bytes", LONG_6, {}, LIMIT),
        ("roster-declared", "CV-02", "53,390 bytes", None, {"roster_length": 53390}, LIMIT),
        ("roster-forged", "RO-08", "signed by a member", signed(_terms_6(), ADA), {}, FORGED),
        ("roster-naming", "RO-17", "a spare that the key did not name", unnamed, {}, FORGED),
        ("roster-cluster", "RO-10", "another cluster's", elsewhere, {}, FORGED),
        ("roster-expired", "RO-12", "one that has expired", late, {}, EXPIRED),
        ("roster-without", "RO-13", "one without its sender", WITHOUT_ADA, {}, FORGED),
        ("roster-receiver", "RO-13", "one without its receiver", WITHOUT_BEN, {}, FORGED),
    ]
    for name, ids, about, ours, say, why in cases:
        talk = met(ours=ours) if ours else met()
        yield _silent(name, f"HS-18 {ids}", about, talk, talk.fin(**say), why)


def _terms_6() -> Any:
    return attrs.evolve(TERMS, serial=6)


def _bad_proofs() -> Iterator[Vector]:
    cases: list[tuple[str, str, str, dict[str, Any]]] = [
        ("signer", "HS-20", "signed by another member", {"signer": CAT}),
        ("claimed", "HS-20", "another member's id", {"id": CAT.id}),
        ("context", "HS-20 ID-03", "signed as RESP", {"context": b"RESP"}),
        ("transcript", "HS-20", "signed over another transcript", {"transcript": bytes(32)}),
        ("high-s", "HS-20 ID-02", "s in the upper half", {"signature_of": high_s}),
        ("mac", "HS-20", "a MAC of zeros", {"mac": bytes(32)}),
        ("mac-r", "HS-20", "the MAC under mR", {"mac_key": met().mac_r}),
    ]
    for name, ids, about, say in cases:
        talk = met()
        yield _silent(f"fin-{name}", ids, about, talk, talk.fin(**say), FORGED)
    talk = met(dialer=EVE)
    about = "a stranger who has read the roster"
    yield _silent("stranger", "HS-19", about, talk, talk.fin_frame, FORGED)
    talk = met(theirs=WITHOUT_ADA)
    about = "a former member, by the newer roster held"
    yield _silent("former", "HS-19", about, talk, talk.fin_frame, FORGED)


def _told_why() -> Iterator[Vector]:
    for name, ids, about, talk, why in [
        (
            "conflict",
            "HS-21 RO-11",
            "the same serial, another digest",
            met(theirs=OTHER_5),
            CloseCode.ROSTER_CONFLICT,
        ),
        (
            "expired",
            "HS-21",
            "its own roster has expired, and none newer comes",
            met(theirs=EXPIRED_5, ours=EXPIRED_5),
            EXPIRED,
        ),
    ]:
        given = answerer(talk, talk.init_frame, talk.fin_frame)
        output = said((talk.resp_frame,), int(why))
        yield refused(f"responder/{name}", "responder", ids, about, given, why, output=output)
    talk = met()
    early = talk.to_answerer(0, flat(BOOTSTRAP))
    given = answerer(talk, talk.init_frame, talk.fin_frame + early)
    output = said((talk.resp_frame,), int(MALFORMED))
    name, about = "responder/early-data", "a message before ACCEPT"
    yield refused(name, "responder", "HS-29", about, given, MALFORMED, output=output)
    for name, about, talk in [
        ("early-long", "a frame longer than any CLOSE, before ACCEPT", met()),
        ("store-long", "the same, while a roster is stored", met(ours=HOME_6)),
    ]:
        frame_278 = talk.to_answerer(0, bytes(278 - 16))
        given = answerer(talk, talk.init_frame, talk.fin_frame + frame_278)
        output = said((talk.resp_frame,), int(LIMIT))
        ids = "FR-03 HS-29"
        yield refused(f"responder/{name}", "responder", ids, about, given, LIMIT, output=output)
    talk = met()
    longest = talk.to_answerer(0, flat(Close(0, "n" * 256)))
    given = answerer(talk, talk.init_frame, talk.fin_frame + longest)
    name, about = "responder/early-longest", "the longest CLOSE, before ACCEPT"
    output = said((talk.resp_frame,), closed=0)
    yield valid(name, "responder", "FR-03 HS-29", about, given, output)
    close = talk.to_answerer(0, flat(Close(0, "")))
    given = answerer(talk, talk.init_frame, talk.fin_frame + close)
    name, about = "responder/early-close", "CLOSE before ACCEPT"
    output = said((talk.resp_frame,), closed=0)
    yield valid(name, "responder", "HS-29 LK-02", about, given, output)
    accept = talk.accept()
    given = answerer(talk, talk.init_frame, talk.fin_frame, talk.fin_frame)
    output = said((talk.resp_frame, accept), int(MALFORMED), link=link_of(talk, dialing=False))
    name, about = "responder/fin-twice", "FIN again after FIN"
    yield refused(name, "responder", "HS-29 FR-02", about, given, MALFORMED, output=output)
