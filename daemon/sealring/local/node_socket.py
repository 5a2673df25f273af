"""The Unix socket at which a node's owner asks it: both ends of it, and who may be at the other.

- Both ends ask the kernel for the user id of the other (`peer_uid`).
- The node marks its folder as that of a running node (`claimed`) and listens (`listening`);
  `service.owner_api` answers.
- A command asks (`ask`, `answer_of`).

A client is one request and the lines of its answer, and a person waits for it. So h11 on a blocking
socket does: an HTTP client takes a seventh of what the whole command takes to import.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import h11
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import make_private_folder

MAX_CLIENTS: Final = 64
"""Connections at once. A further one takes the place of one that waits for a request; if all are
being answered, it is refused."""

NODE: Final = "/node/"
"""How paths begin that are for the node itself; the others are the API's."""

MAX_PATH: Final = 100
"""Most bytes of a socket's path: below what every supported system allows (104 on macOS)."""

ANSWER_SECONDS: Final = 30.0
"""Seconds within which a node answers what takes no work. One that is stopped or hangs never
does."""

LOOK_SECONDS: Final = 12.0
"""Seconds without a line of a long answer after which the node is asked whether it is there."""

STATUS_SECONDS: Final = 3.0
"""Seconds that it has to say so. A person waits."""

MAX_LINE: Final = 64 << 20
"""Bytes of one line of an answer, at most."""

_MOMENT: Final = 0.001
_INVALID: Final = "invalid_request_error"  # as the API says it
_PIECE: Final = 64 << 10
_CLAIM: Final = "running.lock"

_UCRED: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_XUCRED: Final = struct.Struct("=II68x")  # struct xucred: version, uid; what getpeereid reads


class NobodyThere(OperationError):
    """No node runs here, nor starts."""


class GetOption(Protocol):
    """A socket's ``getsockopt``, of either kind of socket."""

    def __call__(self, level: int, option: int, size: int, /) -> bytes:
        """The option's bytes."""


def peer_uid(getsockopt: GetOption) -> int:
    """The user id of the process at the other end of a local socket, as the kernel has it."""
    if sys.platform == "linux":
        data = getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(data)[1])
    return int(_XUCRED.unpack(getsockopt(0, 1, _XUCRED.size))[1])


def check_path(path: Path) -> None:
    """Raise `UserError` when no socket can be called *path*."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise UserError(
            f"the path of the control socket is longer than {MAX_PATH} bytes: {path}",
            "Choose a shorter folder with the key 'state' of the config.",
        )


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listener at *path*, until the block ends. Raises `UserError` when another node has the
    socket or it cannot be made."""
    check_path(path)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot make the control socket {path}: {error.strerror}",
            "Choose another folder with the key 'state' of the config.",
        ) from None
    finally:
        os.umask(before)
    try:
        with listener:
            listener.listen(MAX_CLIENTS)
            listener.setblocking(False)
            yield listener
    finally:
        path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove a socket that a node which was killed has left at *path*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass  # as many wait there as may
        except FileNotFoundError:
            return
        except OSError:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # a folder, say
                raise UserError(
                    f"{path} is in the way of the control socket: {error.strerror}",
                    "Remove it, or choose another folder with the key 'state' of the config.",
                ) from None
            return
    raise OperationError(
        f"a node with the state folder {path.parent} is already running",
        "Stop it first, or give this one its own folder with the key 'state'.",
    )


