"""Statements of attesters, and when a verifier takes them (section 3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from spec.vectors.model import FORGED, LIMIT, MALFORMED, Json, Vector, refused, u64, valid
from spec.vectors.plain import Statement, sha256
from spec.vectors.talk import flipped
from spec.vectors.world import ADA, BEN, EVE, NOW, YEAR, node

ATTESTER: Final = node("attester")
GIVEN: Final[Mapping[str, bytes]] = {
    "ada": ADA.public,
    "ben": BEN.public,
    "attester": ATTESTER.public,
}
STATEMENT: Final = Statement(2, ADA.public, NOW - YEAR, NOW + YEAR, ATTESTER.public, b"a quote")


def _input(data: bytes, **other: Any) -> Json:
    return {
        "evidence": data.hex(),
        "subject": other.get("subject", ADA.public).hex(),
        "digest": other.get("digest", STATEMENT.digest).hex(),
        "attesters": [key.hex() for key in other.get("attesters", (ATTESTER.public,))],
        "wall_ms": u64(other.get("wall_ms", NOW)),
    }


def _of(statement: Statement) -> Json:
    """What a verifier takes, but for what is wrong with *statement* itself."""
    data = statement.signed(ATTESTER.signer)
    trusted = (statement.attester,)
    return _input(data, digest=statement.digest, subject=statement.subject, attesters=trusted)


def vectors() -> Iterator[Vector]:
    """Evidence, good and bad."""
    for kind, about in [(1, "in software"), (2, "in hardware"), (3, "and measured boot")]:
        statement = attrs.evolve(STATEMENT, kind=kind)
        output = {"digest": statement.digest.hex(), "trust": kind}
        name = f"evidence/kind-{kind}"
        yield valid(name, "evidence", "AT-01 AT-02", f"a key {about}", _of(statement), output)
    bare = attrs.evolve(STATEMENT, claims=b"")
    output = {"digest": bare.digest.hex(), "trust": 2}
    given = _input(bare.signed(ATTESTER.signer), digest=bare.digest, wall_ms=bare.issued_ms)
    about = "no claims, at the moment it was issued"
    yield valid("evidence/bare", "evidence", "AT-02", about, given, output)
    full = attrs.evolve(STATEMENT, claims=bytes(16384))
    output = {"digest": full.digest.hex(), "trust": 2}
    about = "claims of 16,384 bytes"
    yield valid("evidence/claims-most", "evidence", "CV-02", about, _of(full), output)
    for name, ids, about, given in _malformed():
        yield refused(f"evidence/{name}", "evidence", ids, about, given, MALFORMED)
    claims = attrs.evolve(STATEMENT, claims=bytes(16385))
    about = "claims of 16,385 bytes"
    yield refused("evidence/claims", "evidence", "CV-02", about, _of(claims), LIMIT)
    for name, ids, about, given in _not_good():
        yield refused(f"evidence/{name}", "evidence", ids, about, given, FORGED)


def _malformed() -> Iterator[tuple[str, str, str, Json]]:
    data = STATEMENT.signed(ATTESTER.signer)
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("version", "version 2", {"version": 2}),
        ("kind-0", "kind 0", {"kind": 0}),
        ("kind-4", "kind 4", {"kind": 4}),
        ("own", "a key that attests itself", {"subject": ATTESTER.public}),
        ("no-point", "a subject that is no point", {"subject": b"\4" + bytes(64)}),
        ("attester-no-point", "an attester that is no point", {"attester": b"\4" + bytes(64)}),
        ("no-time", "expires when it is issued", {"expires_ms": STATEMENT.issued_ms}),
    ]
    for name, about, change in changes:
        yield name, "AT-01", about, _of(attrs.evolve(STATEMENT, **change))
    yield "trailing", "CV-01", "a byte left over", _input(data + b"\0")
    yield "cut", "CV-01", "63 bytes of signature", _input(data[:-1])


def _not_good() -> Iterator[tuple[str, str, str, Json]]:
    data = STATEMENT.signed(ATTESTER.signer)
    claimed = flipped(data, -65)
    other = sha256(claimed[:-64])
    for name, about, given in [
        ("attester", "an attester that is not trusted", _input(data, attesters=(EVE.public,))),
        ("nobody", "nobody is trusted", _input(data, attesters=())),
        ("signature", "a bit of the signature flipped", _input(flipped(data, -1))),
        ("claims-changed", "a bit of the claims flipped", _input(claimed, digest=other)),
        ("subject", "about another node's key", _input(data, subject=BEN.public)),
        ("digest", "the roster names another digest", _input(data, digest=bytes(32))),
        ("early", "before it was issued", _input(data, wall_ms=STATEMENT.issued_ms - 1)),
        ("late", "at the moment it expires", _input(data, wall_ms=STATEMENT.expires_ms)),
    ]:
        yield name, "AT-02", about, given
    roster = STATEMENT.signed(ATTESTER.signer, b"sealring/1ROSTER")
    yield "context", "ID-03 AT-02", "signed as a roster", _input(roster)
