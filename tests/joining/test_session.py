"""Two ends of a join, without a socket: what each learns, and when."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import Admit, Joined
from sealring_protocol.errors import CloseCode, ConnectionLost, PeerTimeout, SealringError
from sealring_protocol.joining.exchange import (
    INVITER_ENTROPY,
    JOINER_ENTROPY,
    Admitted,
    Host,
    Introduced,
    InviterProved,
    Newcomer,
)
from sealring_protocol.joining.invitation import Invitation, Invitations
from sealring_protocol.joining.session import JoinEvent, JoinRefused, JoinSession
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import Roster, sign_roster

from tests.security.pairs import ADA, BEN, COORDINATOR, EVE, NOW, bytes_of, roster

DAN = EVE  # who is in no roster yet
INVITATION = Invitation(
    ("192.168.1.10:7471",),
    sha256(COORDINATOR.public_key),
    bytes_of("invitation", 16),
    NOW // 1000 + 600,
)
NEWCOMER = Newcomer(DAN.public_key, "den", "macOS 26, M5", 64 << 30, 7, ("den:7470",))
HOME = roster(("ada",))


def host(of: Roster = HOME, signer: SoftwareSigner = ADA) -> Host:
    return Host(signer.public_key, sign_roster(of, COORDINATOR), COORDINATOR.public_key)


class Pair:
    """Both ends of one join, and what each has heard."""

    def __init__(
        self,
        invitations: Invitations | None = None,
        *,
        invitation: Invitation = INVITATION,
        at: Host | None = None,
        signer: SoftwareSigner = ADA,
        newcomer: Newcomer = NEWCOMER,
        wall_ms: tuple[int, int] = (NOW, NOW),
    ) -> None:
        if invitations is None:
            invitations = Invitations(0.0)
            invitations.add(INVITATION)
        self.invitations = invitations
        self.joiner = JoinSession.ask(
            invitation, newcomer, 0.0, wall_ms[0], bytes_of("joiner", JOINER_ENTROPY)
        )
        self.inviter = JoinSession.answer(
            host() if at is None else at,
            invitations,
            0.0,
            wall_ms[1],
            bytes_of("inviter", INVITER_ENTROPY),
        )
        self.signers = {id(self.joiner): DAN, id(self.inviter): signer}
        self.heard: dict[str, list[JoinEvent | SealringError]] = {"joiner": [], "inviter": []}
        self.run()

    def run(self, now: float = 0.0) -> None:
        """Pass bytes until neither end has any."""
        moved = True
        while moved:
            moved = False
            ends = (("joiner", self.joiner, self.inviter), ("inviter", self.inviter, self.joiner))
            for name, end, other in ends:
                self.drain(name, end, now)
                if data := end.data_to_send():
                    moved = True
                    try:
                        other.receive_data(data, now)
                    except SealringError:
                        pass

    def drain(self, name: str, end: JoinSession, now: float) -> None:
        try:
            while (event := end.next_event()) is not None:
                match event:
                    case EncapsulationRequested(key=key):
                        secret, ciphertext = key.encapsulate()
                        end.provide_encapsulation(ciphertext, secret, now)
                    case SignatureRequested(payload):
                        end.provide_signature(self.signers[id(end)].sign(payload), now)
                    case _:
                        self.heard[name].append(event)
        except SealringError as error:
            if error not in self.heard[name]:
                self.heard[name].append(error)


def with_dan(serial: int = 6) -> bytes:
    return sign_roster(roster(("ada", "eve"), serial=serial), COORDINATOR).encode()


def test_a_newcomer_joins() -> None:
    pair = Pair()
    (proved,) = pair.heard["joiner"]
    (introduced,) = pair.heard["inviter"]
    assert isinstance(proved, InviterProved)
    assert isinstance(introduced, Introduced)
    assert proved.roster.roster == HOME
    assert introduced.newcomer == NEWCOMER
    pair.inviter.admit(Admit(with_dan(), "{}"), 1.0)
    pair.run(1.0)
    admitted = pair.heard["joiner"][-1]
    assert isinstance(admitted, Admitted)
    assert NEWCOMER.id in admitted.roster.roster
    pair.joiner.stored(2.0)
    pair.run(2.0)
    assert isinstance(pair.heard["inviter"][-1], Joined)
    assert pair.invitations.fault(INVITATION, NOW) == "this invitation was used"
