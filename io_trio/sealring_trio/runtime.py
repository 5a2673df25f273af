"""Runs one `Node` on trio: its sockets, its clock, its engine, and the effects it asks for.

The node decides everything and does nothing; the runtime does everything and decides nothing.
Whatever happens (bytes, a dial that came up, a word of the engine, a deadline, a request) is told
to the node, and then `_settle` carries out what the node wants, in order, until it wants no more,
and flushes every link. All of this runs without an `await`, and with the lock that threads take for
what they do on tunnel links, so the node is never entered twice.

One task keeps the deadline. The node is asked for its next one each time things have settled, and
the task is woken only when that is earlier than the one it sleeps for.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, ParamSpec

import trio
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from sealring_protocol.codec.local_messages import EngineInfo, Loaded, LocalMessage
from sealring_protocol.control.effects import (
    EndCollective,
    Level,
    Note,
    PrepareCollective,
    RestartEngine,
    StepTiming,
    ToEngine,
)
from sealring_protocol.control.requests import Request, RequestDone, RowOpened, TokenOut
from sealring_protocol.events import (
    Dial,
    EncapsulationWanted,
    Hangup,
    NodeEvent,
    SignatureWanted,
    StoreRoster,
    TunnelLost,
    TunnelMessage,
    TunnelUp,
)
from sealring_protocol.node import Node
from sealring_protocol.security.identity import Signer

from sealring_trio.engine import EngineOwner, Supervisor
from sealring_trio.errors import OperationError
from sealring_trio.files import replace_file
from sealring_trio.pump import Pump
from sealring_trio.request_stream import Stream
from sealring_trio.shared_wire import Guard
from sealring_trio.tunnels import Tunnels
from sealring_trio.units import format_address, parse_address

log = logging.getLogger("sealring.node")

ACCEPT_ENTROPY: Final = 32
"""Random bytes that the handshake of an accepted connection takes."""

DIAL_ENTROPY: Final = 96
"""The same, of a dialed one."""

ACCEPT_PAUSE: Final = 0.1
"""Seconds to wait when no connection can be accepted (out of file descriptors, say)."""

DIAL_TIMEOUT: Final = 5.0
"""Seconds that a TCP connection may take to come up."""

TIMINGS_KEPT: Final = 4096
"""Step timings kept for the quantiles of `status`."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that all links together may take to close."""

P = ParamSpec("P")

_LEVELS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


