"""Rosters: how they read, who signed them, and which may take another's place (section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from sealring_protocol.errors import CloseCode

from spec.vectors.model import FORGED, LIMIT, MALFORMED, Json, Vector, refused, u64, valid
from spec.vectors.plain import Member, Terms, appointing, naming, sha256, sign_roster
from spec.vectors.talk import flipped
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    COORDINATOR,
    EVE,
    HOME,
    HOME_4,
    HOME_6,
    HOME_CHANGED,
    HOME_SPARED,
    NEXT,
    NOW,
    OTHER_CLUSTER,
    SPARE,
    TERMS,
    Node,
    appointed,
    entropy,
    node,
    signed,
    spared,
)

GIVEN: Final[Mapping[str, bytes]] = {
    "home": HOME,
    "home_4": HOME_4,
    "home_6": HOME_6,
    "home_spared": HOME_SPARED,
    "home_changed": HOME_CHANGED,
    "coordinator": COORDINATOR.public,
    "ada": ADA.public,
    "ben": BEN.public,
    "ada_id": ADA.id,
    "ben_id": BEN.id,
}
CONFLICT: Final = CloseCode.ROSTER_CONFLICT
EXPIRED: Final = CloseCode.ROSTER_EXPIRED
EVIDENCE: Final = entropy("evidence", 32)


def changed(**terms: Any) -> bytes:
    """The first roster with other terms, signed as it should be."""
    return signed(attrs.evolve(TERMS, **terms))


def with_ada(**member: Any) -> bytes:
    """The first roster with another ada."""
    return changed(members=(attrs.evolve(ADA.member, **member), BEN.member))


def unelected() -> Json:
    """The mandate of a roster without a certificate."""
    return {"term": "0", "head": 0, "taken": False}


def _input(data: bytes, coordinator: bytes = COORDINATOR.public) -> Json:
    return {"roster": data.hex(), "coordinator": coordinator.hex()}


def fields(terms: Terms) -> Json:
    """A roster field by field."""
    members = [
        {
            "public_key": member.public.hex(),
            "node_id": sha256(member.public).hex(),
            "trust": member.trust,
            "rights": 1 if member.rights is None else member.rights,
            "attestation": member.attestation.hex(),
            "name": member.name,
            "addresses": list(member.addresses),
        }
        for member in terms.members
    ]
    told: Json = {
        "digest": terms.digest.hex(),
        "cluster": terms.cluster.hex(),
        "name": terms.name,
        "serial": u64(terms.serial),
        "issued_ms": u64(terms.issued_ms),
        "expires_ms": u64(terms.expires_ms),
        "inner_seal": bool(terms.policy & 1),
        "tensor_parallelism": not terms.policy & 2,
        "fixed_head": bool(terms.policy & 8),
        "mandate": unelected(),
        "trust": min(member.trust for member in terms.members),
        "members": members,
    }
    if (made := terms.appointing) is not None:
        told["appointment"] = {
            "spare": made.spare.hex(),
            "number": u64(made.number),
            "coordinator": made.coordinator.hex(),
        }
    return told


def vectors() -> Iterator[Vector]:
    """Rosters, and rosters that come while another is held."""
    attested = attrs.evolve(BEN.member, trust=3, attestation=EVIDENCE)
    for name, about, terms in [
        ("three", "three members", TERMS),
        ("one", "one member, no addresses", attrs.evolve(TERMS, members=(_bare(ADA.member),))),
        ("open", "no inner seal", attrs.evolve(TERMS, policy=0)),
        ("no-tensor", "inner seal, no tensor parallelism", attrs.evolve(TERMS, policy=3)),
        ("no-tensor-open", "neither of them", attrs.evolve(TERMS, policy=2)),
        ("fixed-head", "no head but the first member", attrs.evolve(TERMS, policy=9)),
        ("trust", "trust levels 1, 3, 0", _trusting(attested)),
        ("first", "serial 1, the first", attrs.evolve(TERMS, serial=1)),
        ("extremes", "the largest numbers", _extreme()),
        ("sixty-four", "64 members", attrs.evolve(TERMS, members=_crowd(64))),
        ("longest", "49,152 bytes", sized(49152)),
        ("names", "names and addresses beyond ASCII", _named("Küche 机", ("küche.example:1",))),
        ("wide", "a wide space is no space (U+0020)", _named("\u3000", ())),
        ("edge", "a name of 64 bytes, 8 addresses of 255", _named("n" * 64, _addresses())),
    ]:
        given = _input(signed(terms))
        yield valid(f"roster/{name}", "roster", "CV-01 RO-08", about, given, fields(terms))
    for name, about, terms in [
        ("blind", "ben sees no texts", _having(1, 0, 1)),
        ("witness", "cat is a witness, and sees no texts", _having(1, 1, 2)),
        ("witness-text", "ben is a witness that sees texts", _having(1, 3, 1)),
        ("rights-all", "each of the rights, no inner seal", _having(1, 0, 3, policy=4)),
        ("rights-policy", "every bit of the policy", _having(1, 0, 2, policy=15)),
        ("rights-longest", "49,152 bytes", _longest_having()),
    ]:
        given = _input(signed(terms))
        yield valid(f"roster/{name}", "roster", "RO-22 RO-23", about, given, fields(terms))
    terms = _having(1, 0, 2, version=2, appointing=appointed())
    ids, about = "RO-17 RO-22", "a spare is named, and rights are said"
    yield valid("roster/spared-rights", "roster", ids, about, _input(signed(terms)), fields(terms))
    for name, about, terms, by in [
        ("spared", "a spare is named", spared(0, 5), COORDINATOR),
        ("spared-late", "a spare is named at serial 3,000,000,001", spared(3, 1), COORDINATOR),
        ("changed", "the second coordinator's first", spared(1, 1, NEXT), NEXT),
        ("changed-often", "the last number that there is", _last(), NEXT),
        ("changed-back", "the pinned key again", spared(2, 7), COORDINATOR),
        ("spared-longest", "49,152 bytes", _longest_spared(), COORDINATOR),
    ]:
        given = _input(signed(terms, by))
        yield valid(f"roster/{name}", "roster", "RO-17 RO-18", about, given, fields(terms))
    for cases, why in (
        (_malformed(), MALFORMED),
        (_long(), LIMIT),
        (_forged(), FORGED),
        (_not_appointed(), FORGED),
    ):
        for name, ids, about, given in cases:
            yield refused(f"roster/{name}", "roster", ids, about, given, why)
    yield from _newer()


def _having(*rights: int, **terms: Any) -> Terms:
    """The first roster whose members have these rights, and the policy that says so."""
    members = zip((ADA.member, BEN.member, CAT.member), rights, strict=True)
    having = tuple(attrs.evolve(member, rights=each) for member, each in members)
    return attrs.evolve(TERMS, **{"policy": 5, "members": having, **terms})


def _bare(member: Member) -> Member:
    return attrs.evolve(member, addresses=())


def _trusting(attested: Member) -> Terms:
    nobody = attrs.evolve(CAT.member, trust=0)
    return attrs.evolve(TERMS, members=(ADA.member, attested, nobody))


def _extreme() -> Terms:
    return attrs.evolve(TERMS, serial=2**64 - 1, issued_ms=0, expires_ms=2**64 - 1)


def _named(name: str, addresses: tuple[str, ...]) -> Terms:
    ada = attrs.evolve(ADA.member, name=name, addresses=addresses)
    return attrs.evolve(TERMS, name=name, members=(ada,))


def _addresses() -> tuple[str, ...]:
    return tuple(f"{number}{'a' * 249}:7470" for number in range(8))


def _crowd(count: int) -> tuple[Member, ...]:
    return tuple(_bare(node(f"node {number}").member) for number in range(count))


def _malformed() -> Iterator[tuple[str, str, str, Json]]:
    for name, ids, about, data in [
        ("version-0", "RO-01", "version 0", changed(version=0)),
        ("version-4", "RO-01", "version 4", changed(version=4)),
        ("number-low", "RO-18", "the number before the serial's", _numbered(0, 10**9)),
        ("number-high", "RO-18", "the number after the serial's", _numbered(1, 10**9 - 1)),
        ("policy-16", "RO-01", "an unknown policy bit", changed(policy=16)),
        ("policy-80", "RO-01", "an unknown policy bit beside bit 0", changed(policy=0x81)),
        ("rights-usual", "RO-22", "rights are said, and usual", signed(_having(1, 1, 1))),
        ("rights-4", "RO-22", "a right that is none", signed(_having(1, 4, 1))),
        ("rights-81", "RO-22", "a right that is none, beside TEXT", signed(_having(1, 0x81, 0))),
        ("first-blind", "RO-23", "the first sees no texts", signed(_having(0, 1, 1))),
        ("first-witness", "RO-23", "the first is a witness", signed(_having(2, 1, 1))),
        ("first-both", "RO-23", "the first is a witness that sees texts", signed(_having(3, 1, 1))),
        ("empty", "RO-02", "no members", changed(members=())),
        ("same-key", "RO-03", "one key twice", changed(members=(ADA.member, _as("ada", "bob")))),
        ("same-name", "RO-03", "one name twice", changed(members=(ADA.member, _as("ben", "ada")))),
        ("name-blank", "RO-04", "a cluster called by spaces", changed(name="  ")),
        ("name-empty", "RO-04", "a member without a name", with_ada(name="")),
        ("name-bell", "RO-04", "a name with BEL", with_ada(name="ada\x07")),
        ("cluster-bell", "RO-04", "a cluster's name with BEL", changed(name="home\x07")),
        ("cluster-turned", "RO-04", "a cluster's name that turns text", changed(name="h\u202e")),
        ("name-turned", "RO-04", "a name that turns text around", with_ada(name="a\u202eda")),
        ("name-hidden", "RO-04", "a name with a zero-width space", with_ada(name="a\u200bda")),
        ("name-utf8", "CV-03", "a name that is no text", with_ada(name=b"\xff")),
        ("address-empty", "RO-04", "an empty address", with_ada(addresses=("",))),
        ("address-twice", "RO-04", "an address twice", with_ada(addresses=("a:1", "a:1"))),
        ("address-newline", "RO-04", "an address of two lines", with_ada(addresses=("a\n:1",))),
        ("serial-0", "RO-05", "serial 0", changed(serial=0)),
        ("no-time", "RO-05", "issued when it expires", changed(expires_ms=TERMS.issued_ms)),
        ("backwards", "RO-05", "expires before it is issued", changed(expires_ms=1)),
        ("trust-4", "RO-06", "trust level 4", with_ada(trust=4, attestation=EVIDENCE)),
        ("trust-bare", "RO-06", "hardware trust without evidence", with_ada(trust=2)),
        ("key-compressed", "ID-01", "a key that is no point", with_ada(public=_no_point())),
        ("trailing", "CV-01", "a byte after the last member", _signed_bytes(b"\0")),
        ("cut", "CV-01", "the last address is cut short", _signed_bytes(b"", cut=1)),
        ("members-cut", "CV-01", "one member fewer than it says", _counting(4)),
    ]:
        yield name, ids, about, _input(data)


def _as(name: str, called: str) -> Member:
    return attrs.evolve(node(name).member, name=called)


def _no_point() -> bytes:
    return b"\4" + bytes(64)


def _signed_bytes(more: bytes, cut: int = 0) -> bytes:
    body = TERMS.encode()
    return sign_roster(body[: len(body) - cut] + more, COORDINATOR.signer)


def _counting(members: int) -> bytes:
    body = TERMS.encode()
    at = 1 + 32 + 2 + len(TERMS.name) + 25
    return sign_roster(body[:at] + members.to_bytes(2, "big") + body[at + 2 :], COORDINATOR.signer)


def _longest_having() -> Terms:
    count = len(sized(49152).members)
    terms = sized(49152 - count)
    members = (attrs.evolve(each, rights=at % 2 + 1) for at, each in enumerate(terms.members))
    return attrs.evolve(terms, policy=5, members=tuple(members))


def sized(size: int, serial: int = 5) -> Terms:
    """A roster that has *size* bytes with its signature."""
    full = tuple(f"{number}{'a' * 249}:7470" for number in range(8))
    crowd = [attrs.evolve(member, addresses=full) for member in _crowd(21)]
    members = (ADA.member, BEN.member, *crowd)
    bare = attrs.evolve(TERMS, serial=serial, members=members)
    left = size - 64 - len(bare.encode())
    members = (*members, *_filling(left, _crowd(64)[21:]))
    return attrs.evolve(bare, members=members)


def _filling(left: int, crowd: tuple[Member, ...]) -> Iterator[Member]:
    """Members of *crowd* that take *left* bytes."""
    for member in crowd:
        bare = len(member.encode())
        if left < 2 * bare + 2 * 257:  # the last: what is left is in its addresses
            rest = left - bare
            sizes = (rest // 3, rest // 3, rest - 2 * (rest // 3))
            yield attrs.evolve(
                member, addresses=tuple("abc"[i] * (n - 2) for i, n in enumerate(sizes))
            )
            return
        left -= bare
        yield member


def _long() -> Iterator[tuple[str, str, str, Json]]:
    many = attrs.evolve(TERMS, members=_crowd(65))
    yield "sixty-five", "RO-02 CV-02", "65 members", _input(signed(many))
    nine = with_ada(addresses=tuple(f"a:{port}" for port in range(9)))
    yield "addresses", "RO-04 CV-02", "9 addresses", _input(nine)
    yield "name-long", "CV-02", "a name of 65 bytes", _input(with_ada(name="n" * 65))
    address = with_ada(addresses=("a" * 256,))
    yield "address-long", "CV-02", "an address of 256 bytes", _input(address)
    yield "too-long", "RO-07 CV-02", "49,153 bytes", _input(signed(sized(49153)))


def _forged() -> Iterator[tuple[str, str, str, Json]]:
    yield "flipped", "RO-08", "one bit of a name flipped", _input(flipped(HOME, 35))
    yield "serial-raised", "RO-08", "the serial raised after signing", _input(flipped(HOME, 46, 2))
    yield "signature", "RO-08", "one bit of the signature flipped", _input(flipped(HOME, -1))
    yield "other-signer", "RO-08", "signed by a member", _input(signed(TERMS, ADA))
    yield "other-pinned", "RO-08", "another coordinator is pinned", _input(HOME, EVE.public)
    context = sign_roster(TERMS.encode(), COORDINATOR.signer, b"sealring/1EVIDENCE")
    yield "context", "ID-03 RO-08", "signed as evidence", _input(context)
    bare = sign_roster(TERMS.encode(), COORDINATOR.signer, b"")
    yield "no-context", "ID-03 RO-08", "the bare digest signed", _input(bare)
    both = attrs.evolve(TERMS, members=(ADA.member, _as("coordinator", "boss")))
    yield "coordinator", "RO-09", "the coordinator is a member", _input(signed(both))
    yield "tiny", "RO-08", "fewer bytes than a signature", _input(HOME[:63])
    unread = changed(version=4)[:-1] + b"\0"
    yield "first-signature", "RO-08", "forged and of version 4: read is nothing", _input(unread)


def _last() -> Terms:
    number = (2**64 - 1) // 10**9
    return attrs.evolve(spared(number, 0, NEXT), serial=2**64 - 1)


def _longest_spared() -> Terms:
    terms = sized(49152 - 266)
    return attrs.evolve(terms, version=2, appointing=appointed())


def _numbered(number: int, serial: int) -> bytes:
    return signed(attrs.evolve(spared(number, 0), serial=serial))


def _by(by: Node = NEXT, **fields: Any) -> Json:
    """The second coordinator's first roster, with another appointment, signed by *by*."""
    terms = spared(1, 1, NEXT)
    made = attrs.evolve(appointed(1, NEXT), **fields)
    return _input(signed(attrs.evolve(terms, appointing=made), by))


