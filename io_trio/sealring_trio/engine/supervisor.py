"""Keeps the engine of one node alive.

MLX can hang, abort, hold the GIL or change the process's limits, and none of that may affect the
links. So the tensors are computed in a child process (`EngineProcess`), and this module starts
another when one ends. An engine that died, or could not be started (no descriptor, memory or
process was free), is replaced after a pause. The pause doubles while engines die young and
unproven. An engine that was ended on purpose is replaced at once.

`group` does the same for several processes that are one engine.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import logging
import math
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from sealring_model.machine import drop_kernels_after
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Bootstrap,
    CannotServe,
    Epoch,
    FailureKind,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.wire import clip
from sealring_protocol.control.deadlines import AnswerDeadline, Backoff, Starvation, ThreadUse
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_REASON, MAX_SEALED_BODY, MAX_WEIGHT_WAITING
from sealring_protocol.table import Machine, Table

from sealring_trio.net.pump import Wire
from sealring_trio.processes.interpreter import child_environment, run_module, signal_name
from sealring_trio.processes.namespace import NoNamespace, take_sockets

log = logging.getLogger("sealring.engine")

MAX_LOCAL_BODY: Final = MAX_SEALED_BODY + (1 << 20)
"""Body of one local frame: a sealed frame's worth and the token ids that no link carries."""

ROOM: Final = 1 << 22
"""Bytes that the socket is to have room for, where the system allows as much: what it has no room
for goes out later."""

MAX_UNTAKEN: Final = 2 * MAX_WEIGHT_WAITING
"""Bytes that an engine may leave untaken; one that leaves more is ended. The steps and answers that
links may leave waiting (`MAX_WEIGHT_WAITING`) are always fewer. Memory: 128 MiB."""

START_TIMEOUT: Final = 120.0
"""Seconds from the start of an engine to its first message. Imports from a cold disk are slow."""

LOOK: Final = 0.4
"""Seconds between two looks at whether it is stopped; the second that finds it so has it killed."""

EXIT_LOOK: Final = 0.005
"""Seconds between two looks at whether it has exited."""

EXIT_GRACE: Final = 2.0
"""Seconds that an engine whose stream has ended may take to exit by itself."""

YOUNG: Final = 120.0
"""Seconds before which an engine that dies has died young."""

PROVEN: Final = 16
"""Steps that it has answered in its life, after which it has not: what killed it is no fault of its
start, and those who wait for it should not pay for others that died before."""

LONGEST_PAUSE: Final = 30.0
"""Seconds before an engine that died is replaced, at most. The pause doubles each time that one
dies young (`Backoff`)."""


class EngineState(enum.Enum):
    """What a process is doing: SPAWNED until it has sent its first message, READY while it owes no
    answer, BUSY while it owes one, and DEAD once it has ended."""

    SPAWNED = "spawned"
    READY = "ready"
    BUSY = "busy"
    DEAD = "dead"


class EngineEvent(enum.Enum):
    """What moves it: its first word, a question, the answer to the last one, its end."""

    SPOKE = "spoke"
    ASKED = "asked"
    ANSWERED = "answered"
    ENDED = "ended"


ENGINE_TABLE: Final[Table[EngineState, EngineEvent]] = {
    (EngineState.SPAWNED, EngineEvent.SPOKE): EngineState.READY,
    (EngineState.READY, EngineEvent.ASKED): EngineState.BUSY,
    (EngineState.BUSY, EngineEvent.ASKED): EngineState.BUSY,
    (EngineState.BUSY, EngineEvent.ANSWERED): EngineState.READY,
    (EngineState.SPAWNED, EngineEvent.ENDED): EngineState.DEAD,
    (EngineState.READY, EngineEvent.ENDED): EngineState.DEAD,
    (EngineState.BUSY, EngineEvent.ENDED): EngineState.DEAD,
}


class GroupState(enum.Enum):
    """How far the members are in becoming a group: APART until they are to load, LOADING until all
    have loaded, JOINING until all have joined, and JOINED for the rest of their lives. A further
    order for the layers that they hold leaves the state as it is.

    This is the side that orders a collective and waits for all, as the head does for ranks. The
    side that obeys is `control/epoch/engine.py` `JOINING_TABLE`: one rank, its ports and its
    tunnel. A group has neither, and its members are ended instead of leaving.
    """

    APART = "apart"
    LOADING = "loading"
    JOINING = "joining"
    JOINED = "joined"