def wall_ms() -> int:
    """The wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Runtime:
    """One node at work. `run` until cancelled; the other methods are for its own event loop."""

    def __init__(
        self,
        node: Node,
        *,
        signer: Signer,
        engine: Callable[[EngineOwner], Supervisor],
        listen: tuple[str, int],
        store: Path,
    ) -> None:
        """Run *node*: sign with *signer*, keep an *engine* alive, listen at *listen* (host, port),
        and keep adopted rosters in the file *store*."""
        self.node = node
        self.engine = engine(self)
        self.timings: deque[StepTiming] = deque(maxlen=TIMINGS_KEPT)
        self.weights_read = 0  # bytes, since the present engine began
        self.bytes_sent = 0  # over the links, since the node began
        self.bytes_received = 0
        self.engine_heard = -math.inf  # when the engine last said something
        self.watchers: list[Callable[[StepTiming | RowOpened], None]] = []  # told of all of them
        self.informed = trio.Event()  # the engine has said once what its model is
        self._quiet = trio.Event()
        self._stopping = False
        self._signer = signer
        self._listen = listen
        self._store = store
        self._pumps: dict[int, Pump] = {}
        self.guard = Guard()
        self._tunnels = Tunnels(self, self.guard)
        self._streams: dict[int, Stream] = {}
        self._nursery: trio.Nursery | None = None
        self._armed = math.inf
        self._rearm = trio.Event()

    # ------------------------------------------------------------------ life

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until cancelled; then its links are closed in good order.

        Raises `OperationError` when it cannot listen.
        """
        listeners = await self._open_listeners()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for listener in listeners:
                nursery.start_soon(self._accept, listener)
            nursery.start_soon(self.engine.run)
            nursery.start_soon(self._keep_time)
            self._enter(self.node.start, trio.current_time())
            task_status.started()

    async def _open_listeners(self) -> list[trio.SocketListener]:
        host, port = self._listen
        try:
            return list(await trio.open_tcp_listeners(port, host=host))
        except OSError as error:
            raise OperationError(
                f"cannot listen at {format_address(host, port)}: {error.strerror or error}",
                "Is another node running with this address? Change 'listen' in the config.",
            ) from None

    def stop(self) -> None:
        """Close every link with CLOSE; see `links_closed`."""
        self._stopping = True
        self._enter(self.node.stop, trio.current_time())

    async def links_closed(self) -> None:
        """Wait until no link is left, for a moment at most."""
        with trio.move_on_after(STOP_TIMEOUT):
            while self._pumps:
                self._quiet = trio.Event()
                await self._quiet.wait()

    # -------------------------------------------------------------- requests

    def submit(self, request: Request, known: Callable[[int], None]) -> tuple[int, Stream]:
        """Give *request* to the head; its uid, and what comes of it. *known* is told the uid before
        anything does.

        Raises `LocalProtocolError` when it can never be done.
        """
        with self.guard.lock:
            uid = self.node.submit(request, trio.current_time())
            stream = self._streams[uid] = Stream()
            known(uid)
            self._settle()
        return uid, stream

    def finish(self, uid: int) -> None:
        """The text of *uid* has reached its end before its tokens have."""
        self._enter(self.node.finish, uid, trio.current_time())

    def cancel(self, uid: int) -> None:
        """End *uid* wherever it is; whoever still reads its stream is told."""
        if self.node.rank == 0:  # a roster may have made another the head, which ended all
            self._enter(self.node.cancel, uid, trio.current_time())

    def forget(self, uid: int) -> None:
        """Nobody reads the stream of *uid* any more; it ends if it has not."""
        self._streams.pop(uid, None)
        self.cancel(uid)

    # ----------------------------------------------------------------- links

    async def _accept(self, listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                try:
                    connection, address = await listener.socket.accept()
                except OSError as error:
                    log.warning("cannot accept a connection: %s", error.strerror)
                    await trio.sleep(ACCEPT_PAUSE)
                    continue
                sock = socket.socket(fileno=connection.detach())
                entropy, now = secrets.token_bytes(ACCEPT_ENTROPY), trio.current_time()
                with self.guard.lock:
                    link = self.node.accepted(address[0], entropy, now, wall_ms())
                    self._pump(link, sock)

    async def _dial(self, dial: Dial) -> None:
        try:
            host, port = parse_address(dial.address)
            with trio.fail_after(DIAL_TIMEOUT):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, ValueError, trio.TooSlowError) as error:
            self._enter(self.node.dial_failed, dial.link, _reason(error), trio.current_time())
            return
        sock = socket.socket(fileno=stream.socket.detach())
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        with self.guard.lock:
            self.node.connected(dial.link, entropy, trio.current_time(), wall_ms())
            self._pump(dial.link, sock)

    def _pump(self, link: int, sock: socket.socket) -> None:
        pump = self._pumps[link] = Pump(self, link, sock)
        self.spawn(pump.run)
        self._settle()

    def received(self, link: int, data: bytes) -> None:
        """A pump read *data*."""
        with self.guard.lock:
            self.bytes_received += len(data)
            self.node.receive_data(link, data, trio.current_time())
            self._settle()

    def ended(self, link: int) -> None:
        """A pump's stream is over."""
        self._pumps.pop(link, None)
        self._quiet.set()
        self._enter(self.node.receive_eof, link, trio.current_time())

    def data_to_send(self, link: int) -> bytes | bytearray:
        """What the node has for *link*, in any thread that has the lock."""
        data = self.node.data_to_send(link)
        self.bytes_sent += len(data)
        return data

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage) -> None:
        """The engine said *message*."""
        self.engine_heard = trio.current_time()
        if isinstance(message, EngineInfo):
            self.informed.set()
        elif isinstance(message, Loaded):
            self.weights_read += message.read
        self._enter(self.node.engine_message, message, self.engine_heard)

    def engine_lost(self, reason: str) -> None:
        """The engine process is gone."""
        self.weights_read = 0
        self.engine_heard = -math.inf
        self._enter(self.node.engine_lost, reason, trio.current_time())

    def engine_pids(self) -> list[int]:
        """The processes that compute."""
        return self.engine.pids

    # --------------------------------------------------------------- effects

    def _enter(self, call: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """Enter the node by *call*, and carry out what it wants then."""
        with self.guard.lock:
            call(*args, **named)
            self._settle()

    def _settle(self) -> None:
        """Carry out what the node wants, flush what has bytes, and set the clock."""
        while (event := self.node.next_event()) is not None:
            self._carry_out(event)
        for link in self.node.links_to_flush():
            if pump := self._pumps.get(link):
                pump.flush()
        deadline = self.node.next_timeout()
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self._rearm.set()

    def _carry_out(self, event: NodeEvent) -> None:
        match event:
            case ToEngine(message):
                self.engine.send(message)
            case (
                TunnelUp() | TunnelMessage() | TunnelLost() | PrepareCollective() | EndCollective()
            ):
                self._tunnels.carry_out(event, self.node, self._pumps)
            case TokenOut(uid) | RequestDone(uid):
                if stream := self._streams.get(uid):
                    stream.put(event)
            case StepTiming() | RowOpened():
                self._watched(event)
            case Note(level, text):
                # While it stops, its own closing of links is no news.
                log.log(logging.DEBUG if self._stopping else _LEVELS[level], "%s", text)
            case RestartEngine(reason, planned):
                self.engine.restart(reason, planned=planned)
            case _:
                self._carry_out_link(event)

    def _carry_out_link(
        self, event: Dial | Hangup | EncapsulationWanted | SignatureWanted | StoreRoster
    ) -> None:
        match event:
            case Dial():
                self.spawn(self._dial, event)
            case Hangup(link, last):
                if pump := self._pumps.get(link):
                    pump.hang_up(last)
            case EncapsulationWanted(link, key):
                self._encapsulate(link, key)
            case SignatureWanted(link, payload):
                self.spawn(self._sign, link, payload)
            case StoreRoster(link, data):
                self.spawn(self._store_roster, link, data)

    def _watched(self, event: StepTiming | RowOpened) -> None:
        if isinstance(event, StepTiming):
            self.timings.append(event)
        for watcher in self.watchers:
            watcher(event)

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else, as long as the node runs."""
        if self._nursery is None:
            raise RuntimeError("the runtime does not run")
        self._nursery.start_soon(task, *arguments)

    def _encapsulate(self, link: int, key: bytes) -> None:
        secret, ciphertext = MLKEM768PublicKey.from_public_bytes(key).encapsulate()
        self.node.provide_encapsulation(link, ciphertext, secret, trio.current_time())

    async def _sign(self, link: int, payload: bytes) -> None:
        # In a thread, for a signer may be a slow chip.
        signature = await trio.to_thread.run_sync(self._signer.sign, payload)
        self._enter(self.node.provide_signature, link, signature, trio.current_time())

    async def _store_roster(self, link: int, data: bytes) -> None:
        try:
            await trio.to_thread.run_sync(replace_file, self._store, data)
        except OSError as error:
            log.warning("cannot keep a newer roster in %s: %s", self._store, error.strerror)
            self._enter(self.node.roster_not_stored, link, trio.current_time())
        else:
            self._enter(self.node.roster_stored, link, trio.current_time())

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._armed):
                await self._rearm.wait()
            self._rearm = trio.Event()
            self._armed = -math.inf  # awake: nobody needs to wake this task
            now = trio.current_time()
            with self.guard.lock:
                deadline = self.node.next_timeout()
                if deadline is not None and now >= deadline:
                    self.node.handle_timeout(now)
                    self._settle()
                deadline = self.node.next_timeout()
            self._armed = math.inf if deadline is None else deadline


def _reason(error: Exception) -> str:
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {DIAL_TIMEOUT:.0f} s"
    return getattr(error, "strerror", None) or str(error)
