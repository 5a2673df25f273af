"""The thread that speaks multicast DNS: zeroconf, on an asyncio loop of its own.

Importing this takes a tenth of a second of a processor, which is why `discovery` has it done in the
thread. zeroconf answers, asks, and remembers what it hears. Strangers decide how much comes in, so
all of that passes a gate before zeroconf reads it (`DatagramGate`):

- What comes from no private address is dropped: the socket listens at every interface, and a public
  one is to give no answer.
- What does not have this service's name in it is dropped: printers and speakers cost nothing, and
  nothing of them is remembered.
- Announcements of ours are short. A longer datagram is dropped.
- Once this thread has used its share of a second (`SHARE`), it sleeps until the next one begins,
  and the system drops what does not fit into the sockets' buffers.

zeroconf remembers 10,000 records. What it keeps beside them for each service is not bounded, so it
is ended and begun again after `FLOOD` new ones. So it is when it trips over something that was
sent: a name that it can read and not write, for one, keeps it from ever asking again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import zeroconf
from sealring_protocol.joining.announcement import NONCE, SERVICE
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from sealring.discovery.neighbours import Nearby, Neighbours, is_private

if TYPE_CHECKING:
    from sealring.discovery.discovery import Announced, Discovery, Near

log = logging.getLogger("sealring")
logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # or strangers would fill the log

LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at the interfaces: a machine moves to another network."""

TTL_SECONDS: Final = 1125
"""Seconds for which others remember an announcement of a machine that was cut off. zeroconf takes
no less from others, and asks anew in time."""

SHARE: Final = 0.05
"""Seconds of a processor in each second that what comes in may take."""

FLOOD: Final = 4096
"""New services after which zeroconf is begun again."""

REST_SECONDS: Final = 10.0
"""Seconds without multicast DNS after that, or after it has failed."""

SETTLE_SECONDS: Final = 0.5
"""Seconds after which it begins again with other interfaces, or after it tripped."""

MAX_DATAGRAM: Final = 1472
"""Bytes of a datagram that is read: what one Ethernet frame carries. zeroconf sends no longer
ones."""

_NAME: Final = SERVICE.partition(".")[0].encode()


def present(program: Discovery) -> None:
    """Announce and listen as *program* says, until it says stop. Call from a thread of its own."""
    with asyncio.Runner(loop_factory=_GatedLoop) as runner:
        runner.run(_Presence(program).run())


