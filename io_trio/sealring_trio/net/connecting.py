"""How TCP connections between nodes begin: listening, accepting, dialing."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import trio

from sealring_trio.errors import OperationError
from sealring_trio.units import format_address, parse_address

log = logging.getLogger("sealring.node")

ACCEPT_PAUSE: Final = 0.1
"""Seconds to wait when no connection can be accepted (out of file descriptors, say)."""

REPEAT_SECONDS: Final = 60.0
"""Seconds between two log lines that say so."""

_GONE: Final = {errno.ECONNABORTED, errno.EPROTO}
"""The connection to accept was reset before it could be: the next one is not to wait for it."""

LOOKUPS: Final = 64
"""Names that are looked up at a time; each may take the system half a minute."""

DIAL_TIMEOUT: Final = 5.0
"""Seconds that a name may take to be looked up, and then a connection to come up."""


_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "Stop what listens there (this node, or another program), or take another "
    "address. ",
    errno.EADDRNOTAVAIL: "This machine has no such address (0.0.0.0 is all that it has). ",
    errno.EACCES: "This user may not listen at that port; ports from 1024 on are free. ",
    errno.EPERM: "This user may not listen at that port; ports from 1024 on are free. ",
}


def cannot_listen(
    error: OSError | OverflowError, host: str, port: int, change: str, purpose: str = ""
) -> OperationError:
    """What to raise when this machine does not listen at *host* and *port*, for *purpose*, because
    of *error*, which is an `OverflowError` for a port above 65,535. *change*, a sentence, says
    where another address is given."""
    advice, why = "", getattr(error, "strerror", None) or error
    if isinstance(error, OSError):
        advice = _LISTEN_ADVICE.get(error.errno or 0, "")
    at = f"{format_address(host, port)} {purpose}".rstrip()
    return OperationError(f"cannot listen at {at}: {why}", f"{advice}{change}")


def check_port(host: str, port: int, change: str, purpose: str = "") -> None:
    """Raise the error of `cannot_listen` if nothing could listen there now."""
    try:
        family, *_ = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
    except (OSError, OverflowError) as error:
        raise cannot_listen(error, host, port, change, purpose) from None


class Lookups(trio.abc.HostnameResolver):
    """Looks names up in threads of its own. A name server that never answers can block all of these
    threads, but none of those in which a node signs."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(LOOKUPS)

    async def getaddrinfo(self, *asked: Any) -> Any:
        """As `socket.getaddrinfo`."""
        return await self._run(socket.getaddrinfo, *asked)

    async def getnameinfo(self, *asked: Any) -> Any:
        """As `socket.getnameinfo`."""
        return await self._run(socket.getnameinfo, *asked)

    async def _run(self, call: Callable[..., Any], *asked: Any) -> Any:
        # A thread that nobody waits for any more still counts until the system gives up.
        return await trio.to_thread.run_sync(
            call, *asked, abandon_on_cancel=True, limiter=self._threads
        )


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen at *host* (empty: everywhere) and *port*. Raises `OperationError`."""
    try:
        return list(await trio.open_tcp_listeners(port, host=host))
    except OSError as error:
        change = (
            "Change 'listen' in the config; where the port changes, also what the roster says: "
            "sealring machines address."
        )
        raise cannot_listen(error, host, port, change) from None


async def accept(
    listener: trio.SocketListener, accepted: Callable[[socket.socket, str], None]
) -> None:
    """Call *accepted* with each new connection and the host that it comes from, until cancelled."""
    quiet_until = -math.inf
    async with listener:
        while True:
            try:
                connection, address = await listener.socket.accept()
            except OSError as error:
                if error.errno in _GONE:
                    await trio.lowlevel.checkpoint()
                    continue
                if trio.current_time() >= quiet_until:
                    quiet_until = trio.current_time() + REPEAT_SECONDS
                    log.warning("cannot accept connections: %s", error.strerror)
                await trio.sleep(ACCEPT_PAUSE)
                continue
            sock = plain_socket(connection)
            if address:
                accepted(sock, address[0])
            else:  # macOS: the peer has reset it already
                sock.close()


def plain_socket(connection: trio.socket.SocketType) -> socket.socket:
    """The socket of *connection*. Its kind is given, for macOS knows none of a socket that was
    reset."""
    kind = connection.family, connection.type, connection.proto
    return socket.socket(*kind, fileno=connection.detach())


async def dial(address: str) -> socket.socket:
    """A connection to *address*, ``host:port``. Raises `OperationError` with the reason alone."""
    late = "the name was not resolved"
    try:
        host, port = parse_address(address)
        with trio.fail_after(DIAL_TIMEOUT):
            await trio.socket.getaddrinfo(host, port)  # to see what takes the time
        late = "no answer"
        with trio.fail_after(DIAL_TIMEOUT):  # the name is looked up again, which takes as long
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise OperationError(f"{late} within {DIAL_TIMEOUT:.0f} s", "") from None
    except RuntimeError:  # the system has no thread for it
        raise OperationError("this system gives no thread to look it up", "") from None
    except (OSError, ValueError) as error:
        raise OperationError(_reason(error), "") from None
    return plain_socket(stream.socket)


def _reason(error: OSError | ValueError) -> str:
    """What the system said: trio's own words for several tries have it below them."""
    tries = error.__cause__
    if isinstance(tries, BaseExceptionGroup):
        said = {_reason(each) for each in tries.exceptions if isinstance(each, OSError)}
        return ", ".join(sorted(said)) or str(error)
    if isinstance(tries, OSError):
        return _reason(tries)
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or not error.errno:
        return getattr(error, "strerror", None) or str(error)
    return os.strerror(error.errno)  # without the address, which trio adds
