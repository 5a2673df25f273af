"""Elections: who is made head, by whose votes, and what follows for a roster (section 3.4)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from sealring_protocol.errors import CloseCode

from spec.vectors.model import FORGED, LIMIT, MALFORMED, Json, Vector, refused, u64, valid
from spec.vectors.plain import Terms, sha256
from spec.vectors.rosters import change, fields, sized, taken
from spec.vectors.talk import flipped
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    COORDINATOR,
    EVE,
    HOME,
    HOME_6,
    NOW,
    TERMS,
    Node,
    node,
    signed,
    spared,
)

DAN: Final = node("dan")
FOUR: Final = attrs.evolve(TERMS, members=(*TERMS.members, DAN.member))
PEOPLE: Final = (ADA, BEN, CAT, DAN)
GIVEN: Final[Mapping[str, bytes]] = {
    "home": HOME,
    "home_6": HOME_6,
    "coordinator": COORDINATOR.public,
    "ada": ADA.public,
    "ben": BEN.public,
    "ada_id": ADA.id,
    "ben_id": BEN.id,
}


def vote(by: Node, digest: bytes, term: int, head: int, context: bytes = b"VOTE") -> bytes:
    """The signature with which *by* votes for *head* in *term*."""
    ballot = sha256(digest + struct.pack(">QH", term, head))
    return by.signer.sign(b"sealring/1" + context + ballot)


def certificate(
    term: int, head: int, votes: Mapping[int, bytes] | list[tuple[int, bytes]]
) -> bytes:
    """A certificate with *votes* in the order in which they are given."""
    given = list(votes.items()) if isinstance(votes, Mapping) else votes
    begin = struct.pack(">QHH", term, head, len(given))
    return begin + b"".join(struct.pack(">H", voter) + signature for voter, signature in given)


def elected(terms: Terms, term: int, head: int, *voters: int) -> bytes:
    """The certificate by which *voters* made *head* the head of *terms*."""
    votes = {voter: vote(PEOPLE[voter], terms.digest, term, head) for voter in voters}
    return certificate(term, head, votes)


def in_force(terms: Terms, term: int, head: int, *voters: int) -> bytes:
    """The signed roster *terms* by which *voters* made *head* the head."""
    return b"\3" + elected(terms, term, head, *voters) + signed(terms)


HOME_ELECTED: Final = in_force(TERMS, 1, 1, 1, 2)
"""Ben is head, in term 1."""
HOME_LATER: Final = in_force(TERMS, 2, 0, 0, 2)
"""Ada is head again, in term 2."""


def _mandate(term: int, head: int, *, taken: bool = False) -> Json:
    return {"term": u64(term), "head": head, "taken": taken}


def _input(data: bytes, terms: Terms = TERMS) -> Json:
    return {
        "certificate": data.hex(),
        "roster": signed(terms).hex(),
        "coordinator": COORDINATOR.public.hex(),
    }


def _having(*rights: int) -> Terms:
    """The roster of three, in which each has these rights."""
    members = tuple(
        attrs.evolve(each, rights=bits) for each, bits in zip(TERMS.members, rights, strict=True)
    )
    return attrs.evolve(TERMS, policy=5, members=members)


def vectors() -> Iterator[Vector]:
    """Certificates, good and bad."""
    alone = attrs.evolve(TERMS, members=(ADA.member,))
    blind = _having(1, 0, 2)
    last = (1 << 64) - 1
    for name, about, terms, term, head, voters in [
        ("two", "two of three", TERMS, 1, 1, (1, 2)),
        ("all", "all of three, the head among them", TERMS, 7, 2, (0, 1, 2)),
        ("others", "two of three without the one elected", TERMS, 2, 2, (0, 1)),
        ("again", "the first member once more", TERMS, 3, 0, (0, 2)),
        ("last", "the last term", TERMS, last, 1, (1, 2)),
        ("three-of-four", "three of four", FOUR, 1, 3, (0, 2, 3)),
        ("taken", "by its own vote alone", TERMS, 1, 1, (1,)),
        ("one", "one of one, which is more than half", alone, 1, 0, (0,)),
        ("any-vote", "who may not be head and a witness vote", blind, 1, 0, (1, 2)),
    ]:
        output = {"term": u64(term), "head": head, "taken": name == "taken"}
        given = _input(elected(terms, term, head, *voters), terms)
        ids = "EL-02 EL-04" if name == "any-vote" else "EL-03 EL-04"
        yield valid(f"election/{name}", "certificate", ids, about, given, output)
    for name, ids, about, given in _malformed():
        yield refused(f"election/{name}", "certificate", ids, about, given, MALFORMED)
    crowd = certificate(1, 1, {voter: bytes(64) for voter in range(65)})
    about = "65 votes"
    yield refused("election/crowd", "certificate", "EL-01", about, _input(crowd), LIMIT)
    for name, about, data in _forged():
        yield refused(f"election/{name}", "certificate", "EL-03", about, _input(data), FORGED)
    yield from _in_force()
    yield from _not_in_force()
    yield from _later()


def _roster(data: bytes) -> Json:
    return {"roster": data.hex(), "coordinator": COORDINATOR.public.hex()}


def _in_force() -> Iterator[Vector]:
    with_spare = spared(0, 5)
    for name, about, terms, term, head, voters in [
        ("second", "the second of three", TERMS, 1, 1, (1, 2)),
        ("third", "the third of three", TERMS, 9, 2, (0, 1, 2)),
        ("first", "the first once more", TERMS, 2, 0, (0, 2)),
        ("last", "the last of four", FOUR, 1, 3, (0, 2, 3)),
        ("taken", "the second, by its own vote", TERMS, 1, 1, (1,)),
        ("fixed", "the head is fixed, and confirmed", _fixed(), 1, 0, (0, 1)),
        ("spare", "a spare is named", with_spare, 1, 2, (1, 2)),
    ]:
        told = fields(terms)
        members = told["members"]
        told["members"] = [members.pop(head), *members]
        told["mandate"] = _mandate(term, head, taken=name == "taken")
        given = _roster(in_force(terms, term, head, *voters))
        ids = "EL-12 EL-13"
        yield valid(f"election/roster-{name}", "roster", ids, about, given, told)


def _fixed() -> Terms:
    return attrs.evolve(TERMS, policy=9)


def _not_in_force() -> Iterator[Vector]:
    no_term = b"\3" + elected(TERMS, 0, 1, 1, 2)
    good = b"\3" + elected(TERMS, 1, 1, 1, 2)
    crowd = b"\3" + certificate(1, 1, {voter: bytes(64) for voter in range(65)})
    for name, ids, about, data, why in [
        ("forged", "EL-12", "a bit of the roster's signature", flipped(HOME_ELECTED, -1), FORGED),
        ("vote", "EL-12 EL-03", "a bit of a vote", flipped(HOME_ELECTED, 40), FORGED),
        ("none", "EL-12", "no roster", good, FORGED),
        ("twice", "EL-12", "a certificate before another", good + HOME_ELECTED, FORGED),
        ("cut", "EL-12", "within the last vote", good[:-1], MALFORMED),
        ("term-0", "EL-12 EL-02", "term 0", no_term + HOME, MALFORMED),
        ("forged-first", "EL-12", "term 0, and forged", flipped(no_term + HOME, -1), FORGED),
        ("few", "EL-12 EL-04", "one of three", in_force(TERMS, 1, 1, 2), MALFORMED),
        ("fixed-other", "EL-02", "the head is fixed", in_force(_fixed(), 1, 1, 1, 2), MALFORMED),
        ("votes", "EL-12 EL-01", "65 votes", crowd + HOME, LIMIT),
        ("long", "EL-12 RO-07", "49,153 bytes", in_force(sized(49153), 1, 0, 0), LIMIT),
    ]:
        yield refused(f"election/roster-{name}", "roster", ids, about, _roster(data), why)


def _later() -> Iterator[Vector]:
    three = in_force(TERMS, 2, 2, 1, 2)
    own = in_force(TERMS, 2, 0, 0)
    six = attrs.evolve(TERMS, serial=6)
    for name, about, current, data, terms, mandate in [
        ("first", "the first election", HOME, HOME_ELECTED, TERMS, _mandate(1, 1)),
        ("later", "a later term", HOME_ELECTED, HOME_LATER, TERMS, _mandate(2, 0)),
        ("lesser", "of one term, the lesser index", three, HOME_LATER, TERMS, _mandate(2, 0)),
        ("voted", "of one term, not taken", own, three, TERMS, _mandate(2, 2)),
        ("own", "taken, later", HOME_ELECTED, own, TERMS, _mandate(2, 0, taken=True)),
        ("roster", "the next roster, in term 0", HOME_LATER, HOME_6, six, None),
    ]:
        ids, given = "RO-11 EL-05", change(data, NOW, current)
        yield valid(f"election/newer-{name}", "newer", ids, about, given, taken(terms, mandate))
    old_4 = in_force(attrs.evolve(TERMS, serial=4), 9, 0, 0, 1)
    other = in_force(attrs.evolve(TERMS, name="another home"), 9, 0, 0, 1)
    for name, about, current, data, why in [
        ("none", "no election", HOME_ELECTED, HOME, MALFORMED),
        ("same", "the same", HOME_ELECTED, HOME_ELECTED, MALFORMED),
        ("earlier", "an earlier term", HOME_LATER, HOME_ELECTED, MALFORMED),
        ("greater", "of one term, the greater index", HOME_LATER, three, MALFORMED),
        ("taken", "of one term, taken", three, own, MALFORMED),
        ("serial", "a lesser serial in a later term", HOME, old_4, MALFORMED),
        ("conflict", "another roster of the serial", HOME, other, CloseCode.ROSTER_CONFLICT),
    ]:
        given = change(data, NOW, current)
        yield refused(f"election/older-{name}", "newer", "RO-11 EL-05", about, given, why)
    late = change(HOME_ELECTED, TERMS.expires_ms)
    about, why = "a later election of a roster that has expired", CloseCode.ROSTER_EXPIRED
    yield refused("election/newer-expired", "newer", "RO-12", about, late, why)


def _malformed() -> Iterator[tuple[str, str, str, Json]]:
    good = elected(TERMS, 1, 1, 1, 2)
    votes = {voter: vote(PEOPLE[voter], TERMS.digest, 1, 1) for voter in range(3)}
    yield "trailing", "EL-01", "a byte left over", _input(good + b"\0")
    yield "cut", "EL-01", "63 bytes of the last signature", _input(good[:-1])
    backwards = certificate(1, 1, [(2, votes[2]), (1, votes[1])])
    yield "order", "EL-01", "voters in descending order", _input(backwards)
    twice = certificate(1, 1, [(1, votes[1]), (1, votes[1])])
    yield "twice", "EL-01", "one vote twice", _input(twice)
    nobody = certificate(1, 1, [(1, votes[1]), (3, votes[2])])
    yield "nobody", "EL-01", "a vote of a fourth of three", _input(nobody)
    yield "term-0", "EL-02", "term 0", _input(elected(TERMS, 0, 1, 1, 2))
    yield "no-member", "EL-02", "a fourth of three is elected", _input(elected(TERMS, 1, 3, 1, 2))
    for name, about, terms in [
        ("blind", "one without TEXT is elected", _having(1, 0, 1)),
        ("witness", "a witness with TEXT is elected", _having(1, 3, 1)),
    ]:
        yield name, "EL-02", about, _input(elected(terms, 1, 1, 1, 2), terms)
    for name, about, terms, head, voters in [
        ("none", "no votes", TERMS, 1, ()),
        ("another", "one vote, of another member", TERMS, 1, (2,)),
        ("half", "two of four", FOUR, 1, (1, 2)),
    ]:
        yield name, "EL-04", about, _input(elected(terms, 1, head, *voters), terms)


def _forged() -> Iterator[tuple[str, str, bytes]]:
    good = elected(TERMS, 1, 1, 1, 2)
    own = vote(BEN, TERMS.digest, 1, 1)
    yield "signature", "a bit of a signature flipped", flipped(good, -1)
    stranger = vote(EVE, TERMS.digest, 1, 1)
    yield "stranger", "a vote that another key signed", certificate(1, 1, {1: own, 2: stranger})
    for name, about, other in [
        ("other-term", "a vote for another term", vote(CAT, TERMS.digest, 2, 1)),
        ("other-head", "a vote for another member", vote(CAT, TERMS.digest, 1, 2)),
        ("other-roster", "a vote of another roster", vote(CAT, FOUR.digest, 1, 1)),
        ("context", "signed as a roster", vote(CAT, TERMS.digest, 1, 1, b"ROSTER")),
    ]:
        yield name, about, certificate(1, 1, {1: own, 2: other})
    yield "taken-forged", "taken, signed by another", certificate(1, 1, {1: stranger})