def _not_appointed() -> Iterator[tuple[str, str, str, Json]]:
    """Breaks of the chain from the pinned key to the signature, one at each place."""
    ids = "RO-17"
    good = appointed(1, NEXT)
    eves = naming(TERMS.cluster, EVE.public)
    appoints = appointing(TERMS.cluster, 1, NEXT.public)
    by = EVE.signer.sign
    yield "naming-flipped", ids, "a bit of the naming", _by(naming=flipped(good.naming, 0))
    yield (
        "naming-self",
        ids,
        "the spare names itself",
        _by(naming=SPARE.signer.sign(naming(TERMS.cluster, SPARE.public))),
    )
    other = appointed(1, NEXT, EVE)
    foreign = {"spare": EVE.public, "signature": other.signature}
    yield "naming-other", ids, "the naming of another spare", _by(**foreign)
    yield "naming-eve", ids, "eve names herself", _by(**foreign, naming=by(eves))
    far = appointed(1, NEXT, cluster=OTHER_CLUSTER)
    yield "naming-cluster", ids, "the naming is for another cluster", _by(naming=far.naming)
    yield "cluster", ids, "the appointment is for another cluster", _by(signature=far.signature)
    yield "appointed-flipped", ids, "a bit of it", _by(signature=flipped(good.signature, 0))
    yield "appointed-eve", ids, "by eve", _by(signature=by(appoints))
    pinned = COORDINATOR.signer.sign(appoints)
    yield "appointed-pinned", ids, "the pinned key appoints", _by(signature=pinned)
    yield "appointed-other", ids, "it is of another key", _by(EVE, coordinator=EVE.public)
    zero = appointed(0, NEXT).signature
    yield "appointed-number", ids, "it is of another number", _by(signature=zero)
    yield "by-pinned", ids, "the pinned key signs after the change", _by(COORDINATOR)
    yield "by-spare", ids, "the spare signs the roster", _by(SPARE)
    yield "by-eve", ids, "eve signs the roster", _by(EVE)
    own = appointed(1, SPARE)
    yield (
        "spare-itself",
        ids,
        "the spare appoints itself",
        _by(SPARE, coordinator=SPARE.public, signature=own.signature),
    )
    first = appointed(1, NEXT, COORDINATOR)
    yield (
        "spare-pinned",
        ids,
        "the pinned key is the spare",
        _by(spare=COORDINATOR.public, naming=first.naming, signature=first.signature),
    )
    roster = b"sealring/1ROSTER"
    as_roster = COORDINATOR.signer.sign(naming(TERMS.cluster, SPARE.public, roster))
    yield "naming-context", f"ID-03 {ids}", "the naming signed as a roster", _by(naming=as_roster)
    context = SPARE.signer.sign(appointing(TERMS.cluster, 1, NEXT.public, roster))
    yield "appointed-context", f"ID-03 {ids}", "signed as a roster", _by(signature=context)
    no_point = SPARE.signer.sign(appointing(TERMS.cluster, 1, _no_point()))
    yield (
        "coordinator-no-point",
        f"ID-01 {ids}",
        "a coordinator that is no point",
        _by(coordinator=_no_point(), signature=no_point),
    )
    nothing = COORDINATOR.signer.sign(naming(TERMS.cluster, _no_point()))
    yield (
        "spare-no-point",
        f"ID-01 {ids}",
        "a spare that is no point",
        _by(spare=_no_point(), naming=nothing),
    )
    cut = spared(0, 5).encode()[: 1 + 32 + 265]
    yield (
        "appointment-cut",
        ids,
        "it ends a byte early",
        _input(sign_roster(cut, COORDINATOR.signer)),
    )
    for name, who in (("pinned", COORDINATOR), ("spare", SPARE), ("next", NEXT)):
        members = (ADA.member, _as(who.name, name))
        about = "a coordinator's key is a member's"
        yield (
            f"{name}-member",
            "RO-09",
            about,
            _input(signed(spared(1, 1, NEXT, members=members), NEXT)),
        )


