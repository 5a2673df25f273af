"""What the handshake and link targets share: configurations made once, and mischief."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from sealring_protocol.codec.frame import Frame
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import SignedRoster

from fuzz.source import Source
from spec.vectors.elections import HOME_ELECTED, HOME_LATER
from spec.vectors.talk import Talk
from spec.vectors.world import (
    ADA,
    BEN,
    CAT,
    COORDINATOR,
    EVE,
    HOME,
    HOME_4,
    HOME_6,
    NOW,
    OTHER_CLUSTER,
    TERMS,
    Node,
    signed,
)

ROSTERS: Final = (
    b"",
    HOME,
    HOME_4,
    HOME_6,
    signed(attrs.evolve(TERMS, serial=6, members=(*TERMS.members, EVE.member))),
    signed(attrs.evolve(TERMS, serial=6, members=(BEN.member, CAT.member))),
    signed(attrs.evolve(TERMS, serial=6, expires_ms=NOW)),
    signed(attrs.evolve(TERMS, serial=6, cluster=OTHER_CLUSTER)),
    signed(attrs.evolve(TERMS, serial=6), EVE),
    HOME_ELECTED,
    HOME_LATER,
)
PEOPLE: Final = (ADA, BEN, CAT, EVE)
Say = dict[str, Any]
Field = Callable[[Source], Any]


@functools.cache
def config(who: Node, roster: bytes = HOME, suites: tuple[int, ...] = (1, 2)) -> HandshakeConfig:
    """*who* with *roster*."""
    held = SignedRoster.decode(roster)
    order = tuple(Suite(suite) for suite in suites)
    return HandshakeConfig(who.public, held, COORDINATOR.public, who.instance, order)


@functools.cache
def _begun(suite: int, dialer: Node, ours: bytes, theirs: bytes) -> Talk:
    talk = Talk(suite, dialer=dialer, ours=ours, theirs=theirs)
    talk.init()
    talk.resp()
    return talk


def begun(suite: int = 1, dialer: Node = ADA, ours: bytes = HOME, theirs: bytes = HOME) -> Talk:
    """A talk of which INIT and RESP are said; the caller may go on with it as it likes."""
    return copy.copy(_begun(suite, dialer, ours, theirs))


def frame(data: bytes) -> Frame:
    """*data* as one frame, whatever its header says."""
    return Frame(data[1], data[:8], data[8:])


def lies(source: Source, fields: Mapping[str, Field]) -> Say:
    """Up to three of *fields*, each with a value that *source* makes; often none."""
    names: Sequence[str] = tuple(fields)
    chosen = [source.pick(names) for _ in range(source.below(4))]
    return {name: fields[name](source) for name in chosen}


def bitten(source: Source, data: bytes) -> bytes:
    """*data* with up to three bytes changed, and perhaps cut or grown; often as it is."""
    changed = bytearray(data)
    for _ in range(source.below(4)):
        at = source.number(2) % max(1, len(changed))
        changed[at : at + 1] = bytes([changed[at] ^ source.below(256)]) if changed else b""
    match source.below(8):
        case 1:
            del changed[source.number(2) % (len(changed) + 1) :]
        case 2:
            changed += source.take(source.below(20))
        case _:
            pass
    return bytes(changed)


def of_size(size: int) -> Field:
    """Bytes of *size*, zeros where the source has no more."""
    return lambda source: source.take(size).ljust(size, b"\0")


def number(size: int) -> Field:
    """An integer of *size* bytes."""
    return lambda source: source.number(size)


def one_of(*choices: Any) -> Field:
    """One of *choices*."""
    return lambda source: source.pick(choices)


MANDATES: Final[Field] = one_of((0, 0, 0), (1, 1, 0), (2, 0, 0), (1, 0, 1), (0, 0, 1), (1, 1, 2))
"""Term, head and taken, as RESP and FIN have them: of `HOME_ELECTED`, `HOME_LATER` and others."""

CLAIMS: Final[dict[str, Field]] = {
    "id": one_of(*(who.id for who in PEOPLE), bytes(32)),
    "instance": number(8),
    "serial": one_of(0, 4, 5, 6, 7, 2**64 - 1),
    "digest": one_of(TERMS.digest, bytes(32)),
    "signer": one_of(*PEOPLE, COORDINATOR),
    "context": one_of(b"RESP", b"FIN", b"ROSTER", b""),
    "protocol": one_of(b"sealring/1 aes256gcm", b"sealring/1 chacha20poly1305", b"sealring/1"),
    "transcript": of_size(32),
    "signature": of_size(64),
    "mac": of_size(32),
    "mac_key": of_size(32),
    "trailing": lambda source: source.take(source.below(9)),
    "code": lambda source: bytes([source.below(256)]),
}
"""What the sealed part of RESP or FIN may lie about."""
