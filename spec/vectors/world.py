"""The people of the vectors: nodes, rosters and entropy, all from fixed labels.

None of these keys may ever be used for anything else: their private halves are public here.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_protocol.security.identity import SoftwareSigner

from spec.vectors.plain import Appointing, Member, Terms, appointing, naming, sign_roster

NOW: Final = 1_800_000_000_000
YEAR: Final = 365 * 24 * 3600 * 1000


def entropy(label: str, size: int) -> bytes:
    """*size* bytes that *label* determines."""
    return hashlib.shake_256(b"sealring/1 vectors: " + label.encode()).digest(size)


@attrs.frozen
class Node:
    """A node: its private scalar, and what follows from it."""

    name: str
    scalar: bytes
    signer: SoftwareSigner
    instance: int

    @property
    def public(self) -> bytes:
        """The 65 bytes of the public key."""
        return self.signer.public_key

    @property
    def id(self) -> bytes:
        """The node id."""
        return hashlib.sha256(self.public).digest()

    @property
    def member(self) -> Member:
        """The node as a roster has it."""
        return Member(self.public, 1, bytes(32), self.name, (f"{self.name}.example:7470",))


def node(name: str) -> Node:
    """The node that is called *name*."""
    scalar = entropy(f"key of {name}", 31).rjust(32, b"\0")
    signer = SoftwareSigner.from_scalar(int.from_bytes(scalar, "big"))
    return Node(name, scalar, signer, int.from_bytes(entropy(f"instance of {name}", 8), "big"))


ADA: Final = node("ada")
BEN: Final = node("ben")
CAT: Final = node("cat")
EVE: Final = node("eve")
COORDINATOR: Final = node("coordinator")
SPARE: Final = node("spare")
NEXT: Final = node("next coordinator")
CLUSTER: Final = entropy("cluster", 32)
OTHER_CLUSTER: Final = entropy("another cluster", 32)

TERMS: Final = Terms(
    cluster=CLUSTER,
    name="home",
    serial=5,
    issued_ms=NOW - YEAR,
    expires_ms=NOW + YEAR,
    policy=1,
    members=(ADA.member, BEN.member, CAT.member),
)
"""The roster that the vectors begin from: ada is rank 0, ben 1, cat 2."""


def signed(terms: Terms = TERMS, by: Node = COORDINATOR) -> bytes:
    """*terms* as a signed roster."""
    return sign_roster(terms.encode(), by.signer)


def appointed(
    number: int = 0, key: Node = COORDINATOR, spare: Node = SPARE, cluster: bytes = CLUSTER
) -> Appointing:
    """What a roster says of its coordinator *key*, where *spare* is the spare of *cluster*."""
    return Appointing(
        spare.public,
        COORDINATOR.signer.sign(naming(cluster, spare.public)),
        number,
        key.public,
        spare.signer.sign(appointing(cluster, number, key.public)),
    )


def spared(number: int, at: int, key: Node = COORDINATOR, **terms: Any) -> Terms:
    """The terms of the roster *at* of those that *key* signs as coordinator *number*."""
    appointing = appointed(number, key)
    serial = number * 10**9 + at
    return attrs.evolve(TERMS, version=2, serial=serial, appointing=appointing, **terms)


HOME: Final = signed()
HOME_SPARED: Final = signed(spared(0, 5))
HOME_CHANGED: Final = signed(spared(1, 1, NEXT), NEXT)
HOME_4: Final = signed(attrs.evolve(TERMS, serial=4))
HOME_6: Final = signed(attrs.evolve(TERMS, serial=6))
RECORDED: Final = Path(__file__).with_name("recorded") / "encapsulation.json"


def recorded_encapsulation(key: bytes) -> tuple[bytes, bytes]:
    """Ciphertext and secret that an encapsulation to *key* once gave: encapsulating draws its own
    entropy, so what it gave is kept."""
    told = json.loads(RECORDED.read_text(encoding="ascii"))
    if bytes.fromhex(told["encapsulation_key_sha256"]) != hashlib.sha256(key).digest():
        raise LookupError("no encapsulation to this key has been recorded")
    return bytes.fromhex(told["ciphertext"]), bytes.fromhex(told["secret"])
