"""The key schedule, formula by formula (section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spec.vectors.model import Vector, valid
from spec.vectors.plain import PROTOCOLS, Keys, expand, hmac, sha256
from spec.vectors.talk import Talk
from spec.vectors.world import ADA, BEN, CLUSTER, entropy

GIVEN: Final[Mapping[str, bytes]] = {"ada_id": ADA.id, "ben_id": BEN.id}


def vectors() -> Iterator[Vector]:
    """Each formula with inputs of its own; all are valid."""
    yield from _admission()
    for suite in PROTOCOLS:
        yield _handshake_keys(suite)
        yield _transcripts(suite)
        yield from _link_secrets(suite)
    for label in ("one", "two"):
        yield _traffic(label)


def _admission() -> Iterator[Vector]:
    for who in (ADA, BEN):
        given = {"cluster": CLUSTER.hex(), "responder": who.public.hex()}
        output = {"key": hmac(b"sealring/1adm", CLUSTER + who.public).hex()}
        name = f"schedule/admission-{who.name}"
        yield valid(name, "admission-key", "KS-01 KS-02", "K_B", given, output)


def _handshake_keys(suite: int) -> Vector:
    kem, x, t2 = (entropy(f"{what} {suite}", 32) for what in ("kem", "x", "t2"))
    protocol = PROTOCOLS[suite]
    prk = hmac(sha256(protocol), kem + x)
    output = {"prk": prk.hex()}
    for name in ("kR", "mR", "kI", "mI"):
        output[name] = expand(prk, protocol + name.encode() + t2).hex()
    given = {"suite": suite, "ss_kem": kem.hex(), "ss_x": x.hex(), "t2": t2.hex()}
    about = "PRK and the four keys of the handshake"
    return valid(f"schedule/handshake-{suite}", "exchange", "KS-01 KS-02", about, given, output)


def _transcripts(suite: int) -> Vector:
    talk = Talk(suite)
    given = {
        "suite": suite,
        "cluster": CLUSTER.hex(),
        "responder": BEN.public.hex(),
        "init": talk.init().hex(),
        "resp": talk.resp().hex(),
        "fin": talk.fin().hex(),
    }
    output = {name: getattr(talk, name).hex() for name in ("t1", "t2", "t3", "t4")}
    about = "t1 to t4 from the three frames"
    return valid(f"schedule/transcripts-{suite}", "transcripts", "KS-03", about, given, output)


def _link_secrets(suite: int) -> Iterator[Vector]:
    prk, t4 = (entropy(f"{what} {suite}", 32) for what in ("prk", "t4"))
    for direction, way in ((0, "to-responder"), (1, "to-initiator")):
        sender, receiver = (ADA.id, BEN.id)[:: 1 - 2 * direction]
        parties = bytes([direction]) + sender + receiver + t4
        given = {
            "suite": suite,
            "prk": prk.hex(),
            "direction": direction,
            "sender": sender.hex(),
            "receiver": receiver.hex(),
            "t4": t4.hex(),
        }
        output = {
            name: expand(prk, PROTOCOLS[suite] + name.encode() + parties).hex()
            for name in ("traffic", "activation")
        }
        about = "the two secrets of one direction"
        name = f"schedule/link-{suite}-{way}"
        yield valid(name, "link-secrets", "KS-01 KS-02", about, given, output)


def _traffic(label: str) -> Vector:
    secret = entropy(f"traffic secret {label}", 32)
    keys, told = secret, []
    for _ in range(3):
        these = Keys.of(keys)
        told.append({"key": these.key.hex(), "iv": these.iv.hex(), "next": these.next.hex()})
        keys = these.next
    about = "key, iv and next secret, through two key updates"
    given = {"secret": secret.hex()}
    return valid(
        f"schedule/traffic-{label}", "traffic", "KS-01 SE-04", about, given, {"keys": told}
    )