class GroupEvent(enum.Enum):
    """What moves them: an order to load, all having loaded, all having joined."""

    ORDERED = "ordered"
    LOADED = "loaded"
    GROUPED = "grouped"


GROUP_TABLE: Final[Table[GroupState, GroupEvent]] = {
    (GroupState.APART, GroupEvent.ORDERED): GroupState.LOADING,
    (GroupState.LOADING, GroupEvent.ORDERED): GroupState.LOADING,
    (GroupState.LOADING, GroupEvent.LOADED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.ORDERED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.LOADED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.GROUPED): GroupState.JOINED,
    (GroupState.JOINED, GroupEvent.ORDERED): GroupState.JOINED,
    (GroupState.JOINED, GroupEvent.LOADED): GroupState.JOINED,
}


class EngineNotStarted(Exception):
    """The system could not start a process. It may be able to a moment later."""

    def __init__(self, error: OSError | MemoryError) -> None:
        why = "out of memory"
        if isinstance(error, OSError):
            why = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        super().__init__(f"it could not be started ({why})")


def new_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that are connected. Raises `EngineNotStarted`."""
    try:
        return socket.socketpair()
    except OSError as error:
        raise EngineNotStarted(error) from error


@attrs.frozen
class Network:
    """How an engine leaves the machine's network. *way*: see `launcher`. On the socket *fd* the
    engine hands over its sockets, or namespaces are handed over, *times* in all."""

    way: str
    fd: int
    times: int = 1


@attrs.frozen
class EngineCommand:
    """How to start an engine: its *module*, its *arguments* without ``--fd``, and what its
    environment has beside what it needs of ours. It is *private* if it is to have a network of its
    own, and *alone* if it is to have none. *way* is that in which it gives way to us (`launcher`).
    """

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    private: bool = False
    way: str = "--give-way"
    alone: bool = False

    def start(self, fd: int, network: Network | None = None) -> subprocess.Popen[bytes]:
        """A new process that has *fd* as its socket, in that *network*."""
        # Not through trio's worker threads: the kernel ties the child's life to the thread that
        # made it, and worker threads end when they are idle.
        launcher = run_module("sealring_trio.processes.launcher")
        if self.alone:
            launcher.append("--alone")
        elif network is not None:
            launcher += ["--network", network.way, str(network.fd), str(network.times)]
        return subprocess.Popen(
            [*launcher, self.way, self.module, "--fd", str(fd), *self.arguments],
            stdin=subprocess.DEVNULL,
            env=child_environment(self.environment),
            pass_fds=[fd] if network is None else [fd, network.fd],
            start_new_session=True,
        )


def pack(message: LocalMessage) -> bytes:
    """The frame of *message*."""
    parts = encode(message)
    size = sum(map(len, parts))
    return b"".join([frame_header(FrameKind.LOCAL, size), *parts])


class EngineProcess:
    """One engine process. *heard* is called with each of its messages, *looked* each time that its
    state and processor time have been read. Raises `EngineNotStarted`.

    Node and engine exchange frames of kind LOCAL over a socket pair. The end of that stream is the
    one sign of an engine's death, because a process that dies closes it. An engine that hangs is
    killed: by `end` when a deadline of the node has passed, if it has sent nothing within
    `START_TIMEOUT`, or if the kernel says that it is stopped, which is sooner than any deadline.
    Time in which the engine starves counts towards no deadline (`Starvation`).

    No process is left behind. The child exits at the end of its stream, the kernel kills it with
    its parent (on Linux), and `run` kills it when cancelled. The child has a session of its own, so
    an interrupt from the terminal reaches the node alone, which then ends the child in good order.
    On a busy processor the child gives way to its node (`processes.launcher`).
    """

    def __init__(
        self,
        command: EngineCommand,
        heard: Callable[[LocalMessage], None],
        looked: Callable[[], None],
        network: Network | None = None,
    ) -> None:
        """Start *command*, in *network* if that is given."""
        try:
            ours = self._start(command, network)
        except (OSError, MemoryError) as error:
            raise EngineNotStarted(error) from error
        self._wire = Wire(ours, lambda: None)
        self._wire.make_room()
        self._heard = heard
        self._looked = looked
        self._starts = AnswerDeadline()  # by when it is to say something
        self._starting = trio.CancelScope()
        self.starvation = Starvation()
        self._machine = Machine(ENGINE_TABLE, EngineState.SPAWNED)
        self._asked: tuple[Epoch, int] | None = None
        self._scope = trio.CancelScope()
        self._reason = ""
        self._kills = oom_kills()  # before its time
        self.out_of_memory = False
        """Whether the system killed it for want of memory."""

    def _start(self, command: EngineCommand, network: Network | None) -> socket.socket:
        """Start the process. Returns our end of its socket."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.enter_context(ours)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                with contextlib.suppress(OSError):
                    ours.setsockopt(socket.SOL_SOCKET, option, ROOM)
            with theirs:
                self._process = command.start(theirs.fileno(), network)
            undo.pop_all()
        return ours

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def state(self) -> EngineState:
        """What it is doing."""
        return self._machine.state

    def send(self, message: LocalMessage, data: bytes) -> None:
        """Send *message*; *data* is the packed message, if the caller has it. Dropped once the
        process is to end."""
        if self._reason:
            return
        if self._wire.unsent + len(data) > MAX_UNTAKEN:
            self.end(f"it left {self._wire.unsent >> 20} MiB of what it was sent untaken")
            return
        if isinstance(message, Step | StepDone | Bootstrap):
            self._asked = (message.epoch, 0 if isinstance(message, Bootstrap) else message.n)
            if self._machine.state in (EngineState.READY, EngineState.BUSY):
                self._machine.fire(EngineEvent.ASKED)
        if self._machine.state is not EngineState.DEAD:
            try:
                self._wire.send(data)
            except OSError:
                self._stop()  # it is dead, or dying: how is for `bury` to say

    def end(self, reason: str) -> None:
        """Kill the process. `run` then returns *reason*, or that of an earlier call."""
        self._reason = self._reason or reason
        self._stop()

    def _stop(self) -> None:
        self._scope.cancel()

    async def run(self) -> str:
        """Exchange messages until the process has ended. Returns why it ended."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._look)
                    nursery.start_soon(self._read, nursery.cancel_scope)
        finally:
            self._machine.fire(EngineEvent.ENDED)
            self._wire.close()
            status = await bury(self._process, EXIT_GRACE if not self._reason else 0.0)
            drop_kernels_after(self._process.returncode)
            killed = self._process.returncode == -signal.SIGKILL and not self._reason
            if killed and oom_kills() > self._kills:
                self.out_of_memory = True
                status = "the system killed it, for memory ran out"
        return self._reason or status

    async def _write(self) -> None:
        try:
            await self._wire.write()
        except OSError:
            self._stop()

    async def _look(self) -> None:
        """Every `LOOK` seconds: kill the process if it was stopped both times, and see whether it
        starves."""
        before = False
        while True:
            await trio.sleep(LOOK)
            stopped = False
            # Without a free file descriptor nobody can look; that it is gone is for `_read` to see.
            with contextlib.suppress(psutil.Error, OSError):
                stopped = psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
            if before and stopped:
                self.end("it was stopped, and would have hung whoever waits for it")
            before = stopped
            if usage := read_usage(self.pid):
                self._see(usage)

    def _see(self, usage: ProcessUsage) -> None:
        """Put the deadline for the first message off by the time in which, by *usage*, the process
        has starved."""
        now = trio.current_time()
        more = self.starvation.look(usage.threads, usage.faults, now)
        if self._machine.state is EngineState.SPAWNED and self._starts.deadline is not None:
            self._starts.starved(more, now)
            self._starting.deadline = self._starts.deadline
        self._looked()

    async def _read(self, others: trio.CancelScope) -> None:
        """Take the messages of the process until its stream ends; then cancel the *others*."""
        decoder = FrameDecoder({FrameKind.LOCAL: MAX_LOCAL_BODY})
        self._starts.order(trio.current_time(), START_TIMEOUT)
        with trio.move_on_after(START_TIMEOUT) as self._starting:
            with contextlib.suppress(OSError):
                while data := await self._wire.receive():
                    self._take(decoder, data)
                    if self._machine.state is not EngineState.SPAWNED:
                        self._starting.deadline = math.inf
        if self._starting.cancelled_caught and self._machine.state is EngineState.SPAWNED:
            self._reason = f"it said nothing for {START_TIMEOUT:.0f} s{self._starts.extended}"
        others.cancel()

    def _take(self, decoder: FrameDecoder, data: bytes) -> None:
        """Handle the received *data*."""
        try:
            decoder.receive_data(data)
            while not self._reason and (frame := decoder.next_frame()):
                message = decode_local(frame.body)
                if self._machine.state is EngineState.SPAWNED:
                    self._machine.fire(EngineEvent.SPOKE)
                elif isinstance(message, Step | StepDone | CannotServe | Ready):
                    n = message.n if isinstance(message, Step | StepDone) else 0
                    # Answers come in order, so the one to the latest question is the last.
                    if (message.epoch, n) == self._asked and self.state is EngineState.BUSY:
                        self._machine.fire(EngineEvent.ANSWERED)
                self._heard(message)
        except RemoteProtocolError as error:
            self.end(f"it broke the local protocol ({error})")


@attrs.frozen
class ProcessUsage:
    """How much processor time the *threads* of a process got by id, and how long they waited for
    it; and how often it waited for a page from disk (*faults*)."""

    threads: dict[int, ThreadUse]
    faults: int


def read_usage(pid: int, system: Path = Path("/proc")) -> ProcessUsage | None:
    """What process *pid* has used so far, as *system* says; None where it does not.

    Linux counts both for each thread (``/proc/PID/task/TID/schedstat``); time that a cgroup's quota
    takes away is waiting, too. macOS counts the time in which threads could run only once they
    sleep again, which is too late to be of use.
    """
    process = system / str(pid)
    threads = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in (process / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                ran, waited, _ = (task / "schedstat").read_text().split()
                state = _stat(task)[0]
                threads[int(task.name)] = ThreadUse(
                    int(ran) / 1e9, int(waited) / 1e9, state == "R", state == "D"
                )
        # A kernel that was built or started without these counts says 0 of each. Threads that run
        # would then seem to wait.
        if any(use.cpu for use in threads.values()):
            return ProcessUsage(threads, int(_stat(process)[9]))
    return None


def _stat(process: Path) -> list[str]:
    """The fields of its ``stat`` from the state on; the name before it may hold anything."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def oom_kills() -> int:
    """Processes of this machine that were killed since it began because memory ran out, a control
    group's or its own (Linux; 0 elsewhere)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


async def bury(process: subprocess.Popen[bytes], grace: float) -> str:
    """Wait *grace* seconds for *process* to end, then kill it. Returns how it ended, in words."""
    with trio.CancelScope(shield=True):
        with trio.move_on_after(grace):
            await _ended(process)
        if process.poll() is None:
            process.kill()
        code = await _ended(process)
    if code < 0:
        return f"it was ended by {signal_name(-code)}"
    return f"it exited with code {code}"


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of *process*, once it has ended."""
    # To wait would take a thread, and there may be none.
    while (code := process.poll()) is None:  # noqa: ASYNC110
        await trio.sleep(EXIT_LOOK)
    return code


