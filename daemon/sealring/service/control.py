"""The local control socket of a running node: JSON lines, for this machine's user alone.

The socket is in the node's state folder, with mode 0600. Both ends also ask the kernel for the uid
of the other, because a mode can be changed by mistake and a uid cannot be forged. A connection
carries one request, a JSON object on one line. The answer is lines, each an object with an
``event``. A client that disconnects withdraws its request. A fault in answering ends that
connection alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio
from sealring_trio.errors import OperationError, UserError

from sealring.local.control_client import MAX_LINE, check_path, peer_uid

log = logging.getLogger("sealring")

MAX_CLIENTS: Final = 64
"""Connections at once. Any further one is refused. Memory: `MAX_LINE` and a descriptor each."""

REQUEST_SECONDS: Final = 10.0
"""Time that a client has for its line."""

_ACCEPT_PAUSE: Final = 0.1
"""Seconds before the next try when the kernel has no descriptor or memory for a connection."""

Reply = Callable[[dict[str, Any]], Awaitable[None]]
Handler = Callable[[dict[str, Any], Reply], Awaitable[None]]


async def serve_control(
    path: Path, handler: Handler, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen at *path* and give each request to *handler*, until cancelled.

    Raises `UserError` when another node has the socket or it cannot be made.
    """
    check_path(path)
    await _clear(path)
    listener = _listen(path)
    try:
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listener.accept()
                except OSError as error:  # too many open files, say; it may pass
                    log.warning("cannot take a client of the control socket: %s", error.strerror)
                    await trio.sleep(_ACCEPT_PAUSE)
                    continue
                if len(nursery.child_tasks) >= MAX_CLIENTS:
                    _refuse(connection)
                else:
                    nursery.start_soon(_serve_safely, connection, handler)
    finally:
        listener.close()
        _remove(path)


def _listen(path: Path) -> trio.socket.SocketType:
    # Not through trio's socket, whose `bind` takes a thread.
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
    listener.listen(MAX_CLIENTS)
    return trio.socket.from_stdlib_socket(listener)


async def _clear(path: Path) -> None:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            await probe.connect(str(path))
        except FileNotFoundError:
            return
        except OSError:
            _remove(path)  # left behind by a node that was killed
            return
    raise OperationError(
        f"a node with the state folder {path.parent} is already running",
        "Stop it first, or give this one its own folder with the key 'state'.",
    )


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _refuse(connection: trio.socket.SocketType) -> None:
    """Send that there are too many clients, without waiting, and close."""
    full = OperationError(f"this node has {MAX_CLIENTS} clients already", "Try again soon.")
    with connection, contextlib.suppress(OSError):
        os.write(connection.fileno(), json.dumps(_describe(full)).encode() + b"\n")


async def _serve_safely(connection: trio.socket.SocketType, handler: Handler) -> None:
    """Serve one client. An error is logged, and ends this connection alone."""
    try:
        await _serve_one(connection, handler)
    except* Exception:
        log.exception("a client of the control socket could not be answered")


async def _serve_one(connection: trio.socket.SocketType, handler: Handler) -> None:
    stream = trio.SocketStream(connection)
    async with stream:
        if peer_uid(connection.getsockopt) != os.geteuid():
            return
        with contextlib.suppress(trio.BrokenResourceError, _NoRequest):
            try:
                with trio.fail_after(REQUEST_SECONDS):
                    line = await _read_line(stream)
                request = _parse(line)
            except trio.TooSlowError:
                return
            except UserError as error:
                await _send(stream, _describe(error))
            else:
                await _answer(stream, request, handler)


class _NoRequest(Exception):
    """The client left before the end of its line."""


async def _read_line(stream: trio.SocketStream) -> bytes:
    """The request's line. Raises `_NoRequest`, or `UserError` when it is too long."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = await stream.receive_some()
        line += data
        if not data:
            raise _NoRequest
        if len(line) > MAX_LINE:
            raise UserError(
                f"the request is longer than {MAX_LINE >> 20} MiB", "Send a shorter prompt."
            )
    return bytes(line)


def _parse(line: bytes) -> dict[str, Any]:
    """The request in *line*. Raises `UserError`."""
    try:
        request = json.loads(line)
    except RecursionError:  # what it is nested in is the interpreter's stack
        fault = "it is nested too deep"
    except ValueError as error:
        fault = str(error)
    else:
        if isinstance(request, dict):
            return request
        fault = "it is no object"
    raise UserError(
        f"the request cannot be read: {fault}",
        "Send one JSON object on one line, as 'sealring generate' and 'sealring status' do.",
    )


async def _send(stream: trio.SocketStream, line: dict[str, Any]) -> None:
    await stream.send_all(json.dumps(line).encode() + b"\n")


async def _answer(stream: trio.SocketStream, request: dict[str, Any], handler: Handler) -> None:
    async def reply(line: dict[str, Any]) -> None:
        await _send(stream, line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, stream, nursery.cancel_scope)
        with contextlib.suppress(trio.BrokenResourceError):
            try:
                await handler(request, reply)
            except UserError as error:
                await reply(_describe(error))
        nursery.cancel_scope.cancel()


def _describe(error: UserError) -> dict[str, Any]:
    mistake = not isinstance(error, OperationError)
    return {"event": "error", "what": error.what, "advice": error.advice, "mistake": mistake}


async def _watch(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Cancel *scope* when the client goes away."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    scope.cancel()
