"""The engine process of one node: started, watched, killed and replaced.

Computation lives in a child process, because MLX can hang, abort, hold the interpreter lock or
change the process's limits, and none of that may touch the links. Node and engine speak frames of
kind LOCAL over a socket pair. The end of that stream is the one sign of an engine's death: a
process that dies closes it, and one that only hangs is killed when the node asks for it (its step
deadline passed) or when it has not said who it is within `START_TIMEOUT`.

A new engine follows every dead one, after a pause that grows while engines die young. None is
left behind: the child ends at the end of its stream, the kernel kills it with its parent where it
can (Linux), and a supervisor that ends kills its child first. The child gets its own session, so
that an interrupt from the terminal reaches the node alone, which then ends it in good order.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from typing import Final, Protocol

import attrs
import trio
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_SEALED_BODY

from sealring_trio.wire import Wire

log = logging.getLogger("sealring.engine")

MAX_LOCAL_BODY: Final = MAX_SEALED_BODY + (1 << 20)
"""Body of one local frame: a sealed frame's worth and the token ids that no link carries."""

START_TIMEOUT: Final = 120.0
"""Seconds from the start of an engine to its first message. Imports from a cold disk are slow."""

FIRST_PAUSE: Final = 0.1
"""Seconds before an engine that died is replaced; doubled each time that one dies young."""

EXIT_GRACE: Final = 2.0
"""Seconds that an engine whose stream has ended may take to exit by itself."""

LONGEST_PAUSE: Final = 30.0
"""Seconds that the pause grows to."""


class EngineOwner(Protocol):
    """Who hears of the engine: called from the supervisor's task, never re-entered."""

    def engine_message(self, message: LocalMessage) -> None:
        """A message came in."""

    def engine_lost(self, reason: str) -> None:
        """The process is gone, and with it everything that it held."""


@attrs.frozen
class EngineCommand:
    """How to start an engine: its *module*, and its *arguments* without ``--fd``."""

    module: str
    arguments: tuple[str, ...]

    def start(self, fd: int) -> subprocess.Popen[bytes]:
        """A new process that has *fd* as its socket."""
        # Not through trio's worker threads: the kernel ties the child's life to the thread that
        # made it, and worker threads end when they are idle.
        launcher = (sys.executable, "-m", "sealring_trio.child", self.module)
        return subprocess.Popen(
            [*launcher, "--fd", str(fd), *self.arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            start_new_session=True,
        )


class Engine:
    """The supervised engine of one node.

    `run` keeps one process alive until it is cancelled; `send` and `restart` may be called from
    anywhere in between, also while there is none: what is sent then is lost, as the owner has
    been told of the loss and starts the next one from the beginning.
    """

    def __init__(self, command: EngineCommand, owner: EngineOwner) -> None:
        self._command = command
        self._owner = owner
        self._wire: Wire | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scope = trio.CancelScope()
        self._reason = ""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return None if self._process is None else self._process.pid

    def send(self, message: LocalMessage) -> None:
        """Send *message* to the engine."""
        if self._wire is None:
            return
        parts = encode(message)
        size = sum(len(part) for part in parts)
        try:
            self._wire.send(b"".join([frame_header(FrameKind.LOCAL, size), *parts]))
        except OSError:
            self._scope.cancel()  # it is dead, or dying: how is for `_bury` to say

    def restart(self, reason: str) -> None:
        """Kill the process; another one follows."""
        self._reason = self._reason or reason
        self._scope.cancel()

    async def run(self) -> None:
        """Keep one engine alive."""
        pause = FIRST_PAUSE
        while True:
            started = trio.current_time()
            reason = await self._one_life()
            log.warning("the engine process ended: %s; starting another", reason)
            self._owner.engine_lost(reason)
            self.restarts += 1
            young = trio.current_time() - started < START_TIMEOUT
            pause = min(2 * pause, LONGEST_PAUSE) if young else FIRST_PAUSE
            await trio.sleep(pause)

    async def _one_life(self) -> str:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = self._command.start(theirs.fileno())
        self._process, self._wire = process, Wire(ours, lambda: None)
        self._scope, self._reason = trio.CancelScope(), ""
        try:
            with self._scope:
                await self._converse(self._wire)
        finally:
            self._wire.close()
            self._wire = self._process = None
            status = await _bury(process, EXIT_GRACE if not self._reason else 0.0)
        return self._reason or status

    async def _converse(self, wire: Wire) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, wire)
            await self._read(wire)
            nursery.cancel_scope.cancel()

    async def _write(self, wire: Wire) -> None:
        try:
            await wire.write()
        except OSError:
            self._scope.cancel()

    async def _read(self, wire: Wire) -> None:
        decoder = FrameDecoder({FrameKind.LOCAL: MAX_LOCAL_BODY})
        silent = True
        with trio.move_on_after(START_TIMEOUT) as starting:
            try:
                while data := await wire.receive():
                    decoder.receive_data(data)
                    while not self._reason and (frame := decoder.next_frame()):
                        starting.deadline = float("inf")
                        silent = False
                        self._owner.engine_message(decode_local(frame.body))
            except OSError:
                return
            except RemoteProtocolError as error:
                self._reason = f"it broke the local protocol ({error})"
        if starting.cancelled_caught and silent:
            self._reason = f"it said nothing for {START_TIMEOUT:.0f} s"


async def _bury(process: subprocess.Popen[bytes], grace: float) -> str:
    """Wait for *process*, at most *grace* seconds before it is killed; how it ended."""
    with trio.CancelScope(shield=True):
        try:
            code = await trio.to_thread.run_sync(process.wait, grace)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await trio.to_thread.run_sync(process.wait)
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it exited with code {code}"