def _newer() -> Iterator[Vector]:
    home_6 = attrs.evolve(TERMS, serial=6)
    for name, about, wall_ms, terms in [
        ("next", "the next serial", NOW, home_6),
        ("far", "the largest serial", NOW, attrs.evolve(TERMS, serial=2**64 - 1)),
        ("last-moment", "a millisecond before it expires", home_6.expires_ms - 1, home_6),
        ("fewer", "without the third member", NOW, _without_cat(6)),
    ]:
        given = change(signed(terms), wall_ms)
        output = taken(terms)
        yield valid(f"roster/newer-{name}", "newer", "RO-11 RO-12", about, given, output)
    other = attrs.evolve(home_6, cluster=OTHER_CLUSTER)
    late = home_6.expires_ms
    for name, ids, about, data, wall_ms, why in [
        ("cluster", "RO-10", "another cluster's", signed(other), NOW, FORGED),
        ("older", "RO-11", "an older serial", HOME_4, NOW, MALFORMED),
        ("same", "RO-11", "the one that is held", HOME, NOW, MALFORMED),
        ("conflict", "RO-11", "same serial, other terms", signed(_without_cat(5)), NOW, CONFLICT),
        ("expired", "RO-12", "at the moment it expires", HOME_6, late, EXPIRED),
        ("end", "RO-13", "the peer is no member", signed(_without_ben()), NOW, FORGED),
        ("receiver", "RO-13", "its receiver is no member", signed(_without_ada()), NOW, FORGED),
        ("forged", "RO-08", "not the coordinator's", signed(home_6, EVE), NOW, FORGED),
    ]:
        given = change(data, wall_ms)
        yield refused(f"roster/newer-{name}", "newer", ids, about, given, why)
    yield from _newer_with_spare()


