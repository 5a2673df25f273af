"""A door on loopback, and newcomers that knock at it: real sockets, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from sealring.files.cluster import new_key
from sealring.files.config import load_config
from sealring.joining.asking import JoinProgress, JoinRequest, Search
from sealring.joining.door import Door, Knock
from sealring.joining.founding import MemberFiles, Settings, found
from sealring.joining.line import JoinLine
from sealring_protocol.joining.exchange import Admitted, InviterProved, Newcomer
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import SignedRoster, newer
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.units import wall_ms

PATIENCE = 30.0
"""Seconds after which what should have happened has not."""


@attrs.define(eq=False)
class Home:
    """A cluster of one, whose node is no more than its roster; and the node's door."""

    files: MemberFiles
    signed: SignedRoster
    signer: SoftwareSigner
    coordinator: bytes
    door: Door = attrs.field(init=False)
    installed: list[int] = attrs.field(factory=list)

    async def install(self, roster: bytes) -> None:
        self.signed = newer(self.coordinator, self.signed.roster, roster, wall_ms())
        self.installed.append(self.signed.roster.serial)

    async def accept(self, who: str = "", roster: bytes | None = None) -> None:
        """Let in the newcomer that *who* means."""
        await self.door.accept(self.door.find(who), roster)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.signed.roster.members]

    async def knocked(self, count: int = 1) -> list[Knock]:
        """Those that wait, once there are *count*."""
        with self.door.news() as news:
            while len(self.door.waiting()) < count:
                await anext(news)
        return self.door.waiting()


@asynccontextmanager
async def home(folder: Path, *, signs: bool = True, api: str = "off") -> AsyncIterator[Home]:
    """A cluster called home, with the machine desk, in *folder*, while the block lasts."""
    port, door_port = free_ports(2)
    files = MemberFiles.at(folder / "desk")
    signed = found(files, Settings("desk", ("127.0.0.1", port), api, "tiny"))
    text = files.config.read_text() + f'door = "127.0.0.1:{door_port}"\n'
    if not signs:
        text = text.replace('coordinator_key = "coordinator.key"\n', "")
    files.config.write_text(text)
    made = Home(files, signed, read_key(files.key), read_public_key(str(files.coordinator)))
    made.door = Door(load_config(files.config), made.signer, made.coordinator)
    made.door.begin(lambda: made.signed, made.install, "tiny")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.door.run)
            yield made
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Machine(JoinProgress):
    """A machine that joins, what it heard, and how that ended."""

    name: str = "den"
    addresses: tuple[str, ...] = ("127.0.0.1:7999",)
    signer: SoftwareSigner = attrs.field(factory=new_key)
    build: int = 0
    system: str = "macOS 26"
    search: Search | None = None
    fault: UserError | None = None  # which keeps it from storing
    inviter: str = ""
    stored: Admitted | None = None
    ended: bool | UserError | None = None
    request: JoinRequest | None = None
    over: trio.Event = attrs.field(factory=trio.Event)
    waited: list[tuple[float, bool]] = attrs.field(factory=list)  # seconds, and whether it joined
    is_waiting: trio.Event = attrs.field(factory=trio.Event)

    def proved(self, cluster: InviterProved, name: str) -> None:
        self.inviter = name

    def waiting(self, name: str, seconds: float) -> None:
        self.waited.append((seconds, self.stored is not None))
        self.is_waiting.set()

    def store(self, cluster: InviterProved, admitted: Admitted) -> None:
        if self.fault is not None:
            raise self.fault
        self.stored = admitted

    async def join(self, invitation: Invitation) -> None:
        """Ask to join, to the end."""
        self.request = JoinRequest(
            invitation, self.signer, lambda _: self.newcomer, self, self.search
        )
        try:
            self.ended = await self.request.run()
        except UserError as error:
            self.ended = error
        self.over.set()

    @property
    def newcomer(self) -> Newcomer:
        key = self.signer.public_key
        return Newcomer(key, self.name, self.system, 64 << 30, self.build, self.addresses)

    @property
    def told(self) -> str:
        """What it was told of why it did not join."""
        assert isinstance(self.ended, UserError), self.ended
        return f"{self.ended.what}\n{self.ended.advice}"


async def asked(home: Home, machine: Machine, nursery: trio.Nursery) -> Knock:
    """*machine* has knocked at the door of *home*, with a new invitation."""
    invitation = await home.door.invite()
    nursery.start_soon(machine.join, invitation)
    waiting = await home.knocked(len(home.door.waiting()) + 1)
    return waiting[-1]


def hold_stored(monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, Callable[[], None]]:
    """Keep a newcomer from saying that it has stored its roster: an event that is set when it
    would, and what has it say so."""
    say, silent, stored = JoinLine.stored, list[JoinLine](), trio.Event()

    def keep_silent(line: JoinLine) -> None:
        silent.append(line)
        stored.set()

    monkeypatch.setattr(JoinLine, "stored", keep_silent)
    return stored, lambda: say(silent[0])
