"""Drives one end of a link through a vector's deliveries, which may be cut into pieces.

The vector answers what the link asks for: it has the scalar for signatures, and the recorded
encapsulation. So the end sends the same bytes each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Close
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SEALED_BODY
from sealring_protocol.link import Link
from sealring_protocol.link_events import (
    LinkClosed,
    LinkUp,
    PeerProved,
    RosterReceived,
)
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    HandshakeConfig,
    HandshakeEvent,
    PeerVerified,
    Purpose,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import OpeningChannel


class Mismatch(Exception):
    """The code differs from what a vector says."""


def must(holds: bool, what: str) -> None:
    """Raise `Mismatch` unless it *holds*."""
    if not holds:
        raise Mismatch(what)


Given = dict[str, Any]
Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> list[bytes]:
    """The delivery uncut. An empty delivery only lets time pass."""
    return [data] if data else []


class _Link(Link):
    """A link that records its secrets."""

    seen: Secrets | None = None

    def _on(self, event: HandshakeEvent) -> None:
        if isinstance(event, PeerVerified):
            self.seen = event.secrets
        super()._on(event)


class End:
    """One end of a link, as a vector describes it. After `run` it has what was sent and released,
    and the error."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._signer = SoftwareSigner.from_scalar(int(given["scalar"], 16))
        self._asked: deque[Callable[[float], None]] = deque()
        self._up: LinkUp | None = None
        self._sent = bytearray()
        self.messages: list[bytes] = []
        self.closed: int | None = None
        self.error: SealringError | None = None
        self._link = self._make()

    def _make(self) -> _Link:
        given = self._given
        config = HandshakeConfig(
            self._signer.public_key,
            SignedRoster.decode(bytes.fromhex(given["roster"])),
            bytes.fromhex(given["coordinator"]),
            int(given["instance"]),
            tuple(Suite(suite) for suite in given["suites"]),
        )
        wall_ms, entropy = int(given["wall_ms"]), bytes.fromhex(given["entropy"])
        if "peer" in given:
            peer, purpose = bytes.fromhex(given["peer"]), Purpose(given["purpose"])
            return cast(_Link, _Link.dial(config, peer, purpose, 0.0, wall_ms, entropy))
        admission = Admission(0.0)
        for tag in given["seen"]:
            admission.replay.add(bytes.fromhex(tag))
        return cast(_Link, _Link.accept(config, admission, "peer", 0.0, wall_ms, entropy))

    def run(self, cut: Cut = whole) -> None:
        """Deliver all of the vector's deliveries, each cut by *cut*.

        What the link asks for is answered after the whole delivery, because real answers take time.
        """
        try:
            self._flush()
            for delivery in self._given["deliveries"]:
                now = delivery["at"]
                self._link.handle_timeout(now)
                self._flush()
                for piece in cut(bytes.fromhex(delivery["data"])):
                    self._link.receive_data(piece, now)
                    self._take_events()
                self._answer(now)
            if self._given["end"]:
                self._link.receive_eof()
        except SealringError as error:
            self.error = error
            self._flush()

    def _flush(self) -> None:
        self._sent += self._link.data_to_send()

    def _take_events(self) -> None:
        while (event := self._link.next_event()) is not None:
            self._on(event)
        self._flush()

    def _answer(self, now: float) -> None:
        while self._asked:
            self._asked.popleft()(now)
            self._take_events()

    def _on(self, event: Any) -> None:
        link, ask = self._link, self._asked.append
        match event:
            case SignatureRequested(payload):
                ask(lambda now: link.provide_signature(self._signer.sign(payload), now))
            case EncapsulationRequested():
                told = {k: bytes.fromhex(v) for k, v in self._given["encapsulation"].items()}
                ask(lambda now: link.provide_encapsulation(told["ciphertext"], told["secret"], now))
            case RosterReceived():
                ask(link.roster_stored)
            case PeerProved():
                ask(link.admit)
            case LinkUp():
                self._up = event
            case LinkClosed(code):
                self.closed = code
                self._asked.clear()
            case message:
                self.messages.append(b"".join(encode(message)))

    # ------------------------------------------------------------------- after

    @property
    def released(self) -> bytes:
        """All plaintext that the link released."""
        return b"".join(self.messages)

    def output(self) -> Given:
        """The vector's output: what the end sent, received and derived."""
        frames, told = self._frames()
        return {
            "sent": frames,
            "told": told,
            "messages": [message.hex() for message in self.messages],
            "closed": self.closed,
            "link": None if self._up is None else self._told_link(self._up),
        }

    def _frames(self) -> tuple[list[str], int | None]:
        """Every frame sent except a last CLOSE, and that CLOSE's code."""
        kinds = (FrameKind.HANDSHAKE, FrameKind.SEALED)
        decoder = FrameDecoder({int(kind): MAX_SEALED_BODY for kind in kinds})
        decoder.receive_data(bytes(self._sent))
        frames, told = [], None
        secrets = self._link.seen
        opener = OpeningChannel(secrets.suite, secrets.send_traffic) if secrets else None
        while (frame := decoder.next_frame()) is not None:
            if frame.kind == FrameKind.SEALED:
                if opener is None:
                    raise Mismatch("it sealed a frame before it had keys")
                message = decode(opener.open(frame))
                if isinstance(message, Close):
                    told = message.code
                    continue
            frames.append((frame.header + bytes(frame.body)).hex())
        must(decoder.buffered == 0, "it sent a part of a frame")
        return frames, told

    def _told_link(self, up: LinkUp) -> Given:
        secrets = self._link.seen
        if secrets is None:
            raise Mismatch("the link came up without secrets")
        hop = (secrets.send_activation, secrets.receive_activation)
        must((up.hop.send, up.hop.receive) == hop, "the hop has other secrets than the link")
        must(up.purpose is secrets.purpose, "the link came up for another purpose")
        told: Given = {
            "suite": int(up.suite),
            "peer": up.peer.hex(),
            "instance": str(up.instance),
            "purpose": int(up.purpose),
            "transcript": secrets.transcript.hex(),
        }
        for name in ("send", "receive"):
            for label in ("traffic", "activation"):
                told[f"{name}_{label}"] = getattr(secrets, f"{name}_{label}").hex()
        return told


def run_end(given: Given, cut: Cut = whole) -> End:
    """Run the end of *given* through all its deliveries."""
    end = End(given)
    end.run(cut)
    return end