class Budget:
    """A share of each second of this thread's processor time."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._used = time.thread_time()

    def spend(self) -> None:
        """Sleep if the share of this second is used up."""
        now, used = time.monotonic(), time.thread_time()
        if (left := self._since + 1 - now) > 0:
            if used - self._used <= SHARE:
                return
            time.sleep(left)
            now = time.monotonic()
        self._since, self._used = now, used


class DatagramGate(asyncio.DatagramProtocol):
    """Passes to *inner*, zeroconf's own, what it is to read."""

    def __init__(self, inner: Any, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of `asyncio.DatagramProtocol`."""
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """As of `asyncio.DatagramProtocol`."""
        self._inner.connection_lost(exc)

    def error_received(self, exc: Exception) -> None:
        """As of `asyncio.DatagramProtocol`."""
        log.debug("multicast DNS: %s", exc)  # zeroconf would warn of each

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """As of `asyncio.DatagramProtocol`."""
        if len(data) <= MAX_DATAGRAM and _NAME in data and is_private(str(addr[0])):
            self._inner.datagram_received(data, addr)
        self._budget.spend()


class _GatedLoop(asyncio.SelectorEventLoop):
    """An event loop in which all datagrams pass a gate."""

    def __init__(self) -> None:
        super().__init__()
        self._budget = Budget()

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], **options: Any
    ) -> tuple[asyncio.DatagramTransport, Any]:
        """As that of asyncio."""
        inner = protocol_factory()
        gate = DatagramGate(inner, self._budget)
        transport, _ = await super().create_datagram_endpoint(lambda: gate, **options)
        return transport, inner


class _Presence:
    """Announces and listens as *program* says."""

    def __init__(self, program: Discovery) -> None:
        self._program = program
        self._woken = asyncio.Event()
        self._neighbours = Neighbours(None)
        self._additions = 0
        self._tripped = False
        self._said = ""
        self._told: dict[Announced, AsyncServiceInfo] = {}

    async def run(self) -> None:
        """Until *program* says stop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._trip)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, for it was told to stop
                loop.call_soon_threadsafe(self._woken.set)

        with self._program.watched(wake):
            while not self._program.stopped:
                pause = LOOK_SECONDS
                try:
                    if near := self._program.near():
                        await self._within(near)
                        pause = REST_SECONDS if self._additions >= FLOOD else SETTLE_SECONDS
                except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
                    self._say(f"multicast DNS cannot be used here: {error}")
                    pause = REST_SECONDS
                await self._wait(pause)

    async def _within(self, near: tuple[Near, ...]) -> None:
        """Be present at *near* for as long as this machine has these addresses."""
        program = self._program
        circle = program.circle
        self._neighbours, self._additions, self._tripped = Neighbours(circle), 0, False
        multicast = AsyncZeroconf(interfaces=[each.zeroconf for each in near])
        told = self._told = {}
        browser = None
        try:
            browser = AsyncServiceBrowser(multicast.zeroconf, SERVICE, handlers=[self._changed])
            while not (program.stopped or self._tripped or self._additions >= FLOOD):
                if program.near() != near:
                    # Nobody in the next network is to hear what was announced in this one.
                    multicast.zeroconf.registry.async_remove(list(told.values()))
                    break
                if program.circle != circle:
                    circle = program.circle
                    self._look_again(multicast.zeroconf)
                await self._tell(multicast, near)
                await self._wait(LOOK_SECONDS)
        finally:
            if browser is not None:
                await browser.async_cancel()
            await multicast.async_close()
            self._program.report(Nearby())
        if self._additions >= FLOOD:
            self._say(
                f"over {FLOOD} new announcements of sealring came in this network, more than any "
                f"clusters make: multicast DNS rests for {REST_SECONDS:.0f} s each time"
            )

    def _trip(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """zeroconf tripped over something that a stranger sent, and may ask no more."""
        log.debug("multicast DNS: %s", context.get("exception") or context["message"])
        self._tripped = True
        self._woken.set()

    async def _wait(self, seconds: float) -> None:
        """Wait for *seconds*, or until there is another order."""
        if not self._program.stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def _tell(self, multicast: AsyncZeroconf, near: tuple[Near, ...]) -> None:
        """Announce what is ordered, and take back what is so no more."""
        wanted, told = self._program.announced, self._told
        for each in [each for each in told if each not in wanted]:
            await multicast.async_unregister_service(told.pop(each))
        for each in wanted - told.keys():
            instance = secrets.token_hex(8)
            info = told[each] = AsyncServiceInfo(
                SERVICE,
                f"{instance}.{SERVICE}",
                port=each.port,
                properties=each.text(secrets.token_bytes(NONCE)),
                server=f"{instance}.local.",
                host_ttl=TTL_SECONDS,
                other_ttl=TTL_SECONDS,
                parsed_addresses=[each.address for each in near],
            )
            # Its name is random: there is nobody to ask whether it is taken.
            await multicast.async_register_service(info, cooperating_responders=True)

    # ------------------------------------------------------------- listening

    def _changed(
        self,
        zeroconf: zeroconf.Zeroconf,
        service_type: str,
        name: str,
        state_change: zeroconf.ServiceStateChange,
    ) -> None:
        """zeroconf has heard of *name*."""
        if state_change.name == "Added":
            self._additions += 1
            if self._additions == FLOOD:
                self._woken.set()
        if state_change.name == "Removed":
            changed = self._neighbours.gone(name)
        else:
            changed = self._heard(zeroconf, name)
        if changed:
            self._program.report(self._neighbours.found)

    def _heard(self, multicast: zeroconf.Zeroconf, name: str) -> bool:
        if any(info.name == name for info in self._told.values()):
            return False
        try:
            info = AsyncServiceInfo(SERVICE, name)
        except zeroconf.Error:  # a name that it reads, and takes for no service's
            return False
        info.load_from_cache(multicast)
        hosts = info.parsed_scoped_addresses()
        return self._neighbours.heard(name, info.text or b"", hosts, info.port or 0)

    def _look_again(self, multicast: zeroconf.Zeroconf) -> None:
        """Others are to be recognised from now on."""
        self._neighbours = Neighbours(self._program.circle)
        for record in multicast.cache.entries_with_name(SERVICE):
            self._heard(multicast, str(getattr(record, "alias", "")))
        self._program.report(self._neighbours.found)

    def _say(self, text: str) -> None:
        """Log *text*, if it is not what was logged last."""
        if text != self._said:
            log.warning("%s", text)
        self._said = text
