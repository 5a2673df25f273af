"""Runs one `Node` on trio: its clock, its engine, its requests, and the effects it asks for.

The node decides everything and does no I/O; the runtime does the I/O and decides nothing. Whatever
happens (bytes, a dial that succeeded, a message of the engine, a deadline, a request) enters
the node by `enter`. Then `carry_out_and_flush` carries out what the node wants, in order, until it
wants no more, and flushes every link. All of this happens in the event loop and without an `await`,
so the node is never entered twice, and a step that came in on a link is with the engine before
anything else runs.

The link manager in the node decides which links there are. What it asks for (`Dial`, `Hangup`, a
signature) is carried out by `NodeSockets`: each link has a pump, until it turns out to be a tunnel.
A collective's bytes do not pass the node: its tunnel links are given to a thread (`tunnels`).

One task keeps the deadline. The node is asked for its next one after each entry, and the task is
woken only when that is earlier than the one it sleeps for. To a node that runs by `NodeClock`, a
machine that slept is as a process that was stopped.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVarTuple

import attrs
import trio
from sealring_model.machine import set_switch_interval
from sealring_protocol.codec.local_messages import EngineInfo, Group, Loaded, LocalMessage
from sealring_protocol.codec.messages import Bootstrap, CannotServe, FailureKind, Piece
from sealring_protocol.control.effects import (
    EndCollective,
    Level,
    Note,
    PrepareCollective,
    RestartEngine,
    StepChecked,
    StepTiming,
    StepToCheck,
    ToEngine,
)
from sealring_protocol.control.election import Ballot, ElectionState
from sealring_protocol.control.head.epochs import RING_READY
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    RequestDone,
    RowOpened,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.diagnosis import Facts
from sealring_protocol.errors import LocalProtocolError, SealringError
from sealring_protocol.events import (
    CastVote,
    Dial,
    Hangup,
    LinkUp,
    NodeEvent,
    RelayDown,
    RelayEventCame,
    RelayNews,
    RelayUp,
    Requested,
    RosterInForce,
    StoreRoster,
    WeightsAsked,
)
from sealring_protocol.link import EncapsulationRequested, Link, LinkClosed, SignatureRequested
from sealring_protocol.links.link_manager import HEAD_FIRST, HeadFirst
from sealring_protocol.node import Node
from sealring_protocol.security.identity import Signer
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, SignedRoster

from sealring_trio.collective.loopback import Loopback, PrivateLoopback, SharedLoopback
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.engine.supervisor import EngineOwner, Supervisor
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.shared_files import Giving
from sealring_trio.net.connecting import Lookups, accept, dial, open_listeners
from sealring_trio.net.pump import Pump
from sealring_trio.units import wall_ms

if TYPE_CHECKING:
    from sealring_trio.node.drafts import Drafts

log = logging.getLogger("sealring.node")

Event = TokenOut | ScoresOut | RequestDone

AT_ONCE: Final = 16
"""Events that are taken at once. One may take the event loop 0.2 ms: 20 log probabilities, or 128
stop strings."""

Counted = Callable[[int], None]
"""Called with the bytes of what comes of a request, as it comes. It must not raise."""

_EVENT: Final = 200
_LIKELY: Final = 80
"""Bytes of an event, and of each token with its log probability in it."""

TIMINGS_KEPT: Final = 4096
"""Step timings of the present epoch that are kept for `status`."""

STORE_SECONDS: Final = 10.0
"""Seconds that a roster may take to be stored, and an election by hand to be over."""

_LOOK: Final = 0.05  # seconds between two looks at whether a new head knows that it is

ACCEPT_ENTROPY: Final = 32
"""Random bytes that the handshake of an accepted connection takes."""

DIAL_ENTROPY: Final = 96
"""The same, of a dialed one."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that all links together may take to close."""

_CLOCK: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC

LinkEffect = Dial | Hangup | LinkUp | Requested | WeightsAsked | PrepareCollective | EndCollective

Ts = TypeVarTuple("Ts")

_LEVELS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


def _dials_nobody(roster: SignedRoster, head: Member) -> str:
    return "this node dials nobody"


def _serves_nobody(news: RelayNews) -> None:
    """This node has no clients."""


