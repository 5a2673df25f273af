"""TCP ports that are found for a process which will listen there a little later.

To find a free port and let go of it is a race: whoever comes first has it. A reserved port stays
bound here, without listening, until the reservation is closed. A process of the same user that
sets SO_REUSEPORT, as MLX does, can listen there meanwhile, and gets every connection; the kernel
gives the port to nobody else, and to no other user at all.

Where the process sets no such thing, a port is taken from those which a system gives to nobody
that asks for any port, and a random one: only another such search could have it first.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Iterator
from typing import Final

import attrs
import psutil  # type: ignore[import-untyped]

_FIRST: Final = 10_240
_LAST: Final = 32_767  # Linux gives ports from 32768 to whoever dials, macOS from 49152
_TRIES: Final = 1000


@attrs.frozen
class Port:
    """A reserved port; `close` gives it back."""

    number: int
    _socket: socket.socket

    def close(self) -> None:
        """Let go of it; who listens there goes on."""
        self._socket.close()


def reserve(host: str) -> Port:
    """A port of *host*, an address of this machine (empty: of all its addresses).

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
    """TCP ports on loopback that nobody has now. Raises `OSError` when there are none."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            sock = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", _FIRST + secrets.randbelow(_LAST + 1 - _FIRST)))
                found.append(int(sock.getsockname()[1]))
    raise OSError(errno.EADDRINUSE, "no TCP port is free on loopback")


def belongs_to(connection: socket.socket, pids: list[int]) -> bool:
    """Whether the other end of *connection*, on this machine, is of one of the processes *pids*.

    One that has not been accepted yet is of the process that listens. Takes a millisecond or more:
    it reads the kernel's tables.
    """
    try:
        near, far = connection.getsockname(), connection.getpeername()
    except OSError:
        return False
    return any(
        local == far and (remote == near or (not remote and status == psutil.CONN_LISTEN))
        for pid in pids
        for local, remote, status in _connections(pid)
    )


def _connections(pid: int) -> Iterator[tuple[tuple[str, int], tuple[str, int] | tuple[()], str]]:
    """Local and remote address, and state, of each TCP socket of process *pid*."""
    with contextlib.suppress(psutil.Error, OSError):
        for found in psutil.Process(pid).net_connections("tcp"):
            yield tuple(found.laddr), tuple(found.raddr), found.status
