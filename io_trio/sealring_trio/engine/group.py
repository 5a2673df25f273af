"""Several processes on one machine as one engine: ``tp = N`` in the config of a node.

The node sees one engine. Every member gets each message that the node sends, and holds its share of
each weight. Each layer ends with a sum over all members, in an MLX collective that never leaves the
machine (private members share a network that nobody else is in). So the members compute the same
steps. The first member's answers are used, and the others' are compared with them (`Merger`).

The first order to load makes them a group. Each member gets its share and loads it. When all
have loaded, each learns where the others are, and joins within a deadline. MLX's `init` waits
without end and cannot be cancelled, so no member calls it before all can.

If a member fails, ends or answers differently, all are ended and new ones are started. That counts
as one restart. A process joins one group in its life, so an order for other layers replaces the
members, too. An order for the same layers keeps them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Checked,
    FailureKind,
    Pong,
    Progress,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.wire import clip
from sealring_protocol.limits import MAX_REASON, MAX_ROWS, MAX_STEPS_WAITING
from sealring_protocol.table import Machine

from sealring_trio.collective.loopback import Port, reserve
from sealring_trio.engine.supervisor import (
    GROUP_TABLE,
    EngineCommand,
    EngineNotStarted,
    EngineOwner,
    EngineProcess,
    GroupEvent,
    GroupState,
    Network,
    Supervisor,
    new_pair,
    pack,
)

_U64: Final = (1 << 64) - 1

MAX_AHEAD: Final = 2 * MAX_STEPS_WAITING
"""Messages of one lane that a member may be before another: more than a node leaves unanswered.
Memory: of the first member's, whose tensors are kept, up to so many tensors of a step."""

DEVICES: Final = "CUDA_VISIBLE_DEVICES"
LOOPBACK: Final = "127.0.0.1"

GRACE: Final = 1.0
"""Seconds after the deadline of a group at which members that have not joined are killed: time
for each to say itself what was wrong."""


