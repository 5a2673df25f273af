"""Multicast DNS for a trio program: it announces, and says what was found, while `run` runs."""

from __future__ import annotations

from collections.abc import Callable

import trio
from sealring_trio.units import format_address, is_unspecified

from sealring.discovery.neighbours import Circle, Nearby, is_private
from sealring.discovery.orders import Announced, Orders


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
        self._heard = heard
        self._orders = Orders(host, self._report)
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def found(self) -> Nearby:
        """What is known now."""
        return self._orders.found

    def look_for(self, circle: Circle | None) -> None:
        """Recognise announcements of *circle* from now on; without one, none."""
        self._orders.look_for(circle)

    def announce(self, *announced: Announced) -> None:
        """Announce these from now on, and no others."""
        self._orders.announce(frozenset(announced))

    async def run(self) -> None:
        """Be present where this machine has private addresses, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hold)
                try:
                    await trio.sleep_forever()
                finally:
                    self._orders.stop()
        finally:
            self._token = None  # what the thread said last may come later

    # ----------------------------------------------------------------- inside

    async def _hold(self) -> None:
        """Run the thread to its end: what was announced is taken back."""
        limiter = trio.CapacityLimiter(1)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._present, limiter=limiter)

    def _present(self) -> None:
        # A tenth of a second to import, in this thread: the event loop does not wait for it.
        from sealring.discovery.multicast import present  # noqa: PLC0415

        present(self._orders)

    def _report(self) -> None:
        """In the thread: something was found."""
        if (token := self._token) is not None:
            token.run_sync_soon(self._pass_on, idempotent=True)

    def _pass_on(self) -> None:
        if self._token is not None:
            self._heard(self._orders.found)


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