def size_of(events: Iterable[Event]) -> int:
    """About as many bytes as *events* take."""
    size = 0
    for event in events:
        match event:
            case TokenOut(logprobs=None) | RequestDone():
                size += _EVENT
            case TokenOut(logprobs=found) if found is not None:
                size += _EVENT + _LIKELY * (1 + len(found.ids))
            case ScoresOut(scores=scores):
                size += _EVENT + _LIKELY * (len(scores.chosen) + len(scores.ids))
    return size


class Stream:
    """The events of one request: scores of its prompt, its tokens, then its end. *counted* hears of
    the size of each that comes: whoever takes them may be slower than the ring."""

    def __init__(self, counted: Counted | None = None) -> None:
        self._counted = counted
        self._events: deque[Event] = deque()
        self._wake = trio.Event()
        self.done: RequestDone | None = None
        """How the request ended, whether or not anybody takes that."""

    def put(self, event: Event) -> None:
        """Add *event*, and wake the task that waits."""
        if isinstance(event, RequestDone):
            self.done = event
        self._events.append(event)
        if self._counted is not None:
            self._counted(size_of((event,)))
        self._wake.set()

    async def take(self) -> list[Event]:
        """The events since the last call, in order: `AT_ONCE` at most, after others had their turn.
        Waits until there is at least one."""
        if self._events:
            await trio.lowlevel.checkpoint()
        while not self._events:
            self._wake = trio.Event()
            await self._wake.wait()
        return [self._events.popleft() for _ in range(min(AT_ONCE, len(self._events)))]


