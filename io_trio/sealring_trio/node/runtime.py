"""Runs one `Node` on trio: its sockets, its clock, its engine, and the effects it asks for.

The node decides everything and does nothing; the runtime does everything and decides nothing.
Whatever happens (bytes, a dial that came up, a word of the engine, a deadline, a request) is told
to the node, and then `_settle` carries out what the node wants, in order, until it wants no more,
and flushes every link. All of this happens in the event loop and without an `await`, so the node is
never entered twice, and a step that came in on a link is with the engine before anything else runs.

A collective's bytes do not pass the node: its tunnel links are given to a thread (`tunnels`).

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
from functools import partial
from typing import Final, TypeVarTuple

import attrs
import trio
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from sealring_model.engine.threads import set_switch_interval
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
from sealring_protocol.control.scheduler.requests import Request, RequestDone, RowOpened, TokenOut
from sealring_protocol.diagnosis.why import Facts
from sealring_protocol.errors import LocalProtocolError, SealringError
from sealring_protocol.events import (
    Dial,
    EncapsulationRequested,
    Hangup,
    LinkUp,
    NodeEvent,
    RosterInForce,
    SignatureRequested,
    StoreRoster,
)
from sealring_protocol.link import Link
from sealring_protocol.link_events import LinkClosed
from sealring_protocol.node import Node
from sealring_protocol.security.identity import Signer
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster

from sealring_trio.collective.loopback import Loopback, PrivateLoopback, SharedLoopback
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.engine.supervisor import EngineOwner, Supervisor
from sealring_trio.errors import OperationError, UserError
from sealring_trio.net.connecting import Lookups, accept, dial, open_listeners
from sealring_trio.net.pump import Pump
from sealring_trio.node.request_stream import Stream

log = logging.getLogger("sealring.node")

ACCEPT_ENTROPY: Final = 32
"""Random bytes that the handshake of an accepted connection takes."""

DIAL_ENTROPY: Final = 96
"""The same, of a dialed one."""

TIMINGS_KEPT: Final = 4096
"""Step timings kept for the quantiles of `status`."""

STORE_SECONDS: Final = 10.0
"""Seconds that a roster may take to be stored."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that all links together may take to close."""

