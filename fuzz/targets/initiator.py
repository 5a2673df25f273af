"""The initiator's handshake against an answerer who lies, a member with every key it may have.

Input: lies for RESP, bites out of its bytes, then lies for ACCEPT. Without any, the handshake
succeeds and FIN is what an independent computation makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.security.handshake import (
    Established,
    PeerVerified,
    RosterReceived,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.security.initiator import Initiator
from sealring_protocol.security.initiator import State as InitiatorState
from sealring_protocol.security.roles import Purpose

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
    of_size,
    one_of,
)
from fuzz.source import Source
from fuzz.vectors import vectors
from spec.vectors.elections import HOME_ELECTED, HOME_LATER
from spec.vectors.talk import CT, DIALING, Talk, digest_of, flipped, mandate_of, serial_of
from spec.vectors.world import ADA, BEN, HOME, HOME_6, NOW

RESP: Final[dict[str, Field]] = {
    **CLAIMS,
    "suite": lambda source: source.below(4),
    "x": of_size(32),
    "ct": lambda source: flipped(CT, source.number(2)),
    "kem_secret": of_size(32),
    "mandate": MANDATES,
}
BROUGHT: Final = {
    roster: (serial_of(roster), digest_of(roster), mandate_of(roster))
    for roster in (HOME_6, HOME_ELECTED, HOME_LATER)
}
"""What RESP has to say of a roster that ACCEPT may bring."""

ACCEPT: Final[dict[str, Field]] = {
    "transcript": of_size(32),
    "serial": one_of(0, 5, 6, 2**64 - 1),
    "roster": one_of(*ROSTERS),
}


def seeds() -> Iterator[bytes]:
    """No lies; each lie by itself; and the raw frames of the vectors."""
    yield from (bytes([0, which]) for which in range(2))
    for at in range(len(RESP)):
        yield bytes([0, 0, 1, at]) + bytes(range(1, 80))
        yield bytes([0, 1, 1, at, 1, 2, 3, 4])
    for at in range(len(ACCEPT)):
        for choice in range(len(ROSTERS)):
            yield bytes([0, 1, 0, 0, 0, 1, at, choice, 0])
    for vector in vectors("initiators"):
        yield b"\1" + bytes.fromhex(vector["input"]["deliveries"][0]["data"])


class Dialer:
    """An initiator that is driven, and what came of it."""

    def __init__(self) -> None:
        self.machine = Initiator(config(ADA), BEN.id, Purpose.CONTROL, NOW, DIALING)
        self.machine.dial()
        self.init = self.machine.data_to_send()
        self.sent = b""
        self.verified: Secrets | None = None
        self.established: Established | None = None

    def receive(self, data: bytes) -> bool:
        """Deliver a frame; whether it still lives."""
        return self._guarded(lambda: self.machine.receive(frame(data)))

    def accept(self, accept: Accept) -> bool:
        """ACCEPT came; whether it still lives."""
        return self._guarded(lambda: self.machine.receive_accept(accept))

    def _guarded(self, action: Any) -> bool:
        error = raised(lambda: self._follow(action))
        if error is None:
            return True
        assert isinstance(error, RemoteProtocolError)
        assert self.machine.state is InitiatorState.DEAD
        for call in (self.machine.data_to_send, self.machine.next_event, self.machine.stored):
            assert raised(call) is error
        return False

    def _follow(self, action: Any) -> None:
        action()
        while (event := self.machine.next_event()) is not None:
            self._on(event)
        self.sent += self.machine.data_to_send()

    def _on(self, event: Any) -> None:
        match event:
            case SignatureRequested(payload):
                self.machine.provide_signature(ADA.signer.sign(payload))
            case PeerVerified(secrets):
                self.verified = secrets
            case RosterReceived():
                self.machine.stored()
            case Established():
                self.established = event


def check(data: bytes) -> None:
    """Lies, or a raw frame."""
    source = Source(data)
    dialer = Dialer()
    if source.flag():
        body = source.rest()
        if len(body) >= 9 and not dialer.receive(body):
            assert dialer.sent == b""
        return
    theirs = source.pick((HOME, HOME_6))
    talk = begun(theirs=theirs)
    assert dialer.init == talk.init_frame
    say = lies(source, RESP)
    resp = talk.resp(**say)
    bytes_of_resp = bitten(source, resp)
    if len(bytes_of_resp) < 9:
        return
    if not dialer.receive(bytes_of_resp):
        assert dialer.sent == b""
        assert say or bytes_of_resp != resp
        return
    assert bytes_of_resp == resp
    _proves(dialer, talk, say)
    _accepting(source, dialer, talk, say)


def _proves(dialer: Dialer, talk: Talk, say: Say) -> None:
    """RESP verified: it was its signer's, whom the initiator dialed, and FIN is right."""
    assert say.get("signer", BEN) is BEN
    assert say.get("id", BEN.id) == BEN.id
    assert say.get("context", b"RESP") == b"RESP"
    assert say.get("suite", 1) == 1
    serial, digest, mandate = _announced(talk, say)
    assert mandate[2] < 2
    own_beats = digest == digest_of(HOME) and mandate == (0, 0, 1)
    fin = talk.fin(roster=HOME if serial < 5 or own_beats else b"")
    assert dialer.sent == fin
    secrets = dialer.verified
    assert secrets is not None
    assert secrets.transcript == talk.t4
    for way, direction in (("send", 0), ("receive", 1)):
        for label in ("traffic", "activation"):
            expected = talk.secret(label.encode(), direction)
            assert getattr(secrets, f"{way}_{label}") == expected


def _announced(talk: Talk, say: Say) -> tuple[int, bytes, tuple[int, int, int]]:
    """Serial, digest and mandate, as RESP named them."""
    serial = say.get("serial", serial_of(talk.theirs))
    digest = say.get("digest", digest_of(talk.theirs))
    return serial, digest, say.get("mandate", mandate_of(talk.theirs))


def _accepting(source: Source, dialer: Dialer, talk: Talk, resp: Say) -> None:
    """ACCEPT is taken exactly when it says what RESP announced."""
    announced, digest, mandate = _announced(talk, resp)
    behind = announced > 5 or (digest == digest_of(HOME) and mandate[0] > 0)
    due = [roster for roster, said in BROUGHT.items() if said == (announced, digest, mandate)]
    say = lies(source, ACCEPT)
    transcript = say.get("transcript", talk.t4)
    serial = say.get("serial", max(5, announced))
    roster = say.get("roster", (due or [HOME_6])[0] if behind else b"")
    lives = dialer.accept(Accept(transcript, serial, roster))
    good = transcript == talk.t4 and serial == max(5, announced)
    good = good and (roster in due if behind else not roster)
    assert lives == good == (dialer.established is not None)
    assert not dialer.receive(talk.resp_frame), "RESP was taken twice"
