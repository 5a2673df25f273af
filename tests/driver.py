"""The one driver of links and nodes in the tests.

A link and a node do nothing by themselves: they ask for signatures, encapsulations and stored
rosters, and wait. This module gives them what they ask for, at once, and hands on every other
event. The simulator (`sim.cluster`) answers later, in virtual time, so it takes `events_of` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from sealring_protocol.codec.messages import Message
from sealring_protocol.events import NodeEvent, Requested, StoreRoster
from sealring_protocol.link import Link, LinkOpened, PeerProved, RosterReceived
from sealring_protocol.node import Node
from sealring_protocol.security import handshake
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import SignedRoster


def encapsulate(key: bytes) -> tuple[bytes, bytes]:
    """A ciphertext for the encapsulation key *key*, and the secret in it; new each time."""
    secret, ciphertext = MLKEM768PublicKey.from_public_bytes(key).encapsulate()
    return ciphertext, secret


@attrs.define(eq=False)
class End:
    """One end of a link, and what the link gave. It signs with *signer*, admits any member that
    proves itself if *admits*, and stores any roster if *stores*."""

    link: Link
    signer: SoftwareSigner
    admits: bool = True
    stores: bool = True
    encapsulate: Callable[[bytes], tuple[bytes, bytes]] = encapsulate
    events: list[Any] = attrs.field(factory=list)
    sent: list[bytes] = attrs.field(factory=list)
    stored: list[SignedRoster] = attrs.field(factory=list)
    error: Exception | None = None

    @property
    def up(self) -> LinkOpened | None:
        """What the link told when it came up, if it did."""
        return next((event for event in self.events if isinstance(event, LinkOpened)), None)

    def receive(self, data: bytes, now: float) -> None:
        """Give the link *data* from its peer, and `take` what comes of it."""
        self.link.receive_data(data, now)
        self.take(now)

    def take(self, now: float) -> None:
        """Answer what the link asks for, and keep its other events."""
        while (event := self.link.next_event()) is not None:
            match event:
                case handshake.SignatureRequested(payload):
                    self.link.provide_signature(self.signer.sign(payload), now)
                case handshake.EncapsulationRequested(key):
                    self.link.provide_encapsulation(*self.encapsulate(key), now)
                case RosterReceived(roster) if self.stores:
                    self.stored.append(roster)
                    self.link.roster_stored(now)
                case PeerProved():
                    self.events.append(event)
                    if self.admits:
                        self.link.admit(now)
                case _:
                    self.events.append(event)

    def taken(self) -> list[Any]:
        """The events since this was last asked, which are forgotten here."""
        events, self.events = self.events, []
        return events

    def send(self, *messages: Message) -> bytes:
        """The bytes of *messages*, and of all that waited before them, for the peer."""
        for message in messages:
            self.link.send(message)
        return bytes(self.link.data_to_send())


def events_of(node: Node) -> Iterator[NodeEvent]:
    """What *node* asks for and tells, in order, until it has nothing more."""
    while (event := node.next_event()) is not None:
        yield event


def drive(node: Node, signer: SoftwareSigner, now: float) -> list[NodeEvent]:
    """Answer what *node* asks of its signer, its processor and its disk; its other events."""
    rest: list[NodeEvent] = []
    for event in events_of(node):
        match event:
            case Requested(link, handshake.SignatureRequested(payload)):
                node.provide_signature(link, signer.sign(payload), now)
            case Requested(link, handshake.EncapsulationRequested(key)):
                node.provide_encapsulation(link, *encapsulate(key), now)
            case StoreRoster(link):
                node.roster_stored(link, now)
            case _:
                rest.append(event)
    return rest
