"""Two throwaway members, and links between them, for the benches."""

from __future__ import annotations

import os
from typing import Final

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from sealring_protocol.codec.messages import Step, StepDone
from sealring_protocol.link import (
    Link,
    LinkOpened,
    PeerProved,
)
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    HandshakeConfig,
    SignatureRequested,
)
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Roster, sign_roster
from sealring_trio.units import wall_ms

_NEVER_MS: Final = 1 << 50
_COORDINATOR: Final = SoftwareSigner.from_scalar(3)
SIGNERS: Final = (SoftwareSigner.from_scalar(1), SoftwareSigner.from_scalar(2))
"""Keys that anyone can guess: they guard nothing but a bench's random bytes."""


def configs() -> tuple[HandshakeConfig, HandshakeConfig]:
    """What the two members bring to their handshakes."""
    members = tuple(Member(signer.public_key, f"rank{rank}") for rank, signer in enumerate(SIGNERS))
    roster = Roster(bytes(32), "bench", 1, 0, _NEVER_MS, True, members)
    signed = sign_roster(roster, _COORDINATOR)
    first, second = (
        HandshakeConfig(signer.public_key, signed, _COORDINATOR.public_key, rank + 1)
        for rank, signer in enumerate(SIGNERS)
    )
    return first, second


@attrs.define
class End:
    """One end of a link, which answers at once what the link asks for."""

    link: Link
    signer: SoftwareSigner
    up: bool = False

    def take(self, data: bytes, now: float) -> Step | StepDone | None:
        """Feed *data*; returns the last message in it."""
        self.link.receive_data(data, now)
        return self.turn(now)

    def turn(self, now: float) -> Step | StepDone | None:
        """Answer what the link asks for; returns the last message."""
        message = None
        while (event := self.link.next_event()) is not None:
            match event:
                case Step() | StepDone():
                    message = event
                case SignatureRequested(payload):
                    self.link.provide_signature(self.signer.sign(payload), now)
                case EncapsulationRequested(key):
                    secret, ciphertext = MLKEM768PublicKey.from_public_bytes(key).encapsulate()
                    self.link.provide_encapsulation(ciphertext, secret, now)
                case PeerProved():
                    self.link.admit(now)
                case LinkOpened():
                    self.up = True
                case _:
                    pass
        return message


def dial(config: HandshakeConfig, peer: bytes, now: float) -> End:
    """The end that dials."""
    link = Link.dial(config, peer, Purpose.STEP, now, wall_ms(), os.urandom(96))
    return End(link, SIGNERS[0])


def accept(config: HandshakeConfig, admission: Admission, now: float) -> End:
    """The end that is dialed."""
    return End(Link.accept(config, admission, "bench", now, wall_ms(), os.urandom(32)), SIGNERS[1])


def shake_hands(near: End, far: End, now: float) -> None:
    """Carry bytes both ways until both are up."""
    while not (near.up and far.up):
        far.take(bytes(near.link.data_to_send()), now)
        near.take(bytes(far.link.data_to_send()), now)
