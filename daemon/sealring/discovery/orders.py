"""What a program and its thread for multicast DNS say to each other.

Each value is replaced as a whole and never changed, so either side may read it at any time.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import attrs
import psutil  # type: ignore[import-untyped]
from sealring_trio.units import is_unspecified

from sealring.discovery.neighbours import Circle, Nearby, is_private
from sealring.joining.machine import interface_addresses


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


class Orders:
    """For a program that listens at *host*: what it announces, whom it looks for, and the end.
    *heard* is called in the thread whenever there is another `found`."""

    def __init__(self, host: str, heard: Callable[[], None]) -> None:
        self._host = host
        self._heard = heard
        self._wake: Callable[[], object] = bool  # which does nothing
        self.announced: frozenset[Announced] = frozenset()
        self.circle: Circle | None = None
        self.stopped = False
        self.found = Nearby()
        """What the thread has found."""

    # ----------------------------------------------------------- the program

    def look_for(self, circle: Circle | None) -> None:
        """Recognise the announcements of *circle* from now on."""
        if circle != self.circle:
            self.circle = circle
            self._wake()

    def announce(self, announced: frozenset[Announced]) -> None:
        """Announce these from now on, and no others."""
        if announced != self.announced:
            self.announced = announced
            self._wake()

    def stop(self) -> None:
        """End the thread. It takes back what it has announced."""
        self.stopped = True
        self._wake()

    # ------------------------------------------------------------ the thread

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
            self._heard()