def _newer_with_spare() -> Iterator[Vector]:
    high = attrs.evolve(spared(0, 0), serial=10**9 - 1)
    second = spared(1, 2, NEXT)
    for name, about, current, terms, by in [
        ("names-spare", "it is the first with a spare", HOME, spared(0, 6), COORDINATOR),
        ("spare-stays", "the spare is the same", HOME_SPARED, spared(0, 6), COORDINATOR),
        ("change", "a change", HOME_SPARED, spared(1, 1, NEXT), NEXT),
        ("change-highest", "after the highest serial", signed(high), spared(1, 0, NEXT), NEXT),
        ("change-missed", "the naming and 41 changes were missed", HOME, spared(42, 1, NEXT), NEXT),
        ("changed-next", "the next of that coordinator", HOME_CHANGED, second, NEXT),
        ("change-back", "the pinned key again", HOME_CHANGED, spared(2, 1), COORDINATOR),
    ]:
        given = change(signed(terms, by), NOW, current)
        output = taken(terms)
        yield valid(f"roster/newer-{name}", "newer", "RO-11 RO-19 RO-20", about, given, output)
    eves = attrs.evolve(spared(0, 6), appointing=appointed(0, COORDINATOR, EVE))
    eves_change = attrs.evolve(spared(2, 1, EVE), appointing=appointed(2, EVE, EVE))
    far = attrs.evolve(TERMS, serial=2**64 - 1)
    thief = node("thief")
    thiefs = attrs.evolve(spared(7, 1, thief), appointing=appointed(7, thief, EVE))
    for name, ids, about, current, data, why in [
        ("without-spare", "RO-19", "names none any more", HOME_SPARED, HOME_6, FORGED),
        ("other-spare", "RO-19", "names another spare", HOME_SPARED, signed(eves), FORGED),
        ("former", "RO-19", "by who was the coordinator", HOME_CHANGED, signed(far), FORGED),
        ("former-low", "RO-11", "and a low serial", HOME_CHANGED, signed(spared(0, 9)), MALFORMED),
        ("before-spare", "RO-11", "from before the spare", HOME_CHANGED, HOME, MALFORMED),
        ("former-spare", "RO-19", "and names her", HOME_CHANGED, signed(thiefs, thief), FORGED),
        ("own-spare", "RO-17", "eve's own spare", HOME, signed(eves_change, EVE), FORGED),
        ("twin-change", "RO-11", "the same number", HOME_CHANGED, _elsewhere(1), CONFLICT),
        ("twin-later", "RO-20", "the same number", HOME_CHANGED, _elsewhere(2), CONFLICT),
        ("change-expired", "RO-12", "an expired change", HOME_SPARED, _late(), EXPIRED),
    ]:
        given = change(data, NOW, current)
        yield refused(f"roster/newer-{name}", "newer", ids, about, given, why)