class EngineOwner(Protocol):
    """The object that hears what happens to the engine: the runtime."""

    def engine_message(self, message: LocalMessage) -> None:
        """The engine sent *message*."""

    def engine_starved(self, seconds: float) -> None:
        """The engine has starved for *seconds* since its start. Called every `LOOK` seconds."""

    def engine_lost(self, reason: str) -> None:
        """The process has ended, and all that it held is lost."""


class Supervisor(abc.ABC):
    """Keeps an engine alive.

    `run` goes on until it is cancelled. `send` and `restart` may be called at any time. What is
    sent while there is no process is dropped: the owner has heard that the engine was lost,
    and begins anew with the next one.
    """

    def __init__(self, owner: EngineOwner) -> None:
        self._owner = owner
        self._planned = False
        self._answered = 0  # steps, in this life
        self.restarts = 0
        """Engines that ended and were replaced, without those replaced on purpose."""
        self.out_of_memory = False
        """Whether the system killed the last one for want of memory."""
        self.lost = ""
        """Why the last one ended or could not be started, until the next has said a word."""
        self.next_start: float | None = None  # on trio's clock, while none runs for a pause

    def _hear(self, message: LocalMessage) -> None:
        """The engine said *message*."""
        self.lost = ""
        if isinstance(message, Step | StepDone) and message.failed is None:
            self._answered += 1
        self._owner.engine_message(message)

    def _looked(self) -> None:
        """Say to the owner how long the engine has starved. Of several processes the longest time
        counts, because all wait for that one."""
        seconds = [process.starvation.seconds for process in self.processes]
        self._owner.engine_starved(max(seconds, default=0.0))

    @property
    @abc.abstractmethod
    def processes(self) -> list[EngineProcess]:
        """The processes that run now."""

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self.processes]

    @property
    def pid(self) -> int | None:
        """The first of them, if there is one."""
        return next(iter(self.pids), None)

    @property
    def state(self) -> str:
        """What the first of them is doing, in a word; "none" if there is none."""
        return next((process.state.value for process in self.processes), "none")

    @abc.abstractmethod
    def send(self, message: LocalMessage) -> None:
        """Send *message* to the engine, if there is one."""

    def restart(self, reason: str, *, planned: bool = False) -> None:
        """Kill the engine for *reason*. Another one is started, at once if that is *planned*."""
        self._planned = planned
        self._end(reason)

    def take_sockets(self) -> tuple[socket.socket, socket.socket] | None:
        """The two sockets, one that listens and one to connect, of an engine that has a network of
        its own; None for an engine in the machine's network. Once for each engine process.

        Raises `NoNamespace` if the engine should have its own network and has none.
        """
        return None

    @abc.abstractmethod
    def _end(self, reason: str) -> None:
        """Kill the processes that run."""

    async def run(self) -> None:
        """Keep one engine alive."""
        backoff = Backoff(LONGEST_PAUSE)
        while True:
            started = trio.current_time()
            self._planned, self._answered, self.out_of_memory = False, 0, False
            try:
                reason = await self._one_life()
            except EngineNotStarted as error:
                reason = str(error)
            self.lost = reason
            if self._planned:
                log.info("a new engine process is started on purpose: %s", reason)
                self._owner.engine_lost(reason)
                continue
            log.warning("the engine process ended: %s; starting another", reason)
            self._owner.engine_lost(reason)
            self.restarts += 1
            young = trio.current_time() - started < YOUNG and self._answered < PROVEN
            if not young:
                backoff.reset()
            self.next_start = trio.current_time() + backoff.next()
            await trio.sleep_until(self.next_start)
            self.next_start = None

    @abc.abstractmethod
    async def _one_life(self) -> str:
        """Start the engine and run it until it has ended. Returns why it ended."""


