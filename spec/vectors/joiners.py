"""Joins as the machine that joins sees them (sections 14.4 to 14.8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
from sealring_protocol.codec.messages import Close, Hello, Ping, Pong, Progress
from sealring_protocol.codec.tensor import DType
from sealring_protocol.errors import CloseCode

from spec.vectors.elections import HOME_ELECTED, in_force
from spec.vectors.ends import Delivery
from spec.vectors.initiators import SMALL_ORDER, high_s
from spec.vectors.join_talk import (
    AFTER,
    JOINED,
    JoinTalk,
    Paper,
    admit_of,
    inviter_met,
    joiner,
    met,
    said,
)
from spec.vectors.join_talk import GIVEN as _ENDS
from spec.vectors.model import FORGED, LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plain import header
from spec.vectors.plaintexts import flat
from spec.vectors.talk import Talk, flipped
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    COORDINATOR,
    EVE,
    HOME,
    HOME_6,
    HOME_CHANGED,
    NEXT,
    NOW,
    OTHER_CLUSTER,
    TERMS,
    Node,
    signed,
    spared,
)

_FIRST: Final = met()
GIVEN: Final = {
    **_ENDS,
    "join_init": _FIRST.init_frame,
    "join_resp": _FIRST.resp_frame,
    "join_fin": _FIRST.fin_frame,
}
ROLE: Final = CloseCode.ROLE_VIOLATION
EXPIRED: Final = CloseCode.ROSTER_EXPIRED
TIMEOUT: Final = CloseCode.TIMEOUT
PING: Final = flat(Ping(1, Progress()))
PONG: Final = flat(Pong(1, Progress()))
HELLO: Final = flat(Hello(bytes(32), 1, DType.F32, 1, 0))
CLOSED: Final = flat(Close(0, "welcome"))
LATE: Final = signed(attrs.evolve(TERMS, expires_ms=NOW))
_WITHIN: Final = attrs.evolve(TERMS, members=(*TERMS.members, EVE.member))
WITHIN: Final = signed(_WITHIN)
"""A roster that holds the joiner already."""

WITHIN_ELECTED: Final = in_force(_WITHIN, 1, 1, 0, 1, 2)
"""The same, whose members have made ben the head."""

CHANGED: Final = signed(spared(1, 2, NEXT, members=(*TERMS.members, EVE.member)), NEXT)
"""A roster of the second coordinator, with the joiner."""


def vectors() -> Iterator[Vector]:
    """Eve joins ada's cluster."""
    yield from _good()
    yield from _bad_resp()
    yield from _bad_claims()
    yield from _bad_admit()
    yield from _out_of_place()
    yield from _times()


def _up(talk: JoinTalk, *plaintexts: bytes) -> tuple[Delivery, ...]:
    frames = (talk.to_dialer(i, plain) for i, plain in enumerate(plaintexts))
    return talk.resp_frame, *frames


def _joins(
    name: str,
    ids: str,
    about: str,
    talk: JoinTalk,
    plaintexts: Sequence[bytes],
    answers: Sequence[bytes] = (JOINED,),
    given_out: int = 1,
    closed: int | None = None,
    **say: Any,
) -> Vector:
    """The first *given_out* plaintexts are given out, and *answers* are what it seals."""
    given = joiner(talk, *_up(talk, *plaintexts), **say)
    sealed = [talk.to_answerer(i, answer) for i, answer in enumerate(answers)]
    out = plaintexts[:given_out]
    output = said((talk.init_frame, talk.fin_frame, *sealed), None, out, inviter_met(talk), closed)
    return valid(f"joiner/{name}", "joiner", ids, about, given, output)