Ts = TypeVarTuple("Ts")

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
        keep: Callable[[SignedRoster], None],
    ) -> None:
        """Run *node*: sign with *signer*, keep an *engine* alive, listen at *listen* (host, port),
        and have *keep* put an adopted roster on disk (in a thread; it may raise `OSError`)."""
        self.node = node
        self.engine = engine(self)
        self.timings: deque[StepTiming] = deque(maxlen=TIMINGS_KEPT)
        self.weights_read = 0  # bytes, since the present engine began
        self._sent = 0  # bytes over the links, but tunnels, since the node began
        self._received = 0
        self.engine_heard = -math.inf  # when the engine last said something
        self.watchers: list[Callable[[StepTiming | RowOpened], None]] = []  # told of all of them
        self.roster_changed = trio.Event()  # set, and another made, when another is in force
        self.informed = trio.Event()  # the engine has said once what its model is
        self._quiet = trio.Event()
        self._stopping = False
        self._signer = signer
        self._listen = listen
        self._keep = keep
        self._pumps: dict[int, Pump] = {}
        self._tunnels = Tunnels(self)
        self._streams: dict[int, Stream] = {}
        self._nursery: trio.Nursery | None = None
        self._armed = math.inf
        self._rearm = trio.Event()

    # ------------------------------------------------------------------ life

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until cancelled; then its links are closed in good order.

        Raises `OperationError` when it cannot listen.
        """
        set_switch_interval()
        trio.socket.set_custom_hostname_resolver(Lookups())
        listeners = await open_listeners(*self._listen)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for listener in listeners:
                nursery.start_soon(accept, listener, self._accepted)
            nursery.start_soon(self.engine.run)
            nursery.start_soon(self._keep_time)
            self._enter(self.node.start)
            task_status.started()

    def stop(self) -> None:
        """Close every link with CLOSE; see `links_closed`."""
        self._stopping = True
        self._enter(self.node.stop)

    async def links_closed(self) -> None:
        """Wait until no link is left, for a moment at most."""
        with trio.move_on_after(STOP_TIMEOUT):
            while self._pumps or self._tunnels.open:
                self._quiet = trio.Event()
                await self._quiet.wait()

    # -------------------------------------------------------------- requests

    def submit(self, request: Request, known: Callable[[int], None]) -> tuple[int, Stream]:
        """Give *request* to the head; its uid, and what comes of it. *known* is told the uid before
        anything does.

        Raises `LocalProtocolError` when it can never be done.
        """
        uid = self.node.submit(request, trio.current_time())
        stream = self._streams[uid] = Stream()
        known(uid)
        self._settle()
        return uid, stream

    def finish(self, uid: int) -> None:
        """The text of *uid* has reached its end before its tokens have."""
        if self.node.rank == 0:  # as in `cancel`
            self._enter(self.node.finish, uid)

    def cancel(self, uid: int) -> None:
        """End *uid* wherever it is; whoever still reads its stream is told."""
        if self.node.rank == 0:  # a roster may have made another the head, which ended all
            self._enter(self.node.cancel, uid)

    def forget(self, uid: int) -> None:
        """Nobody reads the stream of *uid* any more; it ends if it has not."""
        self._streams.pop(uid, None)
        self.cancel(uid)

    async def install(self, roster: bytes) -> None:
        """Have the signed *roster*, which the owner gives, in force here; peers get it from here.

        Raises `UserError` if it may not be, `OperationError` if it cannot be stored.
        """
        changed = self.roster_changed
        try:
            self.node.bring_roster(roster, wall_ms())
        except LocalProtocolError as error:
            serial = self.node.roster.roster.serial
            raise UserError(
                f"this roster cannot replace roster {serial}, which is in force: {error}",
                "Sign one that can: sealring roster renew, or roster sign.",
            ) from None
        self._settle()
        with trio.move_on_after(STORE_SECONDS) as waited:
            await changed.wait()
        if waited.cancelled_caught:
            raise OperationError(
                "the node could not store this roster, and goes on with the one it has",
                "Its log says why (a full disk, say). Put that right, and install it again.",
            )

    # ----------------------------------------------------------------- links

    def _accepted(self, sock: socket.socket, source: str) -> None:
        entropy = secrets.token_bytes(ACCEPT_ENTROPY)
        self._pump(self.node.accepted(source, entropy, trio.current_time(), wall_ms()), sock)

    async def _dial(self, dialed: Dial) -> None:
        try:
            sock = await dial(dialed.address)
        except OperationError as error:
            self._enter(self.node.dial_failed, dialed.link, error.what)
            return
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        self.node.connected(dialed.link, entropy, trio.current_time(), wall_ms())
        self._pump(dialed.link, sock)

    def _pump(self, link: int, sock: socket.socket) -> None:
        pump = self._pumps[link] = Pump(self, link, sock)
        self.spawn(pump.run)
        self._settle()

    def received(self, link: int, data: bytes) -> None:
        """A pump read *data*."""
        self._received += len(data)
        self._enter(self.node.receive_data, link, data)

    def ended(self, link: int) -> None:
        """A pump's stream is over."""
        self._pumps.pop(link, None)
        self._quiet.set()
        self._enter(self.node.receive_eof, link)

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        """See `TunnelOwner.link_over`."""
        self._enter(self.node.link_over, link, end)

    def tunnel_closed(self) -> None:
        """See `TunnelOwner.tunnel_closed`."""
        self._quiet.set()

    def data_to_send(self, link: int) -> bytes | bytearray:
        """What the node has for *link*."""
        data = self.node.data_to_send(link)
        self._sent += len(data)
        return data

    @property
    def bytes_sent(self) -> int:
        """Over all links, since the node began."""
        return self._sent + self._tunnels.sent

    @property
    def bytes_received(self) -> int:
        """The same."""
        return self._received + self._tunnels.received

    def facts(self, draining: str = "") -> Facts:
        """What `obstacles` goes by; *draining* says why no requests are taken."""
        facts = self.node.facts(trio.current_time())
        return attrs.evolve(
            facts, wall_ms=wall_ms(), next_start=self.engine.next_start, draining=draining
        )

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """As `Node.links`."""
        return self.node.links()

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage) -> None:
        """The engine said *message*."""
        self.engine_heard = trio.current_time()
        if isinstance(message, EngineInfo):
            self.informed.set()
        elif isinstance(message, Loaded):
            self.weights_read += message.read
        self._enter(self.node.engine_message, message)

    def engine_starved(self, seconds: float) -> None:
        """The engine process has starved for *seconds* in all."""
        self._enter(self.node.engine_starved, seconds)

    def engine_lost(self, reason: str) -> None:
        """The engine process is gone."""
        self.weights_read = 0
        self.engine_heard = -math.inf
        self._enter(partial(self.node.engine_lost, out_of_memory=self.engine.out_of_memory), reason)

    def meet(self) -> Loopback:
        """See `TunnelOwner.meet`."""
        sockets = self.engine.take_sockets()
        if sockets is None:
            return SharedLoopback(lambda: self.engine.pids)
        return PrivateLoopback(*sockets)

    # --------------------------------------------------------------- effects

    def _enter(self, call: Callable[[*Ts, float], None], *arguments: *Ts) -> None:
        """Enter the node by *call*, which takes *arguments* and the time, and carry out what it
        wants then."""
        call(*arguments, trio.current_time())
        self._settle()

    def _settle(self) -> None:
        """Carry out what the node wants, flush what has bytes, and set the clock."""
        self._carry_out_events()
        while self.node.plan_steps(trio.current_time()):
            self._carry_out_events()
        for link in self.node.links_to_flush():
            if pump := self._pumps.get(link):
                pump.flush()
        deadline = self.node.next_timeout()
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self._rearm.set()

    def _carry_out_events(self) -> None:
        while (event := self.node.next_event()) is not None:
            self._carry_out(event)

    def _carry_out(self, event: NodeEvent) -> None:
        match event:
            case ToEngine(message):
                self.engine.send(message)
            case PrepareCollective() | EndCollective():
                self._tunnels.carry_out(event, self.node)
            case TokenOut(uid) | RequestDone(uid):
                if stream := self._streams.get(uid):
                    stream.put(event)
            case StepTiming() | RowOpened():
                self._watched(event)
            case Note(level, text):
                # While it stops, its own closing of links is no news.
                log.log(logging.DEBUG if self._stopping else _LEVELS[level], "%s", text)
            case RosterInForce():
                self._tunnels.renew(self.node.roster)
                self.roster_changed.set()
                self.roster_changed = trio.Event()
            case RestartEngine(reason, planned):
                self.engine.restart(reason, planned=planned)
            case _:
                self._carry_out_link(event)

    def _carry_out_link(
        self,
        event: Dial | Hangup | LinkUp | EncapsulationRequested | SignatureRequested | StoreRoster,
    ) -> None:
        match event:
            case LinkUp(_, Purpose.TUNNEL, link):
                if error := self._tunnels.up(event, self._pumps.pop(link, None)):
                    self.node.link_over(link, error, trio.current_time())
            case LinkUp(_, _, link, session):
                if pump := self._pumps.get(link):
                    pump.make_room(lambda: session.lacking)
            case Dial():
                self.spawn(self._dial, event)
            case Hangup(link, last):
                if not self._tunnels.hang_up(event) and (pump := self._pumps.get(link)):
                    pump.hang_up(last)
            case EncapsulationRequested(link, key):
                self._encapsulate(link, key)
            case SignatureRequested(link, payload):
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
        try:
            signature = await trio.to_thread.run_sync(self._signer.sign, payload)
        except RuntimeError as error:  # the system has no thread for it
            log.warning("cannot sign for a link: %s", error)
            if pump := self._pumps.get(link):
                pump.hang_up(b"")
        else:
            self._enter(self.node.provide_signature, link, signature)

    async def _store_roster(self, link: int, data: bytes) -> None:
        try:
            await trio.to_thread.run_sync(self._keep, SignedRoster.decode(data))
        except (OSError, UserError, RuntimeError) as error:  # the last where there is no thread
            reason = getattr(error, "strerror", None) or getattr(error, "what", None) or error
            log.warning("cannot keep a newer roster, which a peer brought: %s", reason)
            self._enter(self.node.roster_not_stored, link)
        else:
            self._enter(self.node.roster_stored, link)

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._armed):
                await self._rearm.wait()
            self._rearm = trio.Event()
            self._armed = -math.inf  # awake: nobody needs to wake this task
            deadline = self.node.next_timeout()
            if deadline is not None and trio.current_time() >= deadline:
                self._enter(self.node.handle_timeout)
            deadline = self.node.next_timeout()
            self._armed = math.inf if deadline is None else deadline