def ask(
    path: Path,
    name: str,
    fields: Mapping[str, Any] = {},
    seconds: float | None = None,
    notice: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Send the request *name* with *fields* to the node at *path*; the lines of its answer, as they
    come, each within *seconds* if it is given. While none come, *notice* hears of a node that
    answers nothing at all.

    Raises `OperationError` when no node answers there, goes away, or fails at the request, and
    `UserError` when the request is a mistake.
    """
    with _connect(path, seconds or ANSWER_SECONDS) as connection:
        http = h11.Connection(h11.CLIENT)
        try:
            with contextlib.suppress(ConnectionError):  # a node that refuses says so, and closes
                connection.sendall(_request(http, name, fields))
            for line in _lines(http, connection, seconds, lambda: _look(path, notice)):
                yield _event(path, line)
        except (ConnectionError, h11.RemoteProtocolError):
            raise OperationError(
                "the node went away in the middle of its answer", "See the node's log."
            ) from None
        except TimeoutError:
            raise _silent(path, "does not answer") from None


def answer_of(
    path: Path,
    name: str,
    fields: Mapping[str, Any] = {},
    seconds: float | None = ANSWER_SECONDS,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """What the node at *path* answers to the request *name* in the end: the last line, without its
    kind. *report* hears what the answer waits for. Raises as `ask`."""
    done: dict[str, Any] = {}
    for done in ask(path, name, fields, seconds, report):
        if done.get("event") == "waiting":
            report(done["text"])
    return {key: value for key, value in done.items() if key != "event"}


def _request(http: h11.Connection, name: str, fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    headers = [
        ("host", "localhost"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
    ]
    request = h11.Request(method="POST", target=f"{NODE}{name}", headers=headers)
    parts = (request, h11.Data(data=body), h11.EndOfMessage())
    return b"".join(http.send(part) or b"" for part in parts)


def _lines(
    http: h11.Connection,
    connection: socket.socket,
    seconds: float | None,
    look: Callable[[], None],
) -> Iterator[bytes]:
    """The lines that come, each within *seconds* if it is given. *look* is called every
    `LOOK_SECONDS` without any, if they may take that long."""
    patience = LOOK_SECONDS if seconds is None else seconds
    begun, since = bytearray(), time.monotonic()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            try:
                # At least something, as 0 would not wait at all.
                connection.settimeout(max(_MOMENT, since + patience - time.monotonic()))
                http.receive_data(connection.recv(_PIECE))
            except TimeoutError:
                if seconds is not None:
                    raise
                look()
                since = time.monotonic()
        elif isinstance(event, h11.Data):
            first, *others = event.data.split(b"\n")
            begun += first
            for other in others:
                yield bytes(begun)
                begun, since = bytearray(other), time.monotonic()
            if len(begun) > MAX_LINE:
                raise h11.RemoteProtocolError("a line without an end")
        if seconds is not None and time.monotonic() > since + seconds:
            raise TimeoutError
    if begun:  # an error of the server itself, which ends no line
        yield bytes(begun)


def _event(path: Path, line: bytes) -> dict[str, Any]:
    """What a *line* of the node at *path* says. Raises the error that it answered: its own, or one
    in the API's form; and `OperationError` if it is no line of a node."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    match event:
        case {"error": {"what": str(what), "advice": str(advice), "exit_code": code}}:
            kind = OperationError if code == OperationError.exit_code else UserError
            raise kind(what, advice)
        case {"error": {"type": str(kind), "message": str(message)}}:
            if kind == _INVALID:
                raise UserError(message, "Ask for less.")
            raise OperationError(message, "The node's log may say more. Ask again.")
        case dict() if "error" not in event:
            return event
    raise OperationError(
        f"what answers at {path} is no node of this version of sealring",
        "Stop what listens there, and start the node again.",
    )


def _look(path: Path, notice: Callable[[str], None]) -> None:
    """Report to *notice* if the node at *path* does not answer what takes no work."""
    try:
        answer_of(path, "status", seconds=STATUS_SECONDS)
    except OperationError as error:
        notice(f"{error.what}: it may be stopped")


def _connect(path: Path, seconds: float = ANSWER_SECONDS) -> socket.socket:
    check_path(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With settimeout() a client would not wait at all where as many wait as may.
    whole = int(seconds)
    limit = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connection.connect(str(path))
        connection.settimeout(seconds)
    except BlockingIOError:  # as many wait there as may
        connection.close()
        raise _silent(path, "takes no more clients") from None
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        if is_claimed(path.parent):
            raise OperationError(
                f"the node at {path} is starting", "Ask again soon. Its log says what it waits for."
            ) from None
        raise NobodyThere(
            f"no node is running here: nothing listens at {path}",
            "Start it: sealring up CONFIG",
        ) from None
    except OSError as error:
        connection.close()
        raise OperationError(
            f"cannot reach the node at {path}: {error.strerror}", "It must be your own node."
        ) from None
    if peer_uid(connection.getsockopt) != os.geteuid():
        connection.close()
        raise OperationError(
            f"the control socket {path} belongs to another user", "Do not trust what is there."
        )
    return connection


@contextlib.contextmanager
def claimed(state: Path) -> Iterator[None]:
    """Mark the folder *state* as that of a node that starts or runs, until the block ends: its
    clients can see then that there is one, before it listens. Raises `UserError`."""
    make_private_folder(state)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another node has it, or the file system has no locks
            file = stack.enter_context(open(state / _CLAIM, "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_claimed(state: Path) -> bool:
    """Whether a node with the folder *state* starts or runs."""
    try:
        with open(state / _CLAIM, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _silent(path: Path, does: str) -> OperationError:
    return OperationError(
        f"the node at {path} {does}",
        "Its process is stopped or hangs, or its machine is overloaded. Its log may say more.",
    )