def _good() -> Iterator[Vector]:
    core = "JN-09 JN-10 JN-11 JN-12 JN-13 JN-22 JN-25 KS-02 KS-03"
    for suite, name in ((1, "aes"), (2, "chacha")):
        about = f"a join with suite {suite}"
        yield _joins(name, core, about, met(suite=suite), [admit_of()])
    talk = met({"suites": 0b100}, suite=2)
    yield _joins("one-suite", "JN-09", "offers one suite", talk, [admit_of()], suites=[2])
    about = "the other end closes once it has heard JOINED"
    yield _joins("closed", "JN-22 LK-02", about, met(), [admit_of(), CLOSED], closed=0)
    about = "it is a member already, and gets the roster that it was shown"
    yield _joins("again", "JN-25", about, met(theirs=WITHIN), [admit_of(WITHIN)])
    about = "it is a member already, and gets a newer roster"
    yield _joins("again-newer", "JN-25", about, met(theirs=WITHIN), [admit_of()])
    about = "the members have elected a head"
    yield _joins("elected", "JN-12 EL-12", about, met(theirs=HOME_ELECTED), [admit_of()])
    about = "it is a member already, and gets an election"
    yield _joins("again-elected", "JN-25", about, met(theirs=WITHIN), [admit_of(WITHIN_ELECTED)])
    about = "it is a member already, and gets the election that it was shown"
    talk = met(theirs=WITHIN_ELECTED)
    yield _joins("again-same-election", "JN-25", about, talk, [admit_of(WITHIN_ELECTED)])
    about = "the cluster has changed its coordinator since the invitation"
    yield _joins("changed", "JN-12 RO-17", about, met(theirs=HOME_CHANGED), [admit_of(CHANGED)])
    about = "it changes the coordinator before it lets in"
    yield _joins("changes", "JN-25 RO-17", about, met(), [admit_of(CHANGED)])
    about = "settings with line ends, as long as may be"
    yield _joins("settings", "JN-25", about, met(), [admit_of(settings="\n" * 4096)])
    about = "no settings"
    yield _joins("no-settings", "JN-25", about, met(), [admit_of(settings="")])
    about = "a PING before ADMIT and one after it"
    talk = met()
    answers = [PONG, JOINED, PONG]
    data = [PING, admit_of(), PING]
    given = joiner(talk, *_up(talk, *data))
    sealed = [talk.to_answerer(i, answer) for i, answer in enumerate(answers)]
    sent = (talk.init_frame, talk.fin_frame, *sealed)
    output = said(sent, None, [data[1]], inviter_met(talk))
    yield valid("joiner/pings", "joiner", "JN-22 JN-23", about, given, output)
    for code, about in ((14, "refused"), (0, "the other end stops")):
        close = flat(Close(code, "no"))
        name = f"closed-{code}"
        yield _joins(name, "JN-22 LK-02", about, met(), [close], (), 0, code)
    about = "an invitation that has expired by its own clock: the other end judges that"
    talk = met(paper=Paper(expires_s=1))
    yield _joins("expired-paper", "JN-12", about, talk, [admit_of()])


# -------------------------------------------------------------------------- JOIN_RESP


def _silent(
    name: str, ids: str, about: str, talk: JoinTalk, data: bytes, why: CloseCode, **say: Any
) -> Vector:
    given = joiner(talk, data, **say)
    ids = f"{ids} JN-21"
    output = said((talk.init_frame,))
    return refused(f"joiner/{name}", "joiner", ids, about, given, why, output=output)


def _talk(**talk: Any) -> JoinTalk:
    conversation = JoinTalk(**talk)
    conversation.init()
    return conversation