def _elsewhere(at: int) -> bytes:
    """A roster of another coordinator that the spare has appointed with the number 1."""
    other = node("elsewhere")
    return signed(spared(1, at, other), other)


def _late() -> bytes:
    return signed(spared(1, 1, NEXT, expires_ms=NOW), NEXT)


def taken(terms: Terms, mandate: Json = None) -> Json:
    """What is told of a roster that took another's place."""
    told = unelected() if mandate is None else mandate
    return {"serial": u64(terms.serial), "digest": terms.digest.hex(), "mandate": told}


def change(candidate: bytes, wall_ms: int, current: bytes = HOME) -> Json:
    """The input of a roster that comes while another is held."""
    return {
        "current": current.hex(),
        "candidate": candidate.hex(),
        "coordinator": COORDINATOR.public.hex(),
        "wall_ms": u64(wall_ms),
        "ends": [ADA.id.hex(), BEN.id.hex()],  # the receiver, the peer
    }


def _without_cat(serial: int) -> Terms:
    return attrs.evolve(TERMS, serial=serial, members=(ADA.member, BEN.member))


def _without_ada() -> Terms:
    return attrs.evolve(TERMS, serial=6, members=(BEN.member, CAT.member))


def _without_ben() -> Terms:
    return attrs.evolve(TERMS, serial=6, members=(ADA.member, CAT.member))
