"""Both ends of a join for the tests, all from fixed entropy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import Message
from sealring_protocol.errors import SealringError
from sealring_protocol.joining.exchange import (
    INVITER_ENTROPY,
    JOINER_ENTROPY,
    Host,
    Introduced,
    InviterProved,
    JoinSecrets,
    Newcomer,
)
from sealring_protocol.joining.invitation import Invitation, Invitations
from sealring_protocol.joining.session import JoinEvent, JoinSession
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import Roster, sign_roster
from sealring_protocol.security.seal import SealingChannel

from tests.security.pairs import ADA, COORDINATOR, EVE, NOW, bytes_of, encapsulate, roster

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


def invitations(*given: Invitation) -> Invitations:
    """An inviter's, with *given*, or `INVITATION` alone."""
    kept = Invitations(0.0)
    for invitation in given or (INVITATION,):
        kept.add(invitation)
    return kept


def asking(
    invitation: Invitation = INVITATION,
    newcomer: Newcomer = NEWCOMER,
    wall_ms: int = NOW,
    seed: str = "joiner",
) -> JoinSession:
    return JoinSession.ask(invitation, newcomer, 0.0, wall_ms, bytes_of(seed, JOINER_ENTROPY))


def answering(
    kept: Invitations, at: Host | None = None, wall_ms: int = NOW, now: float = 0.0
) -> JoinSession:
    entropy = bytes_of("inviter", INVITER_ENTROPY)
    return JoinSession.answer(host() if at is None else at, kept, now, wall_ms, entropy)


def drain(end: JoinSession, signer: SoftwareSigner, now: float = 0.0) -> Iterable[JoinEvent]:
    """Answer what *end* asks for, and give what else it says."""
    while (event := end.next_event()) is not None:
        match event:
            case EncapsulationRequested(encapsulation_key=key):
                end.provide_encapsulation(*encapsulate(key), now)
            case SignatureRequested(payload):
                end.provide_signature(signer.sign(payload), now)
            case _:
                yield event


class Pair:
    """Both ends of one join, and what each has heard."""

    def __init__(
        self,
        kept: Invitations | None = None,
        *,
        invitation: Invitation = INVITATION,
        at: Host | None = None,
        signer: SoftwareSigner = ADA,
        joins: SoftwareSigner = DAN,
        newcomer: Newcomer = NEWCOMER,
        wall_ms: tuple[int, int] = (NOW, NOW),
        piece: int = 1 << 20,
        seed: str = "joiner",
    ) -> None:
        self.invitations = invitations() if kept is None else kept
        self.piece = piece
        self.joiner = asking(invitation, newcomer, wall_ms[0], seed)
        self.inviter = answering(self.invitations, at, wall_ms[1])
        self.signers = {id(self.joiner): joins, id(self.inviter): signer}
        self.heard: dict[str, list[JoinEvent | SealringError]] = {"joiner": [], "inviter": []}
        self.said: dict[str, bytes] = {"joiner": b"", "inviter": b""}
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
                    self.said[name] += data
                    self.deliver("inviter" if other is self.inviter else "joiner", data, now)

    def deliver(self, name: str, data: bytes, now: float = 0.0) -> None:
        """*data* comes to the end *name*, in pieces."""
        end = self.joiner if name == "joiner" else self.inviter
        for at in range(0, len(data), self.piece):
            with contextlib.suppress(SealringError):
                end.receive_data(data[at : at + self.piece], now)
            self.drain(name, end, now)

    def drain(self, name: str, end: JoinSession, now: float) -> None:
        try:
            self.heard[name].extend(drain(end, self.signers[id(end)], now))
        except SealringError as error:
            if error not in self.heard[name]:
                self.heard[name].append(error)

    # ------------------------------------------------------------ ends that lie

    def secrets(self, name: str) -> JoinSecrets:
        """The secrets of the end *name*, once it has introduced itself or the other has."""
        (event,) = (e for e in self.heard[name] if isinstance(e, InviterProved | Introduced))
        return event.secrets

    def liar(self, name: str) -> SealingChannel:
        """A channel that seals as the end *name* would from its first frame on."""
        secrets = self.secrets(name)
        return SealingChannel(secrets.suite, secrets.send)

    def lie(self, name: str, *messages: Message) -> None:
        """*messages* come to the other end as if *name* had sent them; it has sent none before."""
        channel, other = self.liar(name), "inviter" if name == "joiner" else "joiner"
        for message in messages:
            self.deliver(other, bytes(channel.seal(encode(message))))


def last(pair: Pair, name: str) -> Any:
    return pair.heard[name][-1]


def with_dan(serial: int = 6) -> bytes:
    return sign_roster(roster(("ada", "eve"), serial=serial), COORDINATOR).encode()