def _bad_resp() -> Iterator[Vector]:
    talk = _talk()
    resp = talk.resp()
    longest = 1335 + 53389
    for name, ids, about, data, why in [
        ("resp-long", "FR-03 JN-10", "longer than any", header(1, longest + 1), LIMIT),
        ("resp-short", "JN-09", "without a proof", header(1, 1233) + resp[8:1241], MALFORMED),
        ("resp-least", "JN-09", "a proof alone", header(1, 1234) + resp[8:1242], FORGED),
        ("resp-empty", "JN-09", "an empty frame", header(1, 0), MALFORMED),
        ("reflected", "JN-09", "its own JOIN_INIT comes back", talk.init_frame, MALFORMED),
        ("suite-0", "JN-09", "suite 0", resp[:9] + b"\0" + resp[10:], MALFORMED),
        ("suite-3", "JN-09", "suite 3", resp[:9] + b"\3" + resp[10:], MALFORMED),
        ("suite-swapped", "JN-09 KS-02", "the other suite", resp[:9] + b"\2" + resp[10:], FORGED),
        ("ct-flipped", "JN-09", "a bit of ct flipped", flipped(resp, 100), FORGED),
        ("x-flipped", "JN-09", "a bit of x_H flipped", flipped(resp, 20), FORGED),
        ("seal-flipped", "JN-09", "a bit of the seal flipped", flipped(resp, 1200), FORGED),
        ("tag-flipped", "JN-09", "a bit of the AEAD tag flipped", flipped(resp, -1), FORGED),
        ("impatient", "JN-21", "a byte more while it signs", resp + b"\1", LIMIT),
        ("sealed-first", "JN-21 FR-02", "a sealed frame", header(2, 64), MALFORMED),
    ]:
        yield _silent(name, ids, about, talk, data, why)
    one = _talk_with({"suites": 0b010}, suite=2)
    about = "a suite that was not offered"
    yield _silent("suite-2", "JN-09", about, one, one.resp(), MALFORMED, suites=[1])
    for name, ids, about, say, why in _wrong_resps():
        talk = _talk()
        yield _silent(name, ids, about, talk, talk.resp(**say), why)
    link = Talk(dialer=EVE, answerer=ADA)
    link.init_frame = talk.init_frame
    about = "the RESP of a link"
    yield _silent("resp-of-link", "JN-01", about, talk, _padded(link.resp()), MALFORMED)


def _padded(resp: bytes) -> bytes:
    """A RESP as the first bytes of a frame that is long enough."""
    return header(1, 1335) + resp[8:] + bytes(1335 + 8 - len(resp))


def _talk_with(about_init: dict[str, Any], **talk: Any) -> JoinTalk:
    conversation = JoinTalk(**talk)
    conversation.init(**about_init)
    return conversation


def _wrong_resps() -> Iterator[tuple[str, str, str, dict[str, Any], CloseCode]]:
    yield "resp-code", "JN-09", "JOIN_FIN's code", {"code": b"\x17"}, MALFORMED
    yield "x-zero", "JN-09 HS-07", "x_H is 0", {"x": bytes(32)}, MALFORMED
    yield "x-order-8", "JN-09 HS-07", "x_H has order 8", {"x": SMALL_ORDER}, MALFORMED
    yield "no-secret", "JN-09", "made without the secret", {"secret": b""}, FORGED
    yield "other-secret", "JN-09", "made with another secret", {"secret": bytes(16)}, FORGED
    yield "trailing", "JN-10", "a byte after the MAC", {"trailing": b"\0"}, MALFORMED
    yield "cut", "JN-10", "the MAC a byte short", {"cut": 1}, MALFORMED
    about = "a roster that is declared longer than may be"
    yield "roster-declared", "JN-10 CV-02", about, {"roster_length": 53390}, LIMIT
    about = "another coordinator's key"
    theirs = {"coordinator": BEN.public, "roster": _without(BEN, by=BEN)}
    yield "coordinator", "JN-11", about, theirs, FORGED
    yield "roster-none", "JN-12 RO-08", "no roster", {"roster": b""}, FORGED
    about = "signed by a member"
    yield "roster-forged", "JN-12 RO-08", about, {"roster": signed(by=BEN)}, FORGED
    about = "the coordinator itself, which is no member"
    yield "no-member", "JN-12", about, {"id": COORDINATOR.id, "signer": COORDINATOR}, FORGED
    yield "signer", "JN-13", "signed by another member", {"signer": CAT}, FORGED
    yield "claimed", "JN-13", "another member's id", {"id": CAT.id}, FORGED
    yield "context", "JN-13 ID-03", "signed as RESP of a link", {"context": b"RESP"}, FORGED
    yield "context-fin", "JN-13 ID-03", "signed as JOIN_FIN", {"context": b"JOIN-FIN"}, FORGED
    yield "transcript", "JN-13", "over another transcript", {"transcript": bytes(32)}, FORGED
    yield "high-s", "JN-13 ID-02", "s in the upper half", {"signature_of": high_s}, FORGED
    yield "mac", "JN-13", "a MAC of zeros", {"mac": bytes(32)}, FORGED
    yield "expired", "JN-14", "a roster that has expired", {"roster": LATE}, EXPIRED


