"""Free TCP ports for processes that will listen on them a little later.

A port that is found and then released may be taken by another process. So a reserved port stays
bound here, without listening, until the reservation is closed. A process of the same user that sets
SO_REUSEPORT, as MLX does, can listen on it meanwhile, and gets every connection. The kernel gives
the port to no process that does not set it, and to no other user.

For processes that do not set SO_REUSEPORT, `free_ports` picks ports below the range from which the
system assigns ports by itself. Nothing holds them until somebody listens. So each process goes
through that range once, from a random port on: it gives out no port twice, and two processes seldom
come to the same port at the same time.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import psutil  # type: ignore[import-untyped]

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
    """A reserved port; `close` ends the reservation."""

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
    """*count* TCP ports on loopback, one or more, that are free now. This process was given none of
    them before, unless it has been given all there are. Raises `OSError` if there are too few."""
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
    (`secrecy`), the sockets of all processes of this user."""
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