class NoEngine(Supervisor):
    """In the place of an engine where there is none. *lacking* is what is missing for one; empty
    if the node needs none, as a witness."""

    def __init__(self, lacking: str, owner: EngineOwner) -> None:
        super().__init__(owner)
        self._lacking = lacking

    @property
    def processes(self) -> list[EngineProcess]:
        """None."""
        return []

    def send(self, message: LocalMessage) -> None:
        """See `Supervisor.send`."""

    def _end(self, reason: str) -> None:
        pass

    async def _one_life(self) -> str:
        if self._lacking:  # which is said as by an engine that cannot read its model
            reason = clip(self._lacking, MAX_REASON)
            self._owner.engine_message(CannotServe(NO_EPOCH, FailureKind.UNSERVABLE, reason))
        await trio.sleep_forever()


class Engine(Supervisor):
    """The supervised engine of one node: one process."""

    def __init__(self, command: EngineCommand, owner: EngineOwner) -> None:
        super().__init__(owner)
        self._command = command
        self._process: EngineProcess | None = None
        self._given: socket.socket | None = None  # on which it hands over sockets

    @property
    def processes(self) -> list[EngineProcess]:
        """The one, or none."""
        return [] if self._process is None else [self._process]

    def send(self, message: LocalMessage) -> None:
        """See `Supervisor.send`."""
        if self._process is not None:
            self._process.send(message, pack(message))

    def _end(self, reason: str) -> None:
        if self._process is not None:
            self._process.end(reason)

    def take_sockets(self) -> tuple[socket.socket, socket.socket] | None:
        """See `Supervisor.take_sockets`."""
        if not self._command.private:
            return None
        if self._given is None:
            raise NoNamespace("there is no engine")
        return take_sockets(self._given)

    async def _one_life(self) -> str:
        with contextlib.ExitStack() as stack:
            given = network = None
            if self._command.private:
                given, theirs = (stack.enter_context(sock) for sock in new_pair())
                network = Network("own", theirs.fileno())
            process = EngineProcess(self._command, self._hear, self._looked, network)
            if network is not None:
                theirs.close()
            self._process, self._given = process, given
            try:
                return await process.run()
            finally:
                self.out_of_memory = process.out_of_memory
                self._process = self._given = None