def _without(node: Node, by: Node) -> bytes:
    members = tuple(each for each in TERMS.members if each.public != node.public)
    return signed(attrs.evolve(TERMS, members=members), by)


def _bad_claims() -> Iterator[Vector]:
    talk = _talk()
    talk.resp()
    data = talk.resp(mac_key=talk.mac_i)
    yield _silent("mac-i", "JN-13", "the MAC under mI", talk, data, FORGED)
    own = signed(attrs.evolve(TERMS, members=(*TERMS.members, COORDINATOR.member)))
    about = "the coordinator's key is a member's"
    talk = _talk(theirs=own)
    yield _silent("coordinator-member", "JN-12 RO-09", about, talk, talk.resp(), FORGED)
    talk = _talk(paper=Paper(coordinator=bytes(32)))
    about = "an invitation of another coordinator"
    yield _silent("other-cluster", "JN-11", about, talk, talk.resp(), FORGED)


# ------------------------------------------------------------------------------ ADMIT


def _told(
    name: str,
    ids: str,
    about: str,
    talk: JoinTalk,
    plaintexts: Sequence[bytes],
    why: CloseCode,
    *,
    answers: Sequence[bytes] = (),
    given_out: Sequence[bytes] = (),
) -> Vector:
    given = joiner(talk, *_up(talk, *plaintexts))
    sealed = [talk.to_answerer(i, answer) for i, answer in enumerate(answers)]
    sent = (talk.init_frame, talk.fin_frame, *sealed)
    output = said(sent, int(why), given_out, inviter_met(talk))
    name, released = f"joiner/{name}", b"".join(given_out)
    return refused(name, "joiner", ids, about, given, why, released=released, output=output)


def _bad_admit() -> Iterator[Vector]:
    elsewhere = attrs.evolve(TERMS, cluster=OTHER_CLUSTER)
    with_eve = attrs.evolve(TERMS, serial=6, members=(*TERMS.members, EVE.member))
    older = attrs.evolve(with_eve, serial=4)
    far = attrs.evolve(elsewhere, serial=6, members=with_eve.members)
    no_ada = attrs.evolve(with_eve, members=(BEN.member, EVE.member))
    for name, ids, about, roster, why in [
        ("admit-none", "RO-08", "no roster", b"", FORGED),
        ("admit-forged", "RO-08", "signed by a member", signed(with_eve, ADA), FORGED),
        ("admit-cluster", "RO-10", "another cluster's", signed(far), FORGED),
        ("admit-same", "RO-11", "JOIN_RESP's roster, without it", HOME, MALFORMED),
        ("admit-older", "RO-11", "an older one", signed(older), MALFORMED),
        (
            "admit-conflict",
            "RO-11",
            "another roster with JOIN_RESP's serial",
            WITHIN,
            CloseCode.ROSTER_CONFLICT,
        ),
        (
            "admit-expired",
            "RO-12",
            "one that has expired",
            signed(attrs.evolve(with_eve, expires_ms=NOW)),
            EXPIRED,
        ),
        ("admit-without", "RO-13", "one without it", HOME_6, FORGED),
        ("admit-without-inviter", "RO-13", "one without the inviter", signed(no_ada), FORGED),
    ]:
        yield _told(name, f"JN-25 {ids}", about, met(), [admit_of(roster)], why)
    about = "JOIN_RESP's roster, without the election"
    talk = met(theirs=WITHIN_ELECTED)
    yield _told("admit-unelected", "JN-25 EL-05", about, talk, [admit_of(WITHIN)], MALFORMED)
    brief = met(theirs=signed(attrs.evolve(TERMS, expires_ms=NOW + 5, members=_with_eve())))
    about = "JOIN_RESP's roster, which holds it and has expired since"
    yield _told("admit-late", "JN-25", about, brief, [admit_of(brief.theirs)], EXPIRED)
    about = "a frame longer than any ADMIT"
    talk = met()
    given = joiner(talk, talk.resp_frame, header(2, 1 + 4 + 53389 + 2 + 4096 + 16 + 1))
    output = said((talk.init_frame, talk.fin_frame), int(LIMIT), (), inviter_met(talk))
    yield refused("joiner/admit-long", "joiner", "FR-03", about, given, LIMIT, output=output)