class GroupBroken(Exception):
    """The members cannot go on as one engine. *answer*, if any, is the answer to the oldest step
    that has none."""

    def __init__(self, reason: str, answer: LocalMessage | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


class Merger:
    """Merges the messages of *size* members into those of one engine.

    All members get the same messages in the same order, so all answer in the same order. A message
    is held until every member has sent its own. The answers to a step must be equal: members that
    use the same sums draw the same tokens, and if they do not, none of them can be trusted. The
    tensors, log probabilities, scores and fingerprints of the first member are used. No member may
    be more than `MAX_AHEAD` messages ahead of another.

    Counts of bytes are added up. Of times, the slowest member's counts. Of room, the smallest
    counts, times the number of members, because each needs the same share.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lanes: list[list[deque[LocalMessage]]] = [
            [deque() for _ in range(size)]
            for _ in range(1 + max(lane for lane, _ in _MERGED.values()))
        ]
        # Of a member's state the latest is enough, however long another is busy.
        self._lanes[_MERGED[Pong][0]] = [deque(maxlen=1) for _ in range(size)]

    def add(self, member: int, message: LocalMessage) -> LocalMessage | None:
        """*member* sent *message*. Returns the merged message if it was the last to send it.

        Raises `GroupBroken` when they contradict each other, or one of them has failed.
        """
        if isinstance(message, Logprobs | Scores | RowOver | Checked):
            return None if member else message
        if type(message) not in _MERGED:
            raise GroupBroken(f"an engine does not say {type(message).__name__}")
        number, merge = _MERGED[type(message)]
        lane = self._lanes[number]
        first = not lane[member]
        if isinstance(message, CannotServe):
            text = self._named(member, message.reason)
            raise GroupBroken(text, attrs.evolve(message, reason=_cut(text)) if first else None)
        if isinstance(message, Step | StepDone):
            if message.failed is not None:
                text = self._named(member, message.failed.message)
                failed = attrs.evolve(message.failed, message=_cut(text))
                raise GroupBroken(text, attrs.evolve(message, failed=failed) if first else None)
            if member:
                message = attrs.evolve(message, tensors=())
        most = MAX_ROWS if isinstance(message, RowReady) else MAX_AHEAD
        if len(lane[member]) >= most:
            raise GroupBroken(f"member {member} of {self._size} says more than it was asked")
        lane[member].append(message)
        if not all(lane):
            return None
        all_said = [said.popleft() for said in lane]
        if any(type(other) is not type(all_said[0]) for other in all_said):
            raise GroupBroken("its members answered one question in different ways")
        return merge(all_said)

    def _named(self, member: int, message: str) -> str:
        return f"member {member} of {self._size}: {message}"


def _cut(text: str) -> str:
    return clip(text, MAX_REASON)


def _answer(said: Sequence[Step | StepDone]) -> LocalMessage:
    first = said[0]
    for member, other in enumerate(said):
        if (other.epoch, other.n, other.ids) != (first.epoch, first.n, first.ids):
            raise GroupBroken(f"members 0 and {member} did not answer step {first.n} alike")
    return first


def _ready(said: Sequence[Ready]) -> LocalMessage:
    first = said[0]
    if any(attrs.evolve(m, room=first.room, cost=first.cost) != first for m in said):
        raise GroupBroken("its members did not load the same thing")
    windows = [m.cost.windows for m in said]
    cost = CacheCost(
        _sum(m.cost.fixed for m in said),
        _sum(m.cost.per_token for m in said),
        tuple(
            (same[0][0], _sum(per_token for _, per_token in same))
            for same in zip(*windows, strict=False)
        ),
    )
    return attrs.evolve(first, room=_room([m.room for m in said]), cost=cost)


def _info(said: Sequence[EngineInfo]) -> LocalMessage:
    first = said[0]
    if any(attrs.evolve(m, room=first.room) != first for m in said):
        raise GroupBroken("its members do not find the same model")
    return attrs.evolve(first, room=_room([m.room for m in said]))


def _loaded(said: Sequence[Loaded]) -> LocalMessage:
    read, held = _sum(m.read for m in said), _sum(m.held for m in said)
    return Loaded(read, held, max(m.load_us for m in said))


def _grouped(said: Sequence[Grouped]) -> LocalMessage:
    return Grouped(said[0].size, max(m.sum_us for m in said), max(m.token_us for m in said))


def _pong(said: Sequence[Pong]) -> LocalMessage:
    progress = [m.progress for m in said]
    merged = Progress(
        steps_received=min(p.steps_received for p in progress),
        steps_answered=min(p.steps_answered for p in progress),
        compute_us=max(p.compute_us for p in progress),
        seal_us=max(p.seal_us for p in progress),
        rows=progress[0].rows,
        memory=_sum(p.memory for p in progress),
        cache=_sum(p.cache for p in progress),
    )
    return Pong(said[0].echo, merged)


def _row_ready(said: Sequence[RowReady]) -> LocalMessage:
    first = said[0]
    if any((m.epoch, m.uid) != (first.epoch, first.uid) for m in said):
        raise GroupBroken("its members did not prepare the same row")
    return max(said, key=lambda m: bool(m.reason))


def _room(rooms: list[int]) -> int:
    return _sum([min(rooms)] * len(rooms))


def _sum(counts: Iterable[int]) -> int:
    """All *counts* together, or what a message has room for."""
    return min(sum(counts), _U64)


_MERGED: Final[dict[type, tuple[int, Callable[[Any], LocalMessage]]]] = {
    Step: (0, _answer),
    StepDone: (0, _answer),
    CannotServe: (0, _answer),  # which is merged with nothing
    Ready: (0, _ready),
    EngineInfo: (1, _info),
    Loaded: (2, _loaded),
    Grouped: (3, _grouped),
    Pong: (4, _pong),
    RowReady: (5, _row_ready),
}
"""Of each message its lane, and what merges those of all members. Messages of one lane come in one
order; those of different lanes may overtake each other."""


@attrs.frozen
class GroupSettings:
    """A group of *size* members that sum over *backend* (None: the best that this machine has) and
    have *seconds* to join."""

    size: int
    backend: Backend | None = None
    seconds: float = 20.0


def member_command(command: EngineCommand, member: int, *, devices: str | None) -> EngineCommand:
    """*command* for the member number *member*, with a GPU of its own: the one with that number in
    *devices*, a list as in CUDA_VISIBLE_DEVICES (None: all GPUs)."""
    names = devices.split(",") if devices else list(map(str, range(member + 1)))
    if member >= len(names):
        return command  # there are not enough; the back end says so, if it needs them
    own = {DEVICES: names[member].strip()}
    return attrs.evolve(command, environment={**command.environment, **own})


def choose_backend(wanted: Backend | None, have: int) -> Backend:
    """The back end that the members use: *wanted*, or the best of those whose bit is in *have*.

    Raises `GroupBroken` if *have* lacks it.
    """
    for backend in (wanted,) if wanted else (Backend.NCCL, Backend.RING):
        if have & (1 << backend):
            return backend
    name = wanted.name.lower() if wanted else "collective"
    raise GroupBroken(
        f"this machine's MLX has no {name} back end for a group; leave 'tp' or 'backend' out"
    )


class _GroupLife:
    """The members from their start until all have ended. Each restart makes another one."""

    def __init__(
        self,
        settings: GroupSettings,
        heard: Callable[[LocalMessage], None],
        looked: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._heard = heard
        self._looked = looked
        self._merger = Merger(settings.size)
        self._machine = Machine(GROUP_TABLE, GroupState.APART)
        self.backend = Backend.RING
        self._ports: list[Port] = []
        self._reason = ""
        self._claimed = False  # the node wants it in a collective
        self._holds: tuple[bytes, tuple[int, ...], int] | None = None
        self.planned = False  # it ended for no fault of its own
        self.processes: list[EngineProcess] = []
        self.grouped: Grouped | None = None
        self._joining = trio.Event()
        self._joined = trio.Event()

    async def run(self, commands: list[EngineCommand]) -> str:
        """Start the members and run them until all have ended. Returns why they ended."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_deadline)
                async with trio.open_nursery() as members:
                    try:
                        for process in self._start(commands):
                            member = len(self.processes)
                            self.processes.append(process)
                            members.start_soon(self._run_member, member, process)
                    except EngineNotStarted as error:
                        member = len(self.processes)
                        self.end(f"of member {member} of {self._settings.size}: {error}")
                nursery.cancel_scope.cancel()
        finally:
            self._release_ports()
        return self._reason

    def _start(self, commands: list[EngineCommand]) -> Iterator[EngineProcess]:
        """Start the members one by one. Private members share one network of their own."""
        lead, follow = new_pair()
        with lead, follow:
            for member, command in enumerate(commands):
                network = None
                if command.private and member:
                    network = Network("follow", follow.fileno())
                elif command.private:
                    network = Network("lead", lead.fileno(), len(commands) - 1)
                heard = partial(self._hear, member)
                yield EngineProcess(command, heard, self._looked, network)

    async def _run_member(self, member: int, process: EngineProcess) -> None:
        how = await process.run()
        self.end(f"of member {member} of {self._settings.size}: {how}")

    def _check_splits(self, splits: int) -> None:
        size = self._settings.size
        if not splits:
            raise GroupBroken("mlx-lm cannot share out a model of this class; leave 'tp' out")
        if splits % size:
            raise GroupBroken(
                f"the model's heads cannot be shared out evenly among {size} members; "
                f"give 'tp' a divisor of {splits}"
            )

    async def _keep_deadline(self) -> None:
        await self._joining.wait()
        with trio.move_on_after(self._settings.seconds + GRACE):
            await self._joined.wait()
            return
        self.end(f"its members did not form a group within {self._settings.seconds:g} s")

    def end(self, reason: str) -> None:
        """Kill all members for *reason*."""
        self._reason = self._reason or reason
        for process in self.processes:
            process.end(self._reason)

    def _release_ports(self) -> None:
        for port in self._ports:
            port.close()
        self._ports.clear()

    # -------------------------------------------------------- to the members

    def send(self, message: LocalMessage) -> None:
        """Send *message* to every member."""
        match message:
            case Bootstrap():
                if not self._take(message):
                    return
            case Group():
                self._claimed = True
                return
            case _:
                pass
        data = pack(message)
        for process in self.processes:
            process.send(message, data)

    def _take(self, order: Bootstrap) -> bool:
        """Handle the order to load. False if these members cannot do it: then it is not sent."""
        if self._claimed:
            self._claimed = False
            self._refuse(
                order,
                FailureKind.GROUP,
                f"it is a group of {self._settings.size} processes itself (tp in its config), and "
                "can be a stage of a pipeline alone: use strategy pp",
            )
            return False
        if order.kept and self._machine.state is GroupState.APART:
            self._refuse(order, FailureKind.LEDGER, "its processes are new, and have no caches")
            return False
        holds = (order.model, order.bounds, order.rank)
        match self._machine.state:
            case GroupState.APART:
                self._send_each(self._group)
            case GroupState.JOINING | GroupState.JOINED if holds != self._holds:
                self.planned = True
                self.end("its members are to hold other layers, which takes another group")
                return False
            case _:
                pass
        self._holds = holds
        self._machine.fire(GroupEvent.ORDERED)
        return True

    def _refuse(self, order: Bootstrap, kind: FailureKind, why: str) -> None:
        """Answer that this group cannot do what *order* says."""
        # Later: whoever sends does not expect an answer meanwhile.
        answer = partial(self._answer, CannotServe(order.epoch, kind, why))
        trio.lowlevel.current_trio_token().run_sync_soon(answer)

    def _answer(self, message: LocalMessage) -> None:
        if not self._reason:
            self._heard(message)

    def _send_each(self, make: Callable[[int], Group]) -> None:
        for member, process in enumerate(self.processes):
            message = make(member)
            process.send(message, pack(message))

    def _group(self, member: int, hosts: tuple[tuple[str, int], ...] = ()) -> Group:
        deadline = round(self._settings.seconds * 1000)
        return Group(self.backend, member, self._settings.size, deadline, hosts)

    def _join(self) -> None:
        """All members have loaded: say to each where the others are."""
        ring = self.backend is Backend.RING
        try:
            for _ in range(self._settings.size if ring else 1):
                self._ports.append(reserve(LOOPBACK))
        except OSError as error:
            raise GroupBroken(f"no port for its members is free ({error.strerror})") from None
        hosts = [(LOOPBACK, port.number) for port in self._ports]
        if not ring:  # the first one coordinates; the others are reached through it
            hosts *= self._settings.size
        self._send_each(partial(self._group, hosts=tuple(hosts)))
        self._joining.set()

    # ------------------------------------------------------ from the members

    def _hear(self, member: int, message: LocalMessage) -> None:
        if self._reason:
            return
        try:
            merged = self._merger.add(member, message)
            if merged is not None:
                self._said(merged)
        except GroupBroken as broken:
            if broken.answer is not None:
                self._heard(broken.answer)
            self.end(str(broken))

    def _said(self, message: LocalMessage) -> None:
        match message:
            case EngineInfo():
                self._check_splits(message.splits)
                self.backend = choose_backend(self._settings.backend, message.backends)
                # It is a collective: it cannot be a member of another.
                message = attrs.evolve(message, splits=0, backends=0)
            case Loaded():
                if self._machine.state is GroupState.LOADING:
                    self._join()
                self._machine.fire(GroupEvent.LOADED)
            case Grouped():
                self._machine.fire(GroupEvent.GROUPED)
                self.grouped = message
                self._joined.set()
                self._release_ports()
                return  # the node has not asked for a group
            case _:
                pass
        self._heard(message)


class EngineGroup(Supervisor):
    """The supervised engine of one node: several processes."""

    def __init__(self, command: EngineCommand, owner: EngineOwner, settings: GroupSettings) -> None:
        super().__init__(owner)
        self.settings = settings
        self._commands = [
            member_command(command, member, devices=os.environ.get(DEVICES))
            for member in range(settings.size)
        ]
        self._life: _GroupLife | None = None

    @property
    def processes(self) -> list[EngineProcess]:
        """The processes of the members; empty between two lives."""
        return self._life.processes if self._life else []

    @property
    def grouped(self) -> tuple[Backend, Grouped] | None:
        """The back end of the group and how long its sums take; None until it has formed."""
        life = self._life
        return (life.backend, life.grouped) if life and life.grouped else None

    def send(self, message: LocalMessage) -> None:
        """See `Supervisor.send`."""
        if self._life is not None:
            self._life.send(message)

    def _end(self, reason: str) -> None:
        if self._life is not None:
            self._life.end(reason)

    async def _one_life(self) -> str:
        life = self._life = _GroupLife(self.settings, self._hear, self._looked)
        try:
            reason = await life.run(self._commands)
            self._planned = self._planned or life.planned
            self.out_of_memory = any(process.out_of_memory for process in life.processes)
            return reason
        finally:
            self._life = None
