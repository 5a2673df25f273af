"""Multicast DNS for a trio program: it announces, and says what was found, while `Discovery.run`
runs.

A thread does so (`multicast`). What the program and the thread say to each other are values of
`Discovery` that are replaced as a whole and never changed, so either side may read them at any
time.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from sealring_protocol.joining.announcement import door_text, node_text
from sealring_protocol.security.keys import sha256
from sealring_trio.units import format_address, is_unspecified

from sealring.discovery.neighbours import MAX_ADDRESSES, Circle, Nearby, is_private
from sealring.joining.machine import interface_addresses

if TYPE_CHECKING:
    from sealring_trio.node.runtime import Runtime
    from sealring_trio.node.service import OwnIdentity

    from sealring.files.config import Config
    from sealring.joining.door import Door

RENEW_SECONDS: Final = 1.0
"""Seconds between two looks of a node at its roster and its door, of which announcements follow,
and at what was heard: whoever announces much is not to enter the node as often."""


@attrs.frozen
class Announced:
    """An announcement: what gives its TXT record, the *text*, for a nonce of `NONCE` random bytes,
    and the *port* where what it stands for listens. Nonce and name are others in another network:
    who hears it in two cannot tell that it is one machine."""

    text: Callable[[bytes], bytes]
    port: int


@attrs.frozen
class Near:
    """A private *address* of this machine, and the index of the *interface* that has it."""

    interface: int
    address: str

    @property
    def zeroconf(self) -> str | int:
        """What zeroconf calls it: IPv6 interfaces by index, for all have the same prefix."""
        return self.interface if ":" in self.address else self.address


def near_addresses(host: str) -> tuple[Near, ...]:
    """The private addresses at which neighbours reach what listens at *host*. Empty for a name, and
    where there is none. An interface with another end and no neighbours, as a VPN has, does not
    count: who is at that end is not known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    interfaces = psutil.net_if_stats()
    found = []
    for name, address in interface_addresses(family):
        if name not in interfaces or "pointopoint" in interfaces[name].flags.split(","):
            continue
        if is_private(address) and (is_unspecified(host) or address == host.partition("%")[0]):
            with contextlib.suppress(OSError):  # the interface has gone meanwhile
                found.append(Near(socket.if_nametoindex(name), address))
    return tuple(sorted(found, key=lambda near: (near.interface, near.address)))


def may_discover(host: str) -> bool:
    """Whether what listens at *host* may ever be in a private network: at every address of its
    machine, or at a private one. A name is for a name server."""
    return is_unspecified(host) or is_private(host)


def _unheard(_: Nearby) -> None:
    """Nobody waits for what is found."""


class Discovery:
    """Of a program that listens at *host*. *heard*, if given, is called in the event loop with what
    is found, each time that changes."""

    def __init__(self, host: str, heard: Callable[[Nearby], None] = _unheard) -> None:
        self._host = host
        self._heard = heard
        self._token: trio.lowlevel.TrioToken | None = None
        self._wake: Callable[[], object] = bool  # which does nothing
        self.announced: frozenset[Announced] = frozenset()
        self.circle: Circle | None = None
        self.stopped = False
        self.found = Nearby()
        """What the thread has found."""

    # ----------------------------------------------------------- the program

    def look_for(self, circle: Circle | None) -> None:
        """Recognise announcements of *circle* from now on; without one, none."""
        if circle != self.circle:
            self.circle = circle
            self._wake()

    def announce(self, *announced: Announced) -> None:
        """Announce these from now on, and no others."""
        if frozenset(announced) != self.announced:
            self.announced = frozenset(announced)
            self._wake()

    async def run(self) -> None:
        """Be present where this machine has private addresses, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hold)
                try:
                    await trio.sleep_forever()
                finally:
                    self.stopped = True
                    self._wake()
        finally:
            self._token = None  # what the thread said last may come later

    async def _hold(self) -> None:
        """Run the thread to its end: what was announced is taken back."""
        limiter = trio.CapacityLimiter(1)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._present, limiter=limiter)

    def _pass_on(self) -> None:
        if self._token is not None:
            self._heard(self.found)

    # ------------------------------------------------------------ the thread

    def _present(self) -> None:
        # A tenth of a second to import, in this thread: the event loop does not wait for it.
        from sealring.discovery.multicast import present  # noqa: PLC0415

        present(self)

    @contextlib.contextmanager
    def watched(self, wake: Callable[[], object]) -> Iterator[None]:
        """Have *wake* called, in the program's thread, after each order within the block."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = bool

    def near(self) -> tuple[Near, ...]:
        """Where this machine can be reached just now."""
        return near_addresses(self._host)

    def report(self, found: Nearby) -> None:
        """There is *found* in this network."""
        if found != self.found:
            self.found = found
            if (token := self._token) is not None:
                token.run_sync_soon(self._pass_on, idempotent=True)


