"""Handshakes as the end that dials sees them (sections 5.3 and 5.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
from sealring_protocol.errors import CloseCode

from spec.vectors.elections import HOME_ELECTED, HOME_LATER
from spec.vectors.ends import GIVEN as _ENDS
from spec.vectors.ends import dialer, link_of, said
from spec.vectors.model import FORGED, LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plain import header
from spec.vectors.plaintexts import flat
from spec.vectors.signatures import ORDER, scalars
from spec.vectors.talk import Talk, flipped
from spec.vectors.whole_messages import GOOD
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    EVE,
    HOME,
    HOME_6,
    HOME_CHANGED,
    HOME_SPARED,
    NOW,
    TERMS,
    signed,
)

OTHER_5: Final = signed(attrs.evolve(TERMS, name="another home"))
EXPIRED_5: Final = signed(attrs.evolve(TERMS, expires_ms=NOW))
SMALL_ORDER: Final = bytes.fromhex(
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
)


def high_s(signature: bytes) -> bytes:
    """The other signature that ECDSA would take."""
    s = int.from_bytes(signature[32:], "big")
    return scalars(int.from_bytes(signature[:32], "big"), ORDER - s)


def talk_to(about_init: Any = None, **talk: Any) -> Talk:
    """A talk of which INIT is said."""
    conversation = Talk(**talk)
    conversation.init(**(about_init or {}))
    return conversation


def met(**talk: Any) -> Talk:
    """A talk of which all but ACCEPT is said."""
    conversation = talk_to(**talk)
    conversation.resp()
    conversation.fin()
    return conversation


_FIRST: Final = met()
GIVEN: Final = {
    **_ENDS,
    "init": _FIRST.init_frame,
    "resp": _FIRST.resp_frame,
    "fin": _FIRST.fin_frame,
}


def vectors() -> Iterator[Vector]:
    """Dials."""
    yield from _good()
    yield from _bad_resp()
    yield from _terms()
    yield from _bad_accept()


def _dial(name: str, ids: str, about: str, talk: Talk, **say: Any) -> Vector:
    talk.resp()
    talk.fin()
    given = dialer(talk, talk.resp_frame, talk.accept(), **say)
    sent = (talk.init_frame, talk.fin_frame)
    output = said(sent, link=link_of(talk, dialing=True))
    return valid(f"initiator/{name}", "initiator", ids, about, given, output)


def _good() -> Iterator[Vector]:
    core = "HS-08 HS-10 HS-11 HS-12 HS-13 HS-24 KS-01 KS-02 KS-03"
    for suite, name in ((1, "aes"), (2, "chacha")):
        yield _dial(name, core, f"a handshake with suite {suite}", talk_to(suite=suite))
    only = talk_to({"suites": 0b100}, suite=2)
    yield _dial("one-suite", "HS-05", "offers one suite", only, suites=[2])
    preferred = talk_to(suite=1)
    about = "the responder's choice, not its own first"
    yield _dial("preference", "HS-09", about, preferred, suites=[2, 1])
    yield _dial("step", "HS-16", "a STEP link", talk_to(purpose=2))
    about = "brings a newer roster"
    yield _dial("brings", "HS-18 HS-24", about, talk_to(ours=HOME_6))
    about = "gets a newer roster"
    yield _dial("gets", "HS-25 RO-11", about, talk_to(theirs=HOME_6))
    about = "gets a change of the coordinator, having missed the naming of the spare"
    yield _dial("gets-change", "HS-25 RO-17", about, talk_to(theirs=HOME_CHANGED))
    about = "brings a change of the coordinator"
    talk = talk_to(ours=HOME_CHANGED, theirs=HOME_SPARED)
    yield _dial("brings-change", "HS-18 RO-17", about, talk)
    for name, about, ours, theirs in [
        ("brings-election", "brings an election", HOME_ELECTED, HOME),
        ("brings-later", "brings a later election", HOME_LATER, HOME_ELECTED),
        ("same-election", "both hold one election", HOME_LATER, HOME_LATER),
        ("brings-serial", "brings a newer roster, for an election", HOME_6, HOME_LATER),
    ]:
        yield _dial(name, "HS-18 HS-24 EL-05", about, talk_to(ours=ours, theirs=theirs))
    for name, about, ours, theirs in [
        ("gets-election", "gets an election", HOME, HOME_ELECTED),
        ("gets-later", "gets a later election", HOME_ELECTED, HOME_LATER),
    ]:
        yield _dial(name, "HS-25 EL-05", about, talk_to(ours=ours, theirs=theirs))
    about = "its own roster has expired, and a newer comes"
    yield _dial("saved", "HS-14 HS-25", about, talk_to(ours=EXPIRED_5, theirs=HOME_6))
    for code, about in ((4, "told that there is such a link"), (13, "told to try later")):
        talk = talk_to()
        talk.resp()
        fin = talk.fin()
        close = talk.to_dialer(0, b"\x07" + code.to_bytes(2, "big") + b"\0\2no")
        given = dialer(talk, talk.resp_frame, close)
        output = said((talk.init_frame, fin), closed=code)
        name = f"initiator/closed-{code}"
        yield valid(name, "initiator", "HS-23 LK-02", about, given, output)


def _silent(
    name: str, ids: str, about: str, talk: Talk, data: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = dialer(talk, data, **say)
    output = said((talk.init_frame,))
    ids = f"{ids} HS-28"
    return refused(f"initiator/{name}", "initiator", ids, about, given, why, output=output)


def _bad_resp() -> Iterator[Vector]:
    talk = talk_to()
    resp = talk.resp()
    # The frame decoder's limit and the exact length.
    yield _silent("resp-long", "FR-03 HS-08", "a byte too long", talk, header(1, 1326), LIMIT)
    short = header(1, 1324) + resp[8:-1]
    yield _silent("resp-short", "HS-08", "a byte too short", talk, short, MALFORMED)
    empty = header(1, 0)
    yield _silent("resp-empty", "HS-08", "an empty frame", talk, empty, MALFORMED)
    other = talk_to()
    code = other.resp(code=b"\x03")
    yield _silent("resp-code", "HS-08", "FIN's code", other, code, MALFORMED)
    reflected = header(1, 1261) + talk.init_frame[8:]
    yield _silent("reflected", "HS-08", "its own INIT comes back", talk, reflected, MALFORMED)
    for suite in (0, 3, 255):
        about = f"suite {suite}"
        data = resp[:9] + bytes([suite]) + resp[10:]
        yield _silent(f"suite-{suite}", "HS-09", about, talk, data, MALFORMED)
    one = talk_to({"suites": 0b010}, suite=2)
    about = "a suite that was not offered"
    yield _silent("suite-2", "HS-09", about, one, one.resp(), MALFORMED, suites=[1])
    for name, about, x in [
        ("x-zero", "x_R is 0", bytes(32)),
        ("x-one", "x_R is 1", b"\1" + bytes(31)),
        ("x-order-8", "x_R has order 8", SMALL_ORDER),
    ]:
        talk = talk_to()
        yield _silent(name, "HS-07", about, talk, talk.resp(x=x), MALFORMED)
    yield from _bad_resp_seal(resp)
    yield from _bad_resp_claims()


def _bad_resp_seal(resp: bytes) -> Iterator[Vector]:
    for name, about, at in [
        ("seal-flipped", "a bit of the sealed part flipped", 1200),
        ("tag-flipped", "a bit of the AEAD tag flipped", -1),
        ("ct-flipped", "a bit of ct flipped: ML-KEM rejects it without a word", 100),
        ("x-flipped", "a bit of x_R flipped", 20),
    ]:
        data = flipped(resp, at)
        yield _silent(name, "HS-10", about, talk_to(), data, FORGED)
    swapped = resp[:9] + b"\2" + resp[10:]
    about = "the other suite's code in RESP"
    yield _silent("suite-swapped", "HS-10 KS-02", about, talk_to(), swapped, FORGED)
    talk = talk_to()
    data = talk.resp(kem_secret=bytes(32))
    yield _silent("kem", "HS-10", "keys from another ML-KEM secret", talk, data, FORGED)
    talk = talk_to({"suites": 0b010})
    data = talk.resp()
    about = "made for an INIT with fewer suites: a downgrade"
    yield _silent("downgrade", "HS-10 KS-03", about, talk_to(), data, FORGED)


def _bad_resp_claims() -> Iterator[Vector]:
    cases: list[tuple[str, str, str, dict[str, Any]]] = [
        ("signer", "HS-11", "signed by another member", {"signer": CAT}),
        ("context", "HS-11 ID-03", "signed as FIN", {"context": b"FIN"}),
        ("protocol", "HS-11 KS-02", "signed for no suite", {"protocol": b"sealring/1"}),
        ("transcript", "HS-11", "signed over another transcript", {"transcript": bytes(32)}),
        ("high-s", "HS-11 ID-02", "s in the upper half", {"signature_of": high_s}),
        ("zero", "HS-11 ID-02", "a signature of zeros", {"signature": bytes(64)}),
        ("mac", "HS-12", "a MAC of zeros", {"mac": bytes(32)}),
        ("mac-key", "HS-12", "a MAC under a key of zeros", {"mac_key": bytes(32)}),
        ("id", "HS-13", "another member's id", {"id": CAT.id}),
        ("stranger", "HS-13", "a stranger's id", {"id": EVE.id}),
    ]
    for name, ids, about, say in cases:
        talk = talk_to()
        yield _silent(f"resp-{name}", ids, about, talk, talk.resp(**say), FORGED)
    talk = talk_to()
    data = talk.resp(mandate=(1, 1, 2))
    yield _silent("resp-taken", "HS-36", "taken is 2", talk, data, MALFORMED)
    talk = talk_to()
    talk.resp()
    data = talk.resp(mac_key=talk.mac_i)
    yield _silent("resp-mac-i", "HS-12", "the MAC under mI", talk, data, FORGED)


def _terms() -> Iterator[Vector]:
    talk = talk_to(theirs=OTHER_5)
    about = "the same serial, another digest"
    conflict = CloseCode.ROSTER_CONFLICT
    yield _silent("conflict", "HS-14 RO-11", about, talk, talk.resp(), conflict)
    talk = talk_to(ours=EXPIRED_5, theirs=EXPIRED_5)
    about = "its own roster has expired, and none newer is announced"
    yield _silent("expired", "HS-14", about, talk, talk.resp(), CloseCode.ROSTER_EXPIRED)
    talk = talk_to(ours=EXPIRED_5, theirs=EXPIRED_5)
    about = "its own roster has expired, and a later election is announced"
    data = talk.resp(mandate=(1, 1, 0))
    yield _silent("expired-elected", "HS-14", about, talk, data, CloseCode.ROSTER_EXPIRED)
    talk = talk_to()
    data = talk.resp() + b"\x01"
    about = "a byte more while it signs"
    yield _silent("impatient", "HS-29", about, talk, data, LIMIT)
    talk = talk_to()
    talk.resp()
    talk.fin()
    about = "a sealed frame where RESP is due"
    yield _silent("sealed-first", "HS-29 FR-02", about, talk, talk.accept(), MALFORMED)


def _told(
    name: str, ids: str, about: str, talk: Talk, frame: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = dialer(talk, talk.resp_frame, frame, **say)
    output = said((talk.init_frame, talk.fin_frame), int(why))
    return refused(f"initiator/{name}", "initiator", ids, about, given, why, output=output)


def _bad_accept() -> Iterator[Vector]:
    talk = met()
    wrong = talk.accept(transcript=talk.t3)
    yield _told("accept-transcript", "HS-24", "ACCEPT with t3", talk, wrong, FORGED)
    wrong = talk.accept(serial=6)
    about = "ACCEPT names a roster that neither holds"
    yield _told("accept-serial", "HS-24", about, talk, wrong, MALFORMED)
    for name, about, ours, theirs in [
        (
            "own",
            "ACCEPT names the responder's serial, and the initiator's is greater",
            HOME_6,
            HOME,
        ),
        (
            "other",
            "ACCEPT names the initiator's serial, and the responder's is greater",
            HOME,
            HOME_6,
        ),
    ]:
        apart = met(ours=ours, theirs=theirs)
        wrong = apart.accept(serial=5)
        yield _told(f"accept-serial-{name}", "HS-24", about, apart, wrong, MALFORMED)
    wrong = talk.accept(roster=HOME)
    about = "ACCEPT brings a roster that is not newer"
    yield _told("accept-roster", "HS-25", about, talk, wrong, MALFORMED)
    talk = met(theirs=HOME_6)
    wrong = talk.accept(roster=b"")
    about = "ACCEPT brings none, and RESP announced one"
    yield _told("accept-bare", "HS-25 RO-08", about, talk, wrong, FORGED)
    other_6 = attrs.evolve(TERMS, serial=6, name="another home")
    wrong = talk.accept(roster=signed(other_6))
    about = "ACCEPT brings another roster than RESP announced"
    yield _told("accept-other", "HS-25", about, talk, wrong, MALFORMED)
    later = talk_to(theirs=HOME_6)
    later.resp(serial=7)
    later.fin()
    wrong = later.accept(serial=7)
    about = "RESP and ACCEPT name a serial that the roster does not have"
    yield _told("accept-later", "HS-25", about, later, wrong, MALFORMED)
    wrong = talk.accept(roster=flipped(HOME_6, -1))
    about = "ACCEPT brings a roster whose signature is wrong"
    yield _told("accept-forged", "HS-25 RO-08", about, talk, wrong, FORGED)
    for name, about, mandate, data in [
        ("bare", "none, and RESP announced an election", (1, 1, 0), b""),
        ("term", "another term than RESP announced", (2, 1, 0), HOME_ELECTED),
        ("head", "another head than RESP announced", (1, 0, 0), HOME_ELECTED),
        ("taken", "votes, and RESP announced none", (1, 1, 1), HOME_ELECTED),
        ("same", "an election, and RESP announced none", (0, 0, 0), HOME_ELECTED),
    ]:
        talk = talk_to()
        talk.resp(mandate=mandate)
        talk.fin()
        wrong, why = talk.accept(roster=data), MALFORMED if data else FORGED
        yield _told(f"accept-election-{name}", "HS-25", f"ACCEPT brings {about}", talk, wrong, why)
    late = met(theirs=signed(attrs.evolve(TERMS, serial=6, expires_ms=NOW - 1)))
    about = "ACCEPT brings a roster that has expired"
    expired = CloseCode.ROSTER_EXPIRED
    yield _told("accept-expired", "HS-25 RO-12", about, late, late.accept(), expired)
    for name, who, members in [
        ("sender", "its sender", (ADA.member, CAT.member)),
        ("receiver", "its receiver", (BEN.member, CAT.member)),
    ]:
        without = met(theirs=signed(attrs.evolve(TERMS, serial=6, members=members)))
        about = f"ACCEPT brings a roster without {who}"
        accept = without.accept()
        yield _told(f"accept-without-{name}", "HS-25 RO-13", about, without, accept, FORGED)
    talk = met()
    ping = talk.to_dialer(0, flat(GOOD["ping-zero"][1]))
    yield _told("ping-first", "HS-23", "PING before ACCEPT", talk, ping, MALFORMED)
    reflected = talk.to_answerer(0, b"\x04" + talk.t4 + bytes(12))
    about = "sealed with the secret of the other direction"
    yield _told("accept-reflected", "SE-01 SE-02", about, talk, reflected, FORGED)
    second = talk.to_dialer(1, b"\x04" + talk.t4 + bytes(12))
    about = "sealed as the second frame"
    yield _told("accept-second", "SE-01 SE-02", about, talk, second, FORGED)
    about = "RESP again where ACCEPT is due"
    yield _told("resp-twice", "HS-29 FR-02", about, talk, talk.resp_frame, MALFORMED)
    long = header(2, 1 + 32 + 8 + 4 + 53389 + 16 + 1)
    about = "a frame longer than any ACCEPT"
    yield _told("accept-long", "FR-03", about, talk, long, LIMIT)
