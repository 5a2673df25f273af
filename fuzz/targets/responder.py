"""The responder's handshake against a dialer who lies, a member with every key it may have.

Input: lies for INIT, then for FIN, then bites out of their bytes. Without any, the handshake
succeeds; with some, it may only fail as documented, silently until FIN has verified, and what is
proved must be what an independent computation says was proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sealring_protocol.errors import RemoteProtocolError, SealringError
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    Established,
    PeerRefused,
    PeerVerified,
    RosterReceived,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.security.responder import Responder
from sealring_protocol.security.responder import State as ResponderState
from sealring_protocol.security.roster import SignedRoster

from fuzz.expect import raised
from fuzz.people import (
    CLAIMS,
    MANDATES,
    ROSTERS,
    Field,
    Say,
    begun,
    bitten,
    config,
    frame,
    lies,
    number,
    of_size,
    one_of,
)
from fuzz.source import Source
from fuzz.vectors import vectors
from spec.vectors.elections import HOME_ELECTED
from spec.vectors.talk import ANSWERING, CT, SS, Talk
from spec.vectors.world import ADA, BEN, CAT, EVE, HOME, HOME_6, NOW

INIT: Final[dict[str, Field]] = {
    "wall_ms": lambda source: NOW - 130_000 + source.number(3) % 260_000,
    "suites": number(4),
    "x": of_size(32),
    "code": lambda source: bytes([source.below(256)]),
    "tag": of_size(32),
    "trailing": lambda source: source.take(source.below(5)),
    "key": of_size(32),
}
FIN: Final[dict[str, Field]] = {
    **CLAIMS,
    "responder": one_of(BEN.id, ADA.id, CAT.id),
    "purpose": lambda source: source.below(7),
    "roster": one_of(*ROSTERS),
    "roster_length": number(4),
    "cut": lambda source: source.below(250),
    "mandate": MANDATES,
}
LONGEST: Final = 1900
"""Bytes of a frame that is an input: a FIN with a roster at its limit is the vectors' own."""

DIALERS: Final = (
    (ADA, HOME),
    (CAT, HOME),
    (EVE, HOME),
    (ADA, HOME_6),
    (EVE, ROSTERS[4]),
    (ADA, HOME_ELECTED),
)


def seeds() -> Iterator[bytes]:
    """No lies; each lie by itself; and the raw frames of the vectors."""
    for dialer in range(len(DIALERS)):
        yield bytes([0, dialer])
    for at in range(len(INIT)):
        yield bytes([0, 0, 1, at]) + bytes(range(1, 40))
    for at in range(len(FIN)):
        yield bytes([0, 0, 0, 0, 0, 1, at]) + bytes(range(1, 80))
        yield bytes([0, 0, 0, 0, 0, 1, at, 1, 2, 3, 4, 5])
    for vector in vectors("responders"):
        frames = [bytes.fromhex(each["data"]) for each in vector["input"]["deliveries"]]
        if len(frames[-1]) <= LONGEST:
            yield b"\1" + bytes([len(frames) - 1]) + frames[-1]


class Answerer:
    """A responder that is driven, and what came of it."""

    def __init__(self) -> None:
        self.machine = Responder(config(BEN), NOW, ANSWERING, ReplayCache(8))
        self.sent = b""
        self.verified: Secrets | None = None
        self.refused: RemoteProtocolError | None = None
        self.roster: SignedRoster | None = None
        self.established: Established | None = None

    def receive(self, data: bytes) -> bool:
        """Deliver a frame and answer what is asked; whether it still lives."""
        machine = self.machine
        try:
            machine.receive(frame(data))
            while (event := machine.next_event()) is not None:
                self._on(event)
            self.sent += machine.data_to_send()
            if machine.state is ResponderState.WAIT_ADMIT:
                machine.admit()
                event = machine.next_event()
                assert isinstance(event, Established)
                self.established = event
        except RemoteProtocolError as error:
            self._stays_dead(error)
            return False
        return machine.state is not ResponderState.CLOSED

    def _on(self, event: Any) -> None:
        match event:
            case EncapsulationRequested():
                self.machine.provide_encapsulation(CT, SS)
            case SignatureRequested(payload):
                self.machine.provide_signature(BEN.signer.sign(payload))
            case PeerVerified(secrets):
                self.verified = secrets
            case PeerRefused(error):
                self.refused = error
            case RosterReceived(roster):
                self.roster = roster
                self.machine.stored()

    def _stays_dead(self, error: SealringError) -> None:
        machine = self.machine
        assert machine.state is ResponderState.DEAD
        assert self.verified is None, "a failure after FIN had verified"
        for call in (machine.data_to_send, machine.next_event, machine.admit, machine.close):
            assert raised(call) is error


