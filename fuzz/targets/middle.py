"""Two honest ends with a hostile middle: what comes out is a beginning of what went in.

Input: commands: an end sends, bytes go on, bytes are bent, time passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sealring_protocol.codec.messages import Message, StepDone
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.link import Link, LinkClosed, LinkOpened, PeerProved
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.roles import Purpose

from fuzz.expect import raised
from fuzz.people import config
from fuzz.source import Source
from spec.vectors.talk import ANSWERING, CT, DIALING, SS
from spec.vectors.whole_messages import BOOTSTRAP, CHECKED, HELLO, PREPARED, READY, STEP, WAITING
from spec.vectors.world import ADA, BEN, NOW, Node
from tests.driver import End

DONE: Final = StepDone(STEP.epoch, 1)
MAY_SEND: Final[Mapping[Node, tuple[Message, ...]]] = {
    ADA: (BOOTSTRAP, STEP, WAITING),
    BEN: (HELLO, PREPARED, READY, DONE, CHECKED),
}
_TOGETHER: Final = b"\4" * 8


def seeds() -> Iterator[bytes]:
    """An honest run, and one for each bend."""
    talk = b"\0\0\1\0" + _TOGETHER + b"\0\1\1\1" + _TOGETHER
    yield _TOGETHER + talk * 4
    for bend in (5, 6, 7, 8):
        for when in (0, 1, 2, 3):
            yield b"\4" * when + bytes([bend, 0, 0, 9, 1]) + _TOGETHER + talk
        yield _TOGETHER + b"\0\0" + bytes([bend, 0, 0, 30, 1]) + talk
    yield _TOGETHER + bytes([9, 60]) + b"\4" + bytes([9, 200]) + b"\4" * 3


class Side:
    """One end: its link, what waits to reach it, what it sent and got."""

    def __init__(self, who: Node, link: Link) -> None:
        self.who = who
        self.link = link
        self.waiting = bytearray()
        self.sent: list[Message] = []
        self.got: list[Message] = []
        self.up = False
        self.over = False
        self._end = End(link, who.signer, encapsulate=lambda _: (CT, SS))

    def guarded(self, action: Any, now: float) -> None:
        """Do *action* and answer what is asked, unless the link is over."""
        if self.over:
            return
        try:
            action()
            self._end.take(now)
        except RemoteProtocolError:
            self.over = True
        for event in self._end.taken():
            self._on(event)
        assert not self._end.stored, "nobody has a newer roster"

    def _on(self, event: Any) -> None:
        match event:
            case PeerProved(peer):
                assert peer == ADA.id
            case LinkOpened(peer):
                assert peer == (BEN if self.who is ADA else ADA).id
                self.up = True
            case LinkClosed():
                self.over = True
            case _:
                self.got.append(event)

    def send(self, message: Message) -> None:
        """Send, if the link is up; if it is not, it must say so."""
        error = raised(lambda: self.link.send(message))
        if error is None:
            assert self.up
            self.sent.append(message)
        else:
            assert self.over or (not self.up and isinstance(error, LocalProtocolError))


class Middle:
    """Both ends, and whoever carries their bytes."""

    def __init__(self) -> None:
        self.now = 0.0
        dialer = Link.dial(config(ADA), BEN.id, Purpose.CONTROL, 0.0, NOW, DIALING)
        answering = Link.accept(config(BEN), Admission(0.0), "there", 0.0, NOW, ANSWERING)
        self.sides = (Side(ADA, dialer), Side(BEN, answering))
        self.bent = False
        self.collect()

    def collect(self) -> None:
        """Take what each end has to send to where it waits for the other."""
        for side, other in zip(self.sides, self.sides[::-1], strict=True):
            other.waiting += side.link.data_to_send()

    def deliver(self, at: int, size: int) -> None:
        """Some of the bytes that wait for end *at* reach it."""
        side = self.sides[at]
        piece = bytes(side.waiting[:size])
        del side.waiting[:size]
        if piece:
            side.guarded(lambda: side.link.receive_data(piece, self.now), self.now)
        self.collect()

    def bend(self, kind: int, at: int, place: int, value: int) -> None:
        """Flip, lose, repeat or make up bytes on their way to end *at*."""
        waiting = self.sides[at].waiting
        if kind == 3:
            waiting[:0] = bytes([value]) * (1 + place % 9)
            self.bent = True
            return
        if not waiting:
            return
        self.bent = True
        place %= len(waiting)
        match kind:
            case 0:
                waiting[place] ^= max(1, value)
            case 1:
                del waiting[place : place + 1 + value % 20]
            case _:
                again = waiting[place : place + 1 + value]
                waiting[place:place] = again

    def wait(self, seconds: float) -> None:
        """Time passes at both ends."""
        self.now += seconds
        for side in self.sides:
            side.guarded(lambda side=side: side.link.handle_timeout(self.now), self.now)
        self.collect()


def check(data: bytes) -> None:
    """Commands; and after each, nothing has come out that did not go in."""
    source, middle = Source(data), Middle()
    while not source.empty:
        command = source.below(10)
        match command:
            case 0 | 1:
                side = middle.sides[source.below(2)]
                side.send(source.pick(MAY_SEND[side.who]))
                middle.collect()
            case 2 | 3:
                middle.deliver(command - 2, source.number(2))
            case 4:
                middle.deliver(0, 1 << 20)
                middle.deliver(1, 1 << 20)
            case 9:
                middle.wait(source.below(256) / 100)
            case _:
                middle.bend(command - 5, source.below(2), source.number(2), source.below(256))
        _holds(middle)


def _holds(middle: Middle) -> None:
    one, other = middle.sides
    for side, peer in ((one, other), (other, one)):
        assert side.got == peer.sent[: len(side.got)]
        for message in side.got:
            assert message in (*MAY_SEND[ADA], *MAY_SEND[BEN])
    if not middle.bent and middle.now < 1.0:
        assert not one.over
        assert not other.over
