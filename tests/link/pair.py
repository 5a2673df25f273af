"""Two links and the wire between them."""

from __future__ import annotations

from collections.abc import Callable

from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    Epoch,
    Hello,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster

from tests.driver import End
from tests.sim.rosters import COORDINATOR, WALL, make_roster, signer

EPOCH = Epoch(5, 1)
HELLO = Hello(b"m" * 32, 6, DType.F32, 8, 1)
ORDER = Bootstrap(EPOCH, Backend.PIPELINE, 1, True, 1000, b"m" * 32, (0, 2, 4, 6))
STEP = Step(EPOCH, 1, bytes(16))
DONE = StepDone(EPOCH, 1)

Mangle = Callable[[bytes], bytes]


def config(
    index: int,
    roster: SignedRoster | None = None,
    suites: tuple[Suite, ...] = tuple(Suite),
    instance: int = 0,
) -> HandshakeConfig:
    return HandshakeConfig(
        signer(index).public_key,
        roster or make_roster(3),
        COORDINATOR.public_key,
        instance or 100 + index,
        suites,
    )


class Pair:
    """*a* dials *b*. `mangle` may change what is on the wire, by direction."""

    def __init__(
        self,
        a: HandshakeConfig | None = None,
        b: HandshakeConfig | None = None,
        purpose: Purpose = Purpose.CONTROL,
        indexes: tuple[int, int] = (1, 0),
        admission: Admission | None = None,
        skew_ms: int = 0,
        now: float = 1.0,
    ) -> None:
        self.now = now
        one, two = indexes
        a = a or config(one)
        b = b or config(two)
        self.admission = admission or Admission(self.now)
        peer = node_id(signer(two).public_key)
        dialer = Link.dial(a, peer, purpose, self.now, WALL, bytes(range(96)))
        responder = Link.accept(
            b, self.admission, "a host", self.now, WALL + skew_ms, bytes(range(32))
        )
        self.a, self.b = End(dialer, signer(one)), End(responder, signer(two))
        self.mangle: dict[str, Mangle] = {"ab": bytes, "ba": bytes}

    def move(self, sender: End, receiver: End, way: str, split: int = 0) -> bool:
        """Carry what *sender* has to say. True if there was anything."""
        data = bytes(sender.link.data_to_send())
        if not data:
            return False
        sender.sent.append(data)
        data = self.mangle[way](data)
        size = split or len(data)
        for at in range(0, len(data), size or 1):
            if receiver.error is None:
                self._feed(receiver, data[at : at + size])
        return True

    def _feed(self, receiver: End, piece: bytes) -> None:
        try:
            receiver.receive(piece, self.now)
        except Exception as error:  # noqa: BLE001  the tests look at its class
            receiver.error = error

    def run(self, split: int = 0) -> Pair:
        """Carry bytes both ways until there are none."""
        while self.move(self.a, self.b, "ab", split) | self.move(self.b, self.a, "ba", split):
            pass
        return self

    def ended(self, end: End) -> None:
        """The stream that *end* reads has ended."""
        try:
            end.link.receive_eof()
            end.take(self.now)
        except Exception as error:  # noqa: BLE001
            end.error = error


def established(**arguments) -> Pair:
    pair = Pair(**arguments).run()
    assert pair.a.error is None
    assert pair.b.error is None
    assert pair.a.link.established
    assert pair.b.link.established
    return pair


def messages(end):
    kinds = (Hello, Bootstrap, Step, StepDone, LinkClosed)
    return [event for event in end.events if isinstance(event, kinds)]


def first_flight():
    pair = Pair()
    return bytes(pair.a.link.data_to_send())