async def find_doors(host: str, coordinator: bytes, found: Callable[[str], None]) -> None:
    """For a newcomer that is to listen at *host*: call *found* with each address at which a door of
    the cluster announces itself whose coordinator's public key has the SHA-256 *coordinator*, until
    cancelled. An address may come several times."""

    def heard(here: Nearby) -> None:
        for place in here.doors:
            found(format_address(*place))

    discovery = Discovery(host, heard)
    discovery.look_for(Circle(coordinator, frozenset()))
    await discovery.run()


class Presence:
    """The place of a node in its network: that of *config*, which is *identity* to others and has
    this *door*.

    The node announces itself, and its door while somebody is invited. It hears where members are,
    and which machines wait to be invited. Where a member was seen is one more address to dial, and
    no more than that.
    """

    def __init__(self, config: Config, identity: OwnIdentity, door: Door) -> None:
        self._host, port = config.listen
        self._on = config.discover and may_discover(self._host)
        self._coordinator = sha256(identity.coordinator)
        self._own = identity.id
        self._door = door
        self._runtime: Runtime | None = None
        self._discovery = Discovery(self._host)
        self._told = Nearby()  # what the runtime was told
        self._as_node = Announced(partial(node_text, self._coordinator, self._own), port)
        self._as_door = Announced(partial(door_text, self._coordinator), door.address[1])

    async def run(self, up: trio.Event) -> None:
        """Be present from when the node is *up*, until cancelled."""
        await up.wait()
        if not self._on:
            return
        async with trio.open_nursery() as nursery:
            self._renew()
            nursery.start_soon(self._discovery.run)
            while True:
                await trio.sleep(RENEW_SECONDS)
                self._renew()

    def begin(self, runtime: Runtime) -> None:
        """*runtime* runs the node from now on."""
        self._runtime, self._told = runtime, Nearby()

    def pause(self) -> None:
        """The node does not run."""
        self._runtime = None

    def waiting(self) -> list[dict[str, Any]]:
        """The machines here that wait to be invited, as JSON for commands."""
        return [
            {"fingerprint": words, "hosts": [host for host, _ in places[:MAX_ADDRESSES]]}
            for words, places in self._discovery.found.waiting.items()
        ]

    # ----------------------------------------------------------------- inside

    def _renew(self) -> None:
        if self._runtime is None:
            return
        members = {member.id for member in self._runtime.node.roster.roster.members}
        self._discovery.look_for(Circle(self._coordinator, frozenset(members - {self._own})))
        announced = [self._as_node] if self._own in members else []
        if self._door.invites:
            announced.append(self._as_door)
        self._discovery.announce(*announced)
        self._tell(self._runtime, self._discovery.found)

    def _tell(self, runtime: Runtime, found: Nearby) -> None:
        """Tell *runtime* what is new in *found*."""
        for member, places in found.members.items():
            for place in places:
                if place not in self._told.members.get(member, ()):
                    runtime.enter(runtime.node.address_heard, member, *place)
        self._told = found