def check(data: bytes) -> None:
    """Lies, or raw frames."""
    source = Source(data)
    if source.flag():
        _raw(source)
    else:
        _lying(source)


def _raw(source: Source) -> None:
    """Whatever comes where INIT or FIN is due: nothing verifies but what the vectors hold."""
    answerer = Answerer()
    if source.flag() and not answerer.receive(begun().init_frame):
        raise AssertionError("an honest INIT was refused")
    body = source.rest()
    if len(body) >= 9:
        answerer.receive(body)
    if answerer.verified is not None:
        assert answerer.verified.peer.id in (ADA.id, EVE.id, CAT.id)


def _lying(source: Source) -> None:
    dialer, ours = source.pick(DIALERS)
    about_init = lies(source, INIT)
    talk = Talk(1, dialer=dialer, ours=ours)
    answerer = Answerer()
    init = bitten(source, talk.init(**about_init))
    if len(init) < 9 or not answerer.receive(init):
        assert answerer.sent == b""
        return
    honest = init == begun().init_frame
    talk = begun(answerer.sent[9], dialer, ours) if honest else _anew(talk, init, answerer.sent[9])
    if "x" not in about_init:
        assert answerer.sent == talk.resp_frame
    about_fin = lies(source, FIN)
    fin = talk.fin(**about_fin)
    bytes_of_fin = bitten(source, fin)
    if len(bytes_of_fin) < 9:
        return
    lives = answerer.receive(bytes_of_fin)
    if answerer.verified is not None:
        assert bytes_of_fin == fin
        assert "x" not in about_init
        _proves(answerer, talk, about_fin)
    elif honest and not about_fin and bytes_of_fin == fin:
        assert (dialer, ours) == (EVE, HOME), "an honest member was not verified"
    assert lives == (answerer.established is not None)
    again = raised(lambda: answerer.machine.receive(frame(bytes_of_fin)))
    assert isinstance(again, RemoteProtocolError), "FIN was taken twice"


def _anew(talk: Talk, init: bytes, suite: int) -> Talk:
    """The talk after an INIT that was taken although it lied."""
    again = Talk(suite, dialer=talk.dialer, ours=talk.ours)
    again.init_frame = init
    again.resp()
    return again


def _proves(answerer: Answerer, talk: Talk, say: Say) -> None:
    """What was verified is what was said, by whom it was said."""
    secrets = answerer.verified
    assert secrets is not None
    assert secrets.transcript == talk.t4
    assert secrets.send_traffic == talk.secret(b"traffic", 1) or "id" in say
    assert secrets.peer.id == say.get("signer", talk.dialer).id == say.get("id", talk.dialer.id)
    assert say.get("responder", BEN.id) == BEN.id
    assert say.get("context", b"FIN") == b"FIN"
    assert int(secrets.purpose) == say.get("purpose", 1)
    assert secrets.peer.instance == say.get("instance", talk.dialer.instance)
    if answerer.established is not None:
        roster = answerer.established.roster.roster
        assert secrets.peer.id in roster
        assert BEN.id in roster
        assert roster.serial == max(5, secrets.peer.serial)
        behind = secrets.peer.mandate if roster.serial == secrets.peer.serial else roster.mandate
        assert not behind.beats(roster.mandate)
    else:
        assert answerer.refused is not None
