"""One engine process: its start, its messages, its end.

Node and engine exchange frames of kind LOCAL over a socket pair. The end of that stream is the one
sign of an engine's death, because a process that dies closes it. An engine that hangs is killed: by
`end` when a deadline of the node has passed, if it has sent nothing within `START_TIMEOUT`, or if
the kernel says that it is stopped, which is sooner than any deadline. Time in which the engine
starves counts towards no deadline (`starvation`).

No process is left behind. The child exits at the end of its stream, the kernel kills it with its
parent (on Linux), and `EngineProcess.run` kills it when cancelled. The child has a session of its
own, so an interrupt from the terminal reaches the node alone, which then ends the child in good
order. On a busy processor the child gives way to its node (`processes.priority`).
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from sealring_model.loading.kernel_cache import drop_kernels_after
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Bootstrap, CannotServe, Epoch, Ready, Step, StepDone
from sealring_protocol.control.epoch.deadlines import Deadline
from sealring_protocol.control.epoch.starvation import Starvation
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_SEALED_BODY, MAX_WEIGHT_WAITING
from sealring_protocol.table import Machine

from sealring_trio.engine.states import ENGINE_TABLE, EngineEvent, EngineState
from sealring_trio.net.wire import Wire
from sealring_trio.processes.interpreter import child_environment, run_module, signal_name
from sealring_trio.processes.secrecy import oom_kills
from sealring_trio.processes.usage import Usage, read_usage

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
    size = sum(len(part) for part in parts)
    return b"".join([frame_header(FrameKind.LOCAL, size), *parts])


class EngineProcess:
    """One engine process. *heard* is called with each of its messages, *looked* each time that its
    state and processor time have been read. Raises `EngineNotStarted`."""

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
        self._starts = Deadline()  # by when it is to say something
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
            if self.state in (EngineState.READY, EngineState.BUSY):
                self._machine.fire(EngineEvent.ASKED)
        if self.state is not EngineState.DEAD:
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
                    await self._read()
                    nursery.cancel_scope.cancel()
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

    def _see(self, usage: Usage) -> None:
        """Put the deadline for the first message off by the time in which, by *usage*, the process
        has starved."""
        now = trio.current_time()
        more = self.starvation.look(usage.threads, usage.faults, now)
        if self.state is EngineState.SPAWNED and self._starts.at is not None:
            self._starts.starved(more, now)
            self._starting.deadline = self._starts.at
        self._looked()

    async def _read(self) -> None:
        decoder = FrameDecoder({FrameKind.LOCAL: MAX_LOCAL_BODY})
        self._starts.set(trio.current_time(), START_TIMEOUT)
        with trio.move_on_after(START_TIMEOUT) as self._starting:
            with contextlib.suppress(OSError):
                while data := await self._wire.receive():
                    self._take(decoder, data)
                    if self.state is not EngineState.SPAWNED:
                        self._starting.deadline = math.inf
        if self._starting.cancelled_caught and self.state is EngineState.SPAWNED:
            self._reason = f"it said nothing for {START_TIMEOUT:.0f} s{self._starts.extended}"

    def _take(self, decoder: FrameDecoder, data: bytes) -> None:
        """Handle the received *data*."""
        try:
            decoder.receive_data(data)
            while not self._reason and (frame := decoder.next_frame()):
                self._hear(decode_local(frame.body))
        except RemoteProtocolError as error:
            self.end(f"it broke the local protocol ({error})")

    def _hear(self, message: LocalMessage) -> None:
        if self.state is EngineState.SPAWNED:
            self._machine.fire(EngineEvent.SPOKE)
        elif isinstance(message, Step | StepDone | CannotServe | Ready):
            answered = (message.epoch, message.n if isinstance(message, Step | StepDone) else 0)
            # Answers come in order, so the one to the latest question is the last.
            if answered == self._asked and self.state is EngineState.BUSY:
                self._machine.fire(EngineEvent.ANSWERED)
        self._heard(message)


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