def _with_eve() -> tuple[Any, ...]:
    return (*TERMS.members, EVE.member)


def _out_of_place() -> Iterator[Vector]:
    yield _told("hello", "JN-22", "HELLO", met(), [HELLO], ROLE)
    yield _told("joined", "JN-22", "JOINED to the joiner", met(), [JOINED], ROLE)
    about = "ADMIT again while it stores, or after"
    small = admit_of(b"", "")
    admitted: dict[str, Any] = {"answers": [JOINED], "given_out": [admit_of()]}
    yield _told("admit-twice", "JN-22", about, met(), [admit_of(), small], MALFORMED, **admitted)
    yield _told("pong", "JN-23 LK-03", "a PONG to no PING", met(), [PONG], MALFORMED)
    talk = met()
    for name, about, frame in [
        ("reflected-sealed", "a frame of its own direction", talk.to_answerer(0, admit_of())),
        ("second", "sealed as the second frame", talk.to_dialer(1, admit_of())),
    ]:
        given = joiner(talk, talk.resp_frame, frame)
        output = said((talk.init_frame, talk.fin_frame), int(FORGED), (), inviter_met(talk))
        place = f"joiner/{name}"
        yield refused(place, "joiner", "SE-01 SE-02", about, given, FORGED, output=output)
    about = "JOIN_RESP again"
    given = joiner(talk, talk.resp_frame, talk.resp_frame)
    output = said((talk.init_frame, talk.fin_frame), int(MALFORMED), (), inviter_met(talk))
    ids = "JN-21 FR-02"
    yield refused("joiner/resp-twice", "joiner", ids, about, given, output=output)


# ------------------------------------------------------------------------------ times


def _times() -> Iterator[Vector]:
    talk = met()
    given = joiner(talk, (5.0, b""))
    about = "no JOIN_RESP for 5 s"
    output = said((talk.init_frame,))
    ids = "JN-23 JN-21"
    yield refused("joiner/no-answer", "joiner", ids, about, given, TIMEOUT, output=output)
    given = joiner(talk, (0.01, talk.resp_frame), (0.6, b""), (10.2, b""))
    about = "silence for 10 s after JOIN_FIN"
    ping = talk.to_answerer(0, PING)
    output = said((talk.init_frame, talk.fin_frame, ping), int(TIMEOUT), (), inviter_met(talk))
    yield refused("joiner/silence", "joiner", "JN-23", about, given, TIMEOUT, output=output)
    about = "9 s of silence, and a decision"
    frame = talk.to_dialer(0, admit_of(AFTER))
    given = joiner(talk, (0.01, talk.resp_frame), (0.6, b""), (9.5, frame))
    sent = (talk.init_frame, talk.fin_frame, ping, talk.to_answerer(1, JOINED))
    output = said(sent, None, [admit_of(AFTER)], inviter_met(talk))
    yield valid("joiner/patience", "joiner", "JN-23", about, given, output)
    given = joiner(talk, talk.resp_frame, end=True)
    about = "the stream ends before a decision"
    output = said((talk.init_frame, talk.fin_frame), None, (), inviter_met(talk))
    yield refused("joiner/lost", "joiner", "JN-23 LK-01", about, given, output=output)
    given = joiner(talk, end=True)
    about = "the stream ends before JOIN_RESP: there is no such invitation"
    output = said((talk.init_frame,))
    yield refused("joiner/lost-first", "joiner", "JN-23 LK-01", about, given, output=output)
