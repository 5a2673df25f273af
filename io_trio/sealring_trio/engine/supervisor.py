"""Keeps the engine of one node alive.

MLX can hang, abort, hold the GIL or change the process's limits, and none of that may affect the
links. So the tensors are computed in a child process (`process`), and this module starts another
when one ends. An engine that died, or could not be started (no descriptor, memory or process was
free), is replaced after a pause. The pause doubles while engines die young and unproven. An engine
that was ended on purpose is replaced at once.

`group` does the same for several processes that are one engine.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import socket
from typing import Final, Protocol

import trio
from sealring_protocol.backoff import Backoff
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Step, StepDone

from sealring_trio.engine.process import (
    EngineCommand,
    EngineNotStarted,
    EngineProcess,
    Network,
    new_pair,
    pack,
)
from sealring_trio.processes.namespace import NoNamespace, take_sockets

log = logging.getLogger("sealring.engine")

YOUNG: Final = 120.0
"""Seconds before which an engine that dies has died young."""

PROVEN: Final = 16
"""Steps that it has answered in its life, after which it has not: what killed it is no fault of its
start, and those who wait for it should not pay for others that died before."""

LONGEST_PAUSE: Final = 30.0
"""Seconds before an engine that died is replaced, at most. The pause doubles each time that one
dies young (`Backoff`)."""


class EngineOwner(Protocol):
    """The object that is told what happens to the engine: the runtime."""

    def engine_message(self, message: LocalMessage) -> None:
        """The engine sent *message*."""

    def engine_starved(self, seconds: float) -> None:
        """The engine has starved for *seconds* since its start. Called every `LOOK` seconds."""

    def engine_lost(self, reason: str) -> None:
        """The process has ended, and all that it held is lost."""


class Supervisor(abc.ABC):
    """Keeps an engine alive.

    `run` goes on until it is cancelled. `send` and `restart` may be called at any time. What is
    sent while there is no process is dropped: the owner has been told that the engine was lost,
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
        """Tell the owner how long the engine has starved. Of several processes the longest time
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
