"""Runs one `Node` on trio: its sockets, its clock, its engine, and the effects it asks for.

The node decides everything and does nothing; the runtime does everything and decides nothing.
Whatever happens (bytes, a dial that came up, a word of the engine, a deadline, a request) is told
to the node, and then `_settle` carries out what the node wants, in order, until it wants no more,
and flushes every link. All of this runs without an `await`, and with the lock of the guard, so the
node is never entered twice.

What comes on links and from the engine is read by threads (`threaded_socket` says why), and the
node is entered there: a step goes from a link to the engine, and what the engine made of it to the
next link, without the event loop. What only the event loop can do is left for it, and holds up what
the node wants after that; but not what merely tells somebody something.

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
from sealring_protocol.codec.messages import Backend
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
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import (
    Dial,
    EncapsulationRequested,
    Hangup,
    LinkUp,
    NodeEvent,
    RosterInForce,
    SignatureRequested,
    StoreRoster,
    TunnelLost,
    TunnelMessage,
)
from sealring_protocol.link import Link
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
from sealring_trio.net.threaded_socket import SPARE, Guard
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

_TOLD: Final = (TokenOut, RequestDone, RowOpened, StepTiming, Note)
"""What the node wants somebody to be told, and nothing else."""

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
    """One node at work. `run` until cancelled; the other methods are for its own event loop, but
    those that say so. Whoever looks at the node or its links needs the lock of `guard`."""

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
        self.guard = Guard()
        self.engine = engine(self)
        self.timings: deque[StepTiming] = deque(maxlen=TIMINGS_KEPT)
        self.weights_read = 0  # bytes, since the present engine began
        self.bytes_sent = 0  # over the links, since the node began
        self.bytes_received = 0
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
        self._held = 0  # what is left for the event loop and is more than to tell somebody
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
        set_switch_interval()
        trio.socket.set_custom_hostname_resolver(Lookups())
        listeners = await open_listeners(*self._listen)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for listener in listeners:
                nursery.start_soon(accept, listener, self._accepted)
            nursery.start_soon(self.engine.run)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self.guard.keep_up, self._settle)
            self._enter(self.node.start)
            task_status.started()

    def stop(self) -> None:
        """Close every link with CLOSE; see `links_closed`."""
        self._stopping = True
        self._enter(self.node.stop)

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
            uid = self.node.submit(request, self.guard.now())
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
        with self.guard.lock:
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
        with self.guard.lock:
            entropy = secrets.token_bytes(ACCEPT_ENTROPY)
            self._pump(self.node.accepted(source, entropy, self.guard.now(), wall_ms()), sock)

    async def _dial(self, dialed: Dial) -> None:
        try:
            sock = await dial(dialed.address)
        except OperationError as error:
            self._enter(self.node.dial_failed, dialed.link, error.what)
            return
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        with self.guard.lock:
            self.node.connected(dialed.link, entropy, self.guard.now(), wall_ms())
            self._pump(dialed.link, sock)

    def _pump(self, link: int, sock: socket.socket) -> None:
        pump = self._pumps[link] = Pump(self, link, sock)
        self.spawn(pump.run)
        self._settle()

    def received(self, link: int, data: bytes) -> None:
        """A pump read *data*; in any thread."""
        with self.guard.lock:
            self.bytes_received += len(data)
            self._enter(self.node.receive_data, link, data)

    def ended(self, link: int) -> None:
        """A pump's stream is over."""
        self._pumps.pop(link, None)
        self._quiet.set()
        with self.guard.lock:
            self._tunnels.forget(link)
        self._enter(self.node.receive_eof, link)

    def data_to_send(self, link: int) -> bytes | bytearray:
        """What the node has for *link*, in any thread that has the lock."""
        data = self.node.data_to_send(link)
        self.bytes_sent += len(data)
        return data

    def facts(self, draining: str = "") -> Facts:
        """What `obstacles` goes by; *draining* says why no requests are taken."""
        with self.guard.lock:
            facts = self.node.facts(self.guard.now())
        return attrs.evolve(
            facts, wall_ms=wall_ms(), next_start=self.engine.next_start, draining=draining
        )

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """As `Node.links`."""
        with self.guard.lock:
            return self.node.links()

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage) -> None:
        """The engine said *message*; in any thread."""
        self.engine_heard = self.guard.now()
        if isinstance(message, EngineInfo):
            self.guard.soon(self.informed.set)
            # It computes with CUDA, and fast, as only there is NCCL.
            self.guard.eager = SPARE and bool(message.backends >> Backend.NCCL & 1)
            set_switch_interval(short=self.guard.eager)
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
        """As `relay.RelayOwner.meet`."""
        sockets = self.engine.take_sockets()
        if sockets is None:
            return SharedLoopback(lambda: self.engine.pids)
        return PrivateLoopback(*sockets)

    # --------------------------------------------------------------- effects

    def _enter(self, call: Callable[[*Ts, float], None], *arguments: *Ts) -> None:
        """Enter the node by *call*, which takes *arguments* and the time, and carry out what it
        wants then."""
        with self.guard.lock:
            call(*arguments, self.guard.now())
            self._settle()

    def _settle(self) -> None:
        """Carry out what the node wants, flush what has bytes, and set the clock; in any thread
        that has the lock."""
        here = self.guard.at_home
        if here:
            self.guard.catch_up()
        self._carry_out_events(here=here)
        while self.node.plan_steps(self.guard.now()):
            self._carry_out_events(here=here)
        for link in self.node.links_to_flush():
            if pump := self._pumps.get(link):
                pump.flush()
        deadline = self.node.next_timeout()
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self.guard.soon(self._rearm.set)

    def _carry_out_events(self, *, here: bool) -> None:
        """Carry out what the node wants: *here*, or in part in the event loop."""
        while (event := self.node.next_event()) is not None:
            if here or (isinstance(event, ToEngine | RestartEngine) and not self._held):
                self._carry_out(event)
            elif isinstance(event, _TOLD):
                self.guard.later(partial(self._carry_out, event))
            else:
                self._held += 1
                self.guard.later(partial(self._carry_out_held, event))

    def _carry_out_held(self, event: NodeEvent) -> None:
        self._held -= 1
        self._carry_out(event)

    def _carry_out(self, event: NodeEvent) -> None:
        match event:
            case ToEngine(message):
                self.engine.send(message)
            case TunnelMessage() | TunnelLost() | PrepareCollective() | EndCollective():
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
            case LinkUp(_, purpose, link, session):
                if pump := self._pumps.get(link):
                    if purpose is Purpose.TUNNEL:
                        self._tunnels.up(event, pump)
                    else:
                        eager = purpose is Purpose.STEP
                        pump.hand_over(
                            partial(self.received, link), lambda: session.lacking, eager=eager
                        )
            case Dial():
                self.spawn(self._dial, event)
            case Hangup(link, last):
                if pump := self._pumps.get(link):
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
        self.node.provide_encapsulation(link, ciphertext, secret, self.guard.now())

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
            with self.guard.lock:
                self._rearm = trio.Event()
                self._armed = -math.inf  # awake: nobody needs to wake this task
                deadline = self.node.next_timeout()
                if deadline is not None and self.guard.now() >= deadline:
                    self._enter(self.node.handle_timeout)
                deadline = self.node.next_timeout()
                self._armed = math.inf if deadline is None else deadline
