"""The local control socket of a running node: JSON lines, for this machine's user alone.

The socket lives in the node's state folder with mode 0600, and both ends also ask the kernel who
the other is: a file's mode can be changed by mistake, and the peer's uid cannot be pretended. A
connection carries one request, a JSON object on one line, and then lines of the answer: objects
with an ``event``. A client that goes away has withdrawn its request.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from sealring_trio.errors import OperationError, UserError
from sealring_trio.local_socket import MAX_LINE, check_path, peer_uid

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
    listener = await _listen(path)
    try:
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                connection, _ = await listener.accept()
                nursery.start_soon(_serve_one, connection, handler)
    finally:
        listener.close()
        _remove(path)


async def _listen(path: Path) -> trio.socket.SocketType:
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        await listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot make the control socket {path}: {error.strerror}",
            "Choose another folder with the key 'state' of the config.",
        ) from None
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


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


async def _serve_one(connection: trio.socket.SocketType, handler: Handler) -> None:
    stream = trio.SocketStream(connection)
    async with stream:
        if peer_uid(connection.getsockopt) != os.geteuid():
            return
        try:
            request = json.loads(await _read_line(stream))
            if isinstance(request, dict):
                await _answer(stream, request, handler)
        except (ValueError, trio.BrokenResourceError):
            return  # no request, or the client has gone


async def _read_line(stream: trio.SocketStream) -> bytes:
    """The request's line. Raises `ValueError` when it does not end, or is too long."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = await stream.receive_some()
        line += data
        if not data or len(line) > MAX_LINE:
            raise ValueError("no request")
    return bytes(line)


async def _answer(stream: trio.SocketStream, request: dict[str, Any], handler: Handler) -> None:
    async def reply(line: dict[str, Any]) -> None:
        await stream.send_all(json.dumps(line).encode() + b"\n")

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
