"""Nodes, rosters and handshakes for the tests, all from fixed entropy."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from sealring_protocol.codec.frame import Frame
from sealring_protocol.errors import SealringError
from sealring_protocol.joining.exchange import Inviter, Joiner
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    Established,
    HandshakeConfig,
    HandshakeEvent,
    PeerVerified,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.initiator import Initiator
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.responder import Responder
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster

from tests import driver

NOW = 1_800_000_000_000
YEAR = 365 * 24 * 3600 * 1000
CLUSTER = hashlib.sha256(b"a cluster").digest()


def bytes_of(seed: str, size: int) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(size)


def signer(name: str) -> SoftwareSigner:
    return SoftwareSigner.from_scalar(int.from_bytes(bytes_of(name, 31), "big"))


COORDINATOR = signer("coordinator")
ADA, BEN, CAT, EVE = (signer(name) for name in ("ada", "ben", "cat", "eve"))
SIGNERS = {"ada": ADA, "ben": BEN, "cat": CAT, "eve": EVE}


def roster(
    names: Iterable[str] = ("ada", "ben", "cat"),
    serial: int = 5,
    expires_ms: int = NOW + YEAR,
    cluster: bytes = CLUSTER,
    name: str = "home",
) -> Roster:
    members = tuple(
        Member(SIGNERS[each].public_key, each, (f"{each}.example:7470",)) for each in names
    )
    return Roster(cluster, name, serial, NOW - YEAR, expires_ms, True, members)


def signed(*args: Any, **kwargs: Any) -> SignedRoster:
    return sign_roster(roster(*args, **kwargs), COORDINATOR)


ROSTER = signed()


def config(
    who: SoftwareSigner,
    held: SignedRoster = ROSTER,
    suites: tuple[Suite, ...] = tuple(Suite),
    instance: int = 0,
) -> HandshakeConfig:
    return HandshakeConfig(
        who.public_key,
        held,
        COORDINATOR.public_key,
        instance or int.from_bytes(who.public_key[1:9], "big"),
        suites,
    )


ADA_CONFIG, BEN_CONFIG = config(ADA), config(BEN)


def frame(data: bytes | bytearray) -> Frame:
    view = memoryview(data)
    return Frame(view[1], bytes(view[:8]), view[8:])


def flip(data: bytes, at: int, bits: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def initiator(
    held: HandshakeConfig = ADA_CONFIG,
    peer: bytes = BEN_CONFIG.node_id,
    purpose: Purpose = Purpose.CONTROL,
    wall_ms: int = NOW,
) -> Initiator:
    return Initiator(held, peer, purpose, wall_ms, bytes_of("initiator", 96))


def dialing(*args: Any, **kwargs: Any) -> tuple[Initiator, bytes]:
    """An initiator in WAIT_RESP, and its INIT."""
    machine = initiator(*args, **kwargs)
    machine.dial()
    return machine, machine.data_to_send()


def responder(
    held: HandshakeConfig = BEN_CONFIG, wall_ms: int = NOW, replay: ReplayCache | None = None
) -> Responder:
    return Responder(
        held, wall_ms, bytes_of("responder", 32), ReplayCache(64) if replay is None else replay
    )


def take(machine: Initiator | Responder, kind: type[HandshakeEvent]) -> Any:
    event = machine.next_event()
    assert isinstance(event, kind), event
    return event


@functools.cache
def encapsulate(key: bytes) -> tuple[bytes, bytes]:
    """The same answer for the same key each time: ciphertext and secret."""
    return driver.encapsulate(key)


def answer_init(machine: Responder, init: bytes, who: SoftwareSigner = BEN) -> bytes:
    """Bring a responder from INIT to RESP."""
    machine.receive(frame(init))
    request = take(machine, EncapsulationRequested)
    machine.provide_encapsulation(*encapsulate(request.encapsulation_key))
    machine.provide_signature(who.sign(take(machine, SignatureRequested).payload))
    return machine.data_to_send()


def answer_resp(
    machine: Initiator, resp: bytes, who: SoftwareSigner = ADA
) -> tuple[bytes, Secrets]:
    """Bring an initiator from RESP to FIN."""
    machine.receive(frame(resp))
    machine.provide_signature(who.sign(take(machine, SignatureRequested).payload))
    secrets = take(machine, PeerVerified).secrets
    return machine.data_to_send(), secrets


class Run(NamedTuple):
    """All that two ends said, up to FIN."""

    initiator: Initiator
    responder: Responder
    init: bytes
    resp: bytes
    fin: bytes
    secrets: Secrets


def run_to_fin(
    ours: HandshakeConfig = ADA_CONFIG,
    theirs: HandshakeConfig = BEN_CONFIG,
    purpose: Purpose = Purpose.CONTROL,
    wall_ms: int = NOW,
    who: SoftwareSigner = ADA,
) -> Run:
    """Two machines, FIN not yet delivered; *who* dials."""
    dialer, init = dialing(ours, theirs.node_id, purpose, wall_ms)
    answerer = responder(theirs, wall_ms)
    resp = answer_init(answerer, init)
    fin, secrets = answer_resp(dialer, resp, who)
    return Run(dialer, answerer, init, resp, fin, secrets)


def run_to_end(*args: Any, **kwargs: Any) -> tuple[Run, Established, Established]:
    """Two machines, both established with the same roster."""
    run = run_to_fin(*args, **kwargs)
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    run.initiator.receive_accept(run.responder.admit())
    return run, take(run.initiator, Established), take(run.responder, Established)


def assert_dead(machine: Initiator | Responder | Joiner | Inviter, error: BaseException) -> None:
    """Not a byte, no event, and the same error for ever."""
    assert machine.state.name == "DEAD"
    assert isinstance(error, SealringError)
    for call in (
        machine.data_to_send,
        machine.next_event,
        machine.close,
        *([] if isinstance(machine, Inviter) else [machine.stored]),
        lambda: machine.receive(frame(bytes(9))),
        lambda: machine.provide_signature(bytes(64)),
        lambda: machine.fail(SealringError("another")),
    ):
        with pytest.raises(type(error)) as again:
            call()
        assert again.value is error


def refused(machine: Initiator | Responder, data: bytes, *kinds: type[SealringError]) -> str:
    """*data* kills *machine* with one of *kinds*, and not a byte is said; gives the reason."""
    with pytest.raises(kinds or SealringError) as caught:
        machine.receive(frame(data))
    assert not kinds or {type(caught.value), type(caught.value).__base__} & set(kinds)
    assert_dead(machine, caught.value)
    return str(caught.value)
