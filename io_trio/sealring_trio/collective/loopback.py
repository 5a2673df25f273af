"""The two ports of 127.0.0.1 on which an engine and the relay of its node connect.

MLX's ring connects to its right neighbour and listens for its left one. Here both are the relay of
its own node: it listens on port *relay*, and connects to the engine on *port*.

If the engine has a network of its own (`PrivateLoopback`, see `namespace`), nobody else can reach
these ports. Otherwise they are on the machine's loopback (`SharedLoopback`), where another local
user may connect first. The node asks the kernel which process has the other end of a connection, so
nobody else gets a byte of the collective. But a local user who takes the relay's place at the
engine's port can keep the collective from coming up.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

import trio

from sealring_trio.collective.ports import ConnectionOwner, made, reserve, taken
from sealring_trio.net.connecting import plain_socket
from sealring_trio.processes.namespace import ENGINE_PORT, LOOPBACK

log = logging.getLogger("sealring.relay")

CONNECT_SECONDS: Final = 60.0
"""How long an engine may take to listen, from when its neighbour connects: it may still be
importing what it needs. The deadline for all of it is the head's, and shorter."""

PAUSE: Final = 0.01
"""Seconds between two looks at whether it does."""


class Loopback(abc.ABC):
    """Both ports: the engine is to listen on *port*, and to connect to *relay*."""

    def __init__(self, port: int, listener: socket.socket) -> None:
        self.port: Final = port
        self.relay: Final = int(listener.getsockname()[1])
        self._listener: Final = trio.socket.from_stdlib_socket(listener)
        self._listens = False

    async def accept(self) -> socket.socket:
        """Wait for the one connection that the engine makes, then stop listening."""
        self._listens = True  # and closes the listener itself
        level = logging.WARNING
        try:
            while True:
                try:
                    connection, _ = await self._listener.accept()
                except OSError as error:
                    log.log(level, "the relay cannot take a connection: %s", error.strerror)
                    await trio.sleep(PAUSE)
                else:
                    sock = plain_socket(connection)
                    if await self._made(sock):
                        return sock
                    log.log(level, "somebody else connected to a collective's relay, in vain")
                    sock.close()
                level = logging.DEBUG  # what happens again and again does not fill the log
        finally:
            self._listener.close()

    async def connect(self) -> socket.socket | None:
        """Connect to the engine. None if it does not accept within `CONNECT_SECONDS`."""
        with trio.move_on_after(CONNECT_SECONDS):
            while True:
                if (sock := await self._try_connect()) is not None:
                    if await self._took(sock):
                        return sock
                    sock.close()
                    return None
                await trio.sleep(PAUSE)
        log.warning("the engine did not listen within %.0f s", CONNECT_SECONDS)
        return None

    @abc.abstractmethod
    async def _try_connect(self) -> socket.socket | None:
        """A connection to the process that listens on the engine's port; None while none does."""

    async def _made(self, sock: socket.socket) -> bool:
        """Whether the engine made *sock*. If cancelled, this closes *sock*."""
        return True

    async def _took(self, sock: socket.socket) -> bool:
        """Whether the engine accepted *sock*. If cancelled, this closes *sock*."""
        return True

    def close(self) -> None:
        """Free both ports; connections stay. The caller cancels `accept` and `connect`, which then
        close what they have."""
        if not self._listens:
            self._listener.close()


class PrivateLoopback(Loopback):
    """The ports in the engine's own network. The engine made both sockets; *caller* connects."""

    def __init__(self, listener: socket.socket, caller: socket.socket) -> None:
        super().__init__(ENGINE_PORT, listener)
        self._caller: Final = caller
        self._called = False

    async def connect(self) -> socket.socket | None:
        """As `Loopback.connect`, once."""
        if self._called:
            return None
        self._called, sock = True, None
        try:
            sock = await super().connect()
        finally:
            if sock is None:
                self._caller.close()
        return sock

    async def _try_connect(self) -> socket.socket | None:
        # A socket whose connecting was refused may try again, and there is no other.
        with contextlib.suppress(OSError):
            caller = trio.socket.from_stdlib_socket(self._caller)
            await caller.connect((LOOPBACK, self.port))
            return self._caller
        return None

    def close(self) -> None:
        """As `Loopback.close`."""
        super().close()
        if not self._called:
            self._caller.close()


class SharedLoopback(Loopback):
    """The ports on the machine's loopback. The engine is the processes *pids*. Raises `OSError` if
    no port is free."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._reserved: Final = reserve(LOOPBACK)
        try:
            listener = socket.create_server((LOOPBACK, 0))
        except OSError:
            self._reserved.close()
            raise
        super().__init__(self._reserved.number, listener)
        self._pids: Final = pids

    async def _try_connect(self) -> socket.socket | None:
        try:
            with trio.socket.socket() as sock:
                await sock.connect((LOOPBACK, self.port))
                return socket.socket(fileno=sock.detach())
        except OSError:
            return None

    async def _made(self, sock: socket.socket) -> bool:
        return await self._look(made, sock) is ConnectionOwner.OURS

    async def _took(self, sock: socket.socket) -> bool:
        doubts = 0
        while doubts < 2:  # the engine may act while the kernel's tables are read
            found = await self._look(taken, sock)
            if found is ConnectionOwner.OURS:
                return True
            doubts = 0 if found is ConnectionOwner.NOBODYS else doubts + 1
            await self._pause(sock)
        log.warning("somebody else has the relay's place at the engine, or the engine's own port")
        return False

    async def _look(
        self, look: Callable[[socket.socket, list[int]], ConnectionOwner], sock: socket.socket
    ) -> ConnectionOwner:
        try:
            return await trio.to_thread.run_sync(look, sock, self._pids())
        except trio.Cancelled:
            sock.close()
            raise
        except RuntimeError as error:  # the system has no thread for it
            log.warning("cannot look whose a connection is: %s", error)
            return ConnectionOwner.ANOTHERS

    async def _pause(self, sock: socket.socket) -> None:
        try:
            await trio.sleep(PAUSE)
        except trio.Cancelled:
            sock.close()
            raise

    def close(self) -> None:
        """As `Loopback.close`."""
        super().close()
        self._reserved.close()