class NodeClock(trio.abc.Clock):
    """Monotonic seconds that go on while the machine sleeps, which trio's own clock does not count.
    Give it to the `trio.run` that runs a node: a head that has slept through its lease would else
    take it for good when it wakes.

    The kernel's timers do not count that time, so a deadline may be seen late, by no more than was
    left of it when the machine fell asleep.
    """

    def start_clock(self) -> None:
        """The system's clock runs."""

    current_time = staticmethod(partial(time.clock_gettime, _CLOCK))
    """Seconds since the machine began. Any thread may ask."""

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until *deadline*."""
        return deadline - self.current_time()


class Recorder(Protocol):
    """Hears of what passes between a node and its engine, and of steps, as it happens."""

    def given(self, message: LocalMessage) -> None:
        """The engine is given *message*."""

    def came(self, message: LocalMessage) -> None:
        """The engine has sent *message*."""

    def watch(self, event: StepTiming | RowOpened) -> None:
        """The head had a step answered, or a row opened."""


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
        keep_vote: Callable[[bytes, bytes, Ballot], None],
        model: Path,
    ) -> None:
        """Run *node*: sign with *signer*, keep an *engine* alive, listen at *listen* (host, port),
        and have *keep* put an adopted roster on disk, and *keep_vote* a vote: of a cluster, in a
        roster with this digest (in a thread; they may raise `OSError` or `UserError`). Other
        members may have files of the *model*'s folder."""
        self.node = node
        self.engine = engine(self)
        self.timings: deque[StepTiming] = deque(maxlen=TIMINGS_KEPT)
        self.weights_read = 0  # bytes, since the present engine began
        self.accepted = self.rejected = 0  # guessed tokens of the requests that are over
        self.engine_heard: float | None = None  # when the engine last said something
        self.head_fault: Callable[[], str] = str  # what would keep it from serving as the head
        self.giving_way: Callable[[str], AbstractAsyncContextManager[None]] | None = None
        self._gives_way = False  # requests finish before a roster is in force
        self.head_finishing = ""  # what the head does before a roster comes back
        self.hand_over: Callable[[SignedRoster, Member], str] = _dials_nobody
        self.placed: Callable[[Bootstrap], None] | None = None  # hears of each order beforehand
        self.watchers: list[Callable[[StepTiming | RowOpened], None]] = []
        self.recorder: Recorder | None = None  # while somebody profiles this node
        self.checker: Callable[[StepToCheck | StepChecked], None] | None = None  # of an epoch
        self.relayed: Callable[[RelayNews], None] = _serves_nobody  # must not call back
        self.refused = ""  # why the engine can never serve what it was ordered to
        self._trying = False  # the engine has read its weights, and runs them for the first time
        self._sharing = False  # it is to load a share, which it does not run by itself
        self.textless: Callable[[], str] = str  # why the model's tokenizer cannot be used
        self.text_loading: Callable[[], bool] = bool  # the tokenizer is not up yet
        self.not_answering: Callable[[], str] = str  # why, even where all ranks are ready
        self.roster_changed = trio.Event()  # set, and another made, when another is in force
        self.informed = trio.Event()  # the engine has said once what its model is
        self._stopping = False
        self._listen = listen
        self._keep = keep
        self._keep_vote = keep_vote
        self._signer = signer
        self._sockets = NodeSockets(self, signer, model)
        self.drafts: Drafts | None = None  # a draft model, which follows rows
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
                nursery.start_soon(accept, listener, self._sockets.accepted)
            nursery.start_soon(self.engine.run)
            nursery.start_soon(self._keep_time)
            self.enter(self.node.start)
            task_status.started()

    def stand(self, on: bool) -> None:
        """See `Node.stand`."""
        self.enter(self.node.stand, on)

    def stop(self) -> None:
        """Close every link with CLOSE; see `links_closed`."""
        self._stopping = True
        self.enter(self.node.stop)

    async def links_closed(self) -> None:
        """Wait until no link is left, for a moment at most."""
        await self._sockets.wait_closed()

    # -------------------------------------------------------------- requests

    def submit(
        self, request: Request, known: Callable[[int], None], counted: Counted | None = None
    ) -> tuple[int, Stream]:
        """Give *request* to the head; its uid, and what comes of it, whose bytes are *counted*.
        *known* is called with the uid before anything does.

        Raises `LocalProtocolError` when it can never be done. Whatever it raises, nothing of the
        request is left.
        """
        uid = self.node.submit(request, trio.current_time())
        stream = self._streams[uid] = Stream(counted)
        try:
            known(uid)
            if self.drafts is not None:
                self.drafts.begin(uid, request)
            self.carry_out_and_flush()
        except BaseException:
            self.forget(uid)
            raise
        return uid, stream

    def finish(self, uid: int) -> None:
        """The text of *uid* has reached its end before its tokens have."""
        if self.node.rank == 0:  # as in `cancel`
            self.enter(self.node.finish, uid)

    def cancel(self, uid: int) -> None:
        """End *uid* wherever it is; whoever still reads its stream gets its end."""
        if self.node.rank == 0:  # a roster may have made another the head, which ended all
            self.enter(self.node.cancel, uid)

    def give_up(self, uid: int, why: str) -> None:
        """End *uid* as failed, because of *why*."""
        if (stream := self._streams.get(uid)) and stream.done is None:
            stream.put(RequestDone(uid, FinishReason.FAILED, why))
        self.cancel(uid)

    def forget(self, uid: int) -> None:
        """Nobody reads the stream of *uid* any more; it ends if it has not."""
        self.cancel(uid)  # which puts its end on the stream
        self._streams.pop(uid, None)

    def send_relayed(self, rank: int) -> None:
        """Send what `Node.relay` of *rank* has to send, after a call of its methods."""
        self.enter(self.node.relay_flush, rank)

    async def install(self, roster: bytes) -> None:
        """Have the signed *roster*, which the owner gives, in force here; peers get it from here.
        If it makes another member the head, the head has it first, and lets its requests finish.

        Raises `UserError` if it may not be, `OperationError` if it cannot be stored.
        """
        try:
            self.node.bring_roster(roster, trio.current_time(), wall_ms())
        except HeadFirst:
            await self._install_at_head(SignedRoster.decode(roster))
            return
        except LocalProtocolError as error:
            serial = self.node.roster.roster.serial
            raise UserError(
                f"this roster cannot replace roster {serial}, which is in force: {error}",
                "Sign one that can: sealring roster renew, or roster sign.",
            ) from None
        serial = SignedRoster.decode(roster).roster.serial
        self.carry_out_and_flush()
        while self._lacks(serial):  # an election changes the roster in force, too
            with trio.move_on_after(STORE_SECONDS) as look:
                await self.roster_changed.wait()
            if look.cancelled_caught and self._lacks(serial) and not self._gives_way:
                raise OperationError(
                    "the node could not store this roster, and goes on with the one it has",
                    "Its log says why (a full disk, say). Put that right, and install it again.",
                )

    def _lacks(self, serial: int) -> bool:
        """Whether the roster in force is older than that with *serial*."""
        return self.node.roster.roster.serial < serial

    async def _install_at_head(self, roster: SignedRoster) -> None:
        """Hand *roster* to the head, and wait until it has come back from there. Raises
        `UserError`."""
        head = self.node.roster.roster.members[0]
        why = await trio.to_thread.run_sync(self.hand_over, roster, head)
        if why and self._lacks(roster.roster.serial):
            raise UserError(
                f"{HEAD_FIRST}, and {head.name} could not be handed it: {why}",
                f"Install it at {head.name}, which lets its requests finish; all members take it "
                "from there.",
            )
        serial, name = roster.roster.serial, roster.roster.members[0].name
        text = f"{head.name} lets its requests finish: roster {serial} makes {name} the head"
        self.head_finishing = text
        try:
            while self._lacks(serial):
                await self.roster_changed.wait()
        finally:
            self.head_finishing = ""

    # ------------------------------------------------------------ who is head

    async def take(self) -> None:
        """Make this node the head by its own vote alone, and wait until it is.

        Raises `UserError` if it may not be, or sees the head, and `OperationError` if its vote
        could not be stored.
        """
        try:
            await self._elect(self.node.take)
        except LocalProtocolError as error:
            advice = "sealring head says who is the head, and who may be."
            raise UserError(f"nothing has changed: {error}", advice) from None
        if self.node.rank:
            raise OperationError("another machine was elected meanwhile", "See: sealring head.")

    async def move(self, rank: int, *, stops: bool = False) -> None:
        """Have the member of *rank* elected in place of this node, the head, and wait until it
        knows. *stops*: this node stops then (`Node.move`).

        Raises `UserError` if that cannot be, and `OperationError` if it was not elected.
        """
        target = self.node.roster.roster.members[rank]
        try:
            await self._elect(partial(self.node.move, rank, stops=stops))
        except LocalProtocolError as error:
            raise UserError(
                f"the head is not moved to {target.name}: {error}",
                "sealring head says who is the head, and who may be.",
            ) from None
        head = self.node.roster.roster.members[0]
        if head.id != target.id:
            raise OperationError(
                f"{target.name} was not elected, and {head.name} is the head",
                f"The log of {target.name} may say why. Try again.",
            )
        with trio.move_on_after(STORE_SECONDS):  # it has the votes from this node, over a link
            while self.node.election(trio.current_time()).state is not ElectionState.FOLLOWING:  # noqa: ASYNC110  no event is for it
                await trio.sleep(_LOOK)

    def next_head(self) -> int | None:
        """The rank to which this node, the head, can be moved; None if there is none, or this node
        does not lead."""
        linked = {rank for rank, purpose, _ in self.links() if purpose is Purpose.CONTROL}
        if self.node.rank or not self.node.leads(trio.current_time()):
            return None
        return next((rank for rank in self.node.roster.roster.heads if rank in linked), None)

    async def _elect(self, call: Callable[[float], None]) -> None:
        """Wait until what *call* asks of the node has led to another election. Raises
        `OperationError` if it has not, and whatever the node raises."""
        before = self.node.roster.roster
        self.enter(call)
        with trio.move_on_after(STORE_SECONDS):
            while (roster := self.node.roster.roster) is before or (
                roster.digest == before.digest and not roster.mandate.beats(before.mandate)
            ):
                await self.roster_changed.wait()
            return
        raise OperationError(
            "nobody was elected",
            "This node's log says why (a full disk, say), or that too few machines are there: see "
            "sealring head. Then try again.",
        )

    # ------------------------------------------------------------------ state

    @property
    def bytes_sent(self) -> int:
        """Over all links, since the node began."""
        return self._sockets.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The same."""
        return self._sockets.bytes_received

    def facts(self, draining: str = "") -> Facts:
        """What `obstacles` goes by; *draining* says why no requests are taken."""
        facts = self.node.facts(trio.current_time())
        return attrs.evolve(
            facts,
            wall_ms=wall_ms(),
            next_start=self.engine.next_start,
            draining=draining,
            textless="" if self.node.rank else self.textless(),
            text_loading=self.node.rank == 0 and self.text_loading(),
            trying=self._trying,
            engine_heard=self.engine_heard,
        )

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """As `Node.links`."""
        return self.node.links()

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage) -> None:
        """The engine said *message*."""
        self.engine_heard = trio.current_time()
        if self.recorder is not None:
            self.recorder.came(message)
        if isinstance(message, EngineInfo):
            self.informed.set()
        elif isinstance(message, Loaded):
            self.weights_read += message.read
            self._trying = not self._sharing
        elif isinstance(message, CannotServe) and message.kind is FailureKind.UNSERVABLE:
            self.refused = message.reason
        self.enter(self.node.engine_message, message)

    def fetched(self, here: int, size: int) -> None:
        """*here* of the *size* bytes of this rank's tensors are here; 0 of 0: none is to come."""
        self.enter(self.node.fetched, here, size)

    def engine_starved(self, seconds: float) -> None:
        """The engine process has starved for *seconds* in all."""
        self.enter(self.node.engine_starved, seconds)

    def engine_lost(self, reason: str) -> None:
        """The engine process is gone."""
        self.weights_read = 0
        self._trying = self._sharing = False
        self.engine_heard = None
        self.enter(partial(self.node.engine_lost, out_of_memory=self.engine.out_of_memory), reason)

    def meet(self) -> Loopback:
        """See `TunnelOwner.meet`."""
        sockets = self.engine.take_sockets()
        if sockets is None:
            return SharedLoopback(lambda: self.engine.pids)
        return PrivateLoopback(*sockets)

    # --------------------------------------------------------------- effects

    def enter(self, call: Callable[[*Ts, float], None], *arguments: *Ts) -> None:
        """Enter the node by *call*, which takes *arguments* and the time, and carry out what it
        wants then."""
        call(*arguments, trio.current_time())
        self.carry_out_and_flush()

    def carry_out_and_flush(self) -> None:
        """Carry out what the node wants, flush what has bytes, and set the clock."""
        node = self.node
        while True:
            while (event := node.next_event()) is not None:
                self._carry_out(event)
            if not node.plan_steps(trio.current_time()):
                break
        if links := node.links_to_flush():
            self._sockets.flush(links)
        deadline = self.node.next_timeout()
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self._rearm.set()

    def _carry_out(self, event: NodeEvent) -> None:
        match event:
            case ToEngine(message):
                self._to_engine(message)
            case TokenOut() | ScoresOut() | RequestDone():
                self._pass_on(event)
            case StepToCheck() | StepChecked():
                if self.checker is not None:
                    self.checker(event)
            case StepTiming() | RowOpened():
                self._watched(event)
            case Note(level, text):
                self._log(level, text)
            case RosterInForce():
                self._sockets.renew()
                self.roster_changed.set()
                self.roster_changed = trio.Event()
            case RelayUp() | RelayEventCame() | RelayDown():
                self.relayed(event)
            case RestartEngine(reason, planned):
                self.engine.restart(reason, planned=planned)
            case StoreRoster(link, data):
                self.spawn(self._store_roster, link, data)
            case CastVote():
                self.spawn(self._cast_vote, event)
            case _:
                self._sockets.carry_out(event)

    def _log(self, level: Level, text: str) -> None:
        if text.startswith(RING_READY) and (why := self.not_answering()):
            text = f"all ranks are ready{text.removeprefix(RING_READY)}; but {why}"
        # While it stops, its own closing of links is no news.
        log.log(logging.DEBUG if self._stopping else _LEVELS[level], "%s", text)

    def _pass_on(self, event: TokenOut | ScoresOut | RequestDone) -> None:
        if isinstance(event, RequestDone):
            self.accepted += event.accepted
            self.rejected += event.rejected
            if self.drafts is not None:
                self.drafts.over(event.uid)
        elif isinstance(event, TokenOut) and self.drafts is not None:
            self.drafts.token(event.uid, event.position, event.token)
        if stream := self._streams.get(event.uid):
            stream.put(event)

    def _to_engine(self, message: LocalMessage) -> None:
        if self.placed is not None and isinstance(message, Bootstrap):
            self.placed(message)
        if self.recorder is not None:
            self.recorder.given(message)
        if isinstance(message, Group):
            self._sharing = True
        elif isinstance(message, Bootstrap):
            self._trying = False
            self.timings.clear()  # they were of other ranks or layers
        try:
            self.engine.send(message)
        except LocalProtocolError as error:  # one request's, which its lost steps say
            self.engine.restart(f"it could not be sent a {type(message).__name__}: {error}")

    def _watched(self, event: StepTiming | RowOpened) -> None:
        if isinstance(event, StepTiming):
            self.timings.append(event)
        if self.recorder is not None:
            self.recorder.watch(event)
        for watcher in self.watchers:
            watcher(event)

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* until the node stops."""
        if self._nursery is None:
            raise RuntimeError("the runtime does not run")
        self._nursery.start_soon(task, *arguments)

    async def _store_roster(self, link: int, data: bytes) -> None:
        signed = SignedRoster.decode(data)
        try:
            await trio.to_thread.run_sync(self._keep, signed)
        except (OSError, UserError, RuntimeError) as error:  # the last where there is no thread
            log.warning("cannot keep a newer roster: %s", _reason(error))
            self.enter(self.node.roster_not_stored, link)
            return
        current = self.node.roster.roster
        before, after = current.members[0], signed.roster.members[0]
        elected = signed.roster.serial == current.serial
        if self.giving_way is None or self.node.rank or before.id == after.id or elected:
            self.enter(self.node.roster_stored, link)
            return
        self._gives_way = True
        why = f"roster {signed.roster.serial} makes {after.name} the head; ask there"
        async with self.giving_way(why):
            self.enter(self.node.roster_stored, link)
        self._gives_way = False

    async def _cast_vote(self, vote: CastVote) -> None:
        """Store *vote*, then sign it, and give the signature to the node."""
        cluster = self.node.roster.roster.cluster

        def cast() -> bytes:
            self._keep_vote(cluster, vote.digest, vote.ballot)
            return self._signer.sign(vote.payload)

        try:
            signature = await trio.to_thread.run_sync(cast)
        except (OSError, UserError, RuntimeError) as error:  # the last where there is no thread
            log.warning("cannot keep a vote for a head: %s", _reason(error))
            self.enter(self.node.vote_not_cast)
            return
        self.enter(self.node.vote_cast, signature)

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._armed):
                await self._rearm.wait()
            self._rearm = trio.Event()
            self._armed = -math.inf  # awake: nobody needs to wake this task
            deadline = self.node.next_timeout()
            if deadline is not None and trio.current_time() >= deadline:
                self.enter(self.node.handle_timeout)
            deadline = self.node.next_timeout()
            self._armed = math.inf if deadline is None else deadline


def _reason(error: Exception) -> object:
    """Why something could not be kept on disk."""
    return getattr(error, "strerror", None) or getattr(error, "what", None) or error


class NodeSockets:
    """All sockets of the links of *owner*'s node; handshakes are signed with *signer*. Other
    members may have files of the *model*'s folder."""

    def __init__(self, owner: Runtime, signer: Signer, model: Path) -> None:
        self._owner = owner
        self._signer = signer
        self._pumps: dict[int, Pump] = {}
        self._tunnels = Tunnels(self)
        self._giving = Giving(model, owner.spawn, self._give)
        self._sent = 0  # bytes over the links, without tunnels, since the node began
        self._received = 0
        self._closed = trio.Event()  # a socket; replaced by whoever waits for the next

    @property
    def bytes_sent(self) -> int:
        """Over all links, since the node began."""
        return self._sent + self._tunnels.sent

    @property
    def bytes_received(self) -> int:
        """The same."""
        return self._received + self._tunnels.received

    def accepted(self, sock: socket.socket, source: str) -> None:
        """*sock* is a new connection from the host *source*."""
        entropy = secrets.token_bytes(ACCEPT_ENTROPY)
        now = trio.current_time()
        self._pump(self._owner.node.accepted(source, entropy, now, wall_ms()), sock)

    def carry_out(self, event: LinkEffect) -> None:
        """Do what the node wants of its links or of a collective."""
        match event:
            case LinkUp(_, Purpose.TUNNEL, link):
                if error := self._tunnels.up(event, self._pumps.pop(link, None)):
                    self._owner.node.link_over(link, error, trio.current_time())
            case LinkUp(_, _, link, session):
                if pump := self._pumps.get(link):
                    pump.make_room(lambda: session.lacking)
            case Dial():
                self.spawn(self._dial, event)
            case Hangup(link, last):
                self._giving.over(link)
                if not self._tunnels.hang_up(event) and (pump := self._pumps.get(link)):
                    pump.hang_up(last)
            case Requested(link, EncapsulationRequested() as request):
                secret, ciphertext = request.key.encapsulate()
                now = trio.current_time()
                self._owner.node.provide_encapsulation(link, ciphertext, secret, now)
            case Requested(link, SignatureRequested(payload)):
                self.spawn(self._sign, link, payload)
            case WeightsAsked():
                self._giving.asked(event)
            case PrepareCollective() | EndCollective():
                self._tunnels.carry_out(event, self._owner.node)

    def flush(self, links: Iterable[int]) -> None:
        """Send what *links* have to send."""
        for link in links:
            if pump := self._pumps.get(link):
                pump.flush()

    def renew(self) -> None:
        """A newer roster is in force."""
        self._tunnels.renew(self._owner.node.roster)

    async def wait_closed(self) -> None:
        """Wait until no socket is left, for `STOP_TIMEOUT` at most."""
        with trio.move_on_after(STOP_TIMEOUT):
            while self._pumps or self._tunnels.open:
                self._closed = trio.Event()
                await self._closed.wait()

    async def _dial(self, dialed: Dial) -> None:
        try:
            sock = await dial(dialed.address)
        except OperationError as error:
            self._owner.enter(self._owner.node.dial_failed, dialed.link, error.what)
            return
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        self._owner.node.connected(dialed.link, entropy, trio.current_time(), wall_ms())
        self._pump(dialed.link, sock)

    def _pump(self, link: int, sock: socket.socket) -> None:
        pump = self._pumps[link] = Pump(self, link, sock)
        self.spawn(pump.run)
        self._owner.carry_out_and_flush()

    async def _sign(self, link: int, payload: bytes) -> None:
        # In a thread, for a signer may be a slow chip.
        try:
            signature = await trio.to_thread.run_sync(self._signer.sign, payload)
        except RuntimeError as error:  # the system has no thread for it
            log.warning("cannot sign for a link: %s", error)
            if pump := self._pumps.get(link):
                pump.hang_up(b"")
        else:
            self._owner.enter(self._owner.node.provide_signature, link, signature)

    # ------------------------------------------------- for pumps and tunnels

    def received(self, link: int, data: bytes) -> None:
        """See `LinkOwner.received`."""
        self._received += len(data)
        self._owner.enter(self._owner.node.receive_data, link, data)

    def ended(self, link: int) -> None:
        """See `LinkOwner.ended`."""
        self._pumps.pop(link, None)
        self._closed.set()
        self._owner.enter(self._owner.node.receive_eof, link)

    def data_to_send(self, link: int) -> bytes | bytearray:
        """See `LinkOwner.data_to_send`."""
        data = self._owner.node.data_to_send(link)
        self._sent += len(data)
        return data

    async def _give(self, link: int, piece: Piece) -> None:
        """Answer a question for weights on connection *link*, and wait until that has left."""
        self._owner.enter(self._owner.node.give_piece, link, piece)
        if pump := self._pumps.get(link):
            await pump.sent()
        await trio.lowlevel.checkpoint()

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        """See `TunnelOwner.link_over`."""
        self._owner.enter(self._owner.node.link_over, link, end)

    def tunnel_closed(self) -> None:
        """See `TunnelOwner.tunnel_closed`."""
        self._closed.set()

    def meet(self) -> Loopback:
        """See `TunnelOwner.meet`."""
        return self._owner.meet()

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """See `Runtime.spawn`."""
        self._owner.spawn(task, *arguments)
