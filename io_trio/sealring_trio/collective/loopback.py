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
import enum
import errno
import itertools
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import psutil  # type: ignore[import-untyped]
import trio

from sealring_trio.net.connecting import plain_socket
from sealring_trio.processes.namespace import ENGINE_PORT, LOOPBACK

log = logging.getLogger("sealring.relay")

CONNECT_SECONDS: Final = 60.0
"""How long an engine may take to listen, from when its neighbour connects: it may still be
importing what it needs. The deadline for all of it is the head's, and shorter."""

PAUSE: Final = 0.01
"""Seconds between two looks at whether it does."""

_FIRST: Final = 10_240
_LAST: Final = 32_767  # Linux gives ports from 32768 to whoever dials, macOS from 49152

_PORTS: Final = range(_FIRST, _LAST + 1)
_START: Final = secrets.randbelow(len(_PORTS))
_candidates: Final = itertools.cycle([*_PORTS[_START:], *_PORTS[:_START]])
"""The ports that `free_ports` tries next."""

_LISTEN: Final = 0x0A
"""The state of a socket that listens, as Linux numbers them."""


@attrs.frozen
class Port:
    """A reserved port for a process that will listen on it a little later; `close` ends that.

    A port that is found and then released may be taken by another process. So it stays bound here,
    without listening. A process of the same user that sets SO_REUSEPORT, as MLX does, can listen on
    it meanwhile, and gets every connection. The kernel gives the port to no process that does not
    set it, and to no other user.
    """

    number: int
    _socket: socket.socket

    def close(self) -> None:
        """End the reservation. A process that listens on the port goes on."""
        self._socket.close()


def reserve(host: str) -> Port:
    """Reserve a port of *host*, an address of this machine (empty: all its addresses).

    Raises `OSError`.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, 0))
    except OSError:
        sock.close()
        raise
    return Port(int(sock.getsockname()[1]), sock)


def free_ports(count: int) -> list[int]:
    """*count* TCP ports on loopback, one or more, that are free now, for processes that do not set
    SO_REUSEPORT. Raises `OSError` if there are too few.

    They are below the range from which the system assigns ports by itself, and nothing holds them
    until somebody listens. So each process goes through that range once, from a random port on: it
    gives out no port twice, and two processes seldom come to the same port at the same time.
    """
    found: list[int] = []
    for port in itertools.islice(_candidates, len(_PORTS)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(errno.EADDRINUSE, "no TCP port is free on loopback")


class ConnectionOwner(enum.Enum):
    """Which process has the other end of a connection."""

    OURS = "a process of ours has it"
    NOBODYS = "nobody has it yet, and a process of ours listens"
    ANOTHERS = "somebody else has it, or what ours should have"


def made(connection: socket.socket, pids: list[int]) -> ConnectionOwner:
    """Whether one of the processes *pids* of this machine made *connection*. Takes a millisecond or
    more, because it reads the kernel's tables."""
    try:
        near, far = connection.getsockname(), connection.getpeername()
    except OSError:
        return ConnectionOwner.ANOTHERS
    found = any(
        (local, remote) == (far, near) for pid in pids for local, remote, _ in _connections(pid)
    )
    return ConnectionOwner.OURS if found else ConnectionOwner.ANOTHERS


def taken(connection: socket.socket, pids: list[int]) -> ConnectionOwner:
    """Whether one of the processes *pids* has accepted *connection*, made to a port that accepts
    one connection. The answer may be wrong while a process is just accepting: then look again."""
    try:
        near, far = connection.getsockname(), connection.getpeername()
    except OSError:
        return ConnectionOwner.ANOTHERS
    there = {
        remote: status
        for pid in pids
        for local, remote, status in _connections(pid)
        if local == far
    }
    if near in there:
        return ConnectionOwner.OURS
    waits = list(there.values()) == [psutil.CONN_LISTEN]
    return ConnectionOwner.NOBODYS if waits else ConnectionOwner.ANOTHERS


Connection = tuple[tuple[str, int], tuple[str, int] | tuple[()], str]
"""Local and remote address, and state."""


def _connections(pid: int) -> Iterator[Connection]:
    """The TCP sockets of process *pid*. If it hides them from all but root, as engines do
    (`launcher`), the sockets of all processes of this user."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.AccessDenied:
        yield from _of_this_user()
    except (psutil.Error, OSError):
        return
    else:
        for one in found:
            yield tuple(one.laddr), tuple(one.raddr), one.status


def _of_this_user() -> Iterator[Connection]:
    """The TCP sockets over IPv4 that processes of this user have (Linux)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            if int(user) == os.geteuid() and int(inode):  # 0: nobody has taken it yet
                listens = int(state, 16) == _LISTEN
                status = psutil.CONN_LISTEN if listens else psutil.CONN_ESTABLISHED
                yield _address(local), () if listens else _address(remote), status


def _address(text: str) -> tuple[str, int]:
    """An address as Linux writes it: a number in the machine's byte order, and the port."""
    number, port = text.split(":")
    return socket.inet_ntoa(int(number, 16).to_bytes(4, sys.byteorder)), int(port, 16)


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
