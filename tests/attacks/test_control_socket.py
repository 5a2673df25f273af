"""Hostile requests on the control socket: each is its client's mistake, and nothing else."""

from __future__ import annotations

import math
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.local.control_client import ask
from sealring.service import control
from sealring.service.control import Reply, serve_control
from sealring.service.requests import read_request
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError, UserError


async def echo(request: dict[str, Any], reply: Reply) -> None:
    await reply({"event": "done", "keys": len(request)})


async def raw(path: Path, data: bytes) -> bytes:
    """What the socket at *path* answers to *data*, up to its end."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        await client.connect(str(path))
        stream = trio.SocketStream(client)
        try:
            await stream.send_all(data)
            return b"".join([chunk async for chunk in stream])
        except trio.BrokenResourceError:
            return b""


HOSTILE = {
    "deep lists": b"[" * 200_000 + b"\n",
    "deep objects": b'{"a":' * 200_000 + b"\n",
    "deep within a request": b'{"do":"status","x":' + b"[" * 200_000 + b"\n",
    "a huge number": b'{"do":' + b"1" * 100_000 + b"}\n",
    "no UTF-8": b'{"do":"\xff\xfe"}\n',
    "no JSON": b"GET / HTTP/1.1\r\n",
    "no object": b"[1, 2]\n",
    "nothing": b"\n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_what_is_no_request_is_that_clients_mistake(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, echo)
        with trio.fail_after(20):
            answer = await raw(path, data)
            assert b'"mistake": true' in answer
            assert b"the request cannot be read" in answer
            assert b'"keys": 1' in await raw(path, b'{"do": "x"}\n')  # it lives
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", math.nan),
        ("min_p", math.nan),
        ("min_p", 2),
        ("prompt", "\ud800"),
    ],
)
def test_a_number_that_no_row_may_have_is_that_clients_mistake(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        read_request({"do": "generate", "prompt": "x", name: value})


async def test_a_fault_in_answering_ends_that_connection_alone(tmp_path: Path) -> None:
    async def fail(request: dict[str, Any], reply: Reply) -> None:
        if "fail" in request:
            raise LocalProtocolError("what nobody thought of")
        await echo(request, reply)

    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, fail)
        with trio.fail_after(20):
            assert await raw(path, b'{"fail": 1}\n') == b""
            assert b'"keys": 1' in await raw(path, b'{"do": "x"}\n')
        nursery.cancel_scope.cancel()


async def test_a_request_that_is_too_long_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    request = {"do": "generate", "prompt": "a" * (2 * control.MAX_LINE)}
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, echo)
        with trio.fail_after(20), pytest.raises(UserError, match="is longer than 4 MiB"):
            await trio.to_thread.run_sync(partial(list, ask(path, request)))
        nursery.cancel_scope.cancel()


async def test_a_client_beyond_the_last_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, echo)
        with ExitStack() as idle:
            for _ in range(control.MAX_CLIENTS):
                client = idle.enter_context(trio.socket.socket(socket.AF_UNIX))
                await client.connect(str(path))
            with pytest.raises(OperationError, match="64 clients already"):
                await trio.to_thread.run_sync(partial(list, ask(path, {"do": "x"})))
        nursery.cancel_scope.cancel()


async def test_clients_that_say_nothing_are_few_and_not_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "s"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, echo)
        idle = [trio.socket.socket(socket.AF_UNIX) for _ in range(control.MAX_CLIENTS + 20)]
        for client in idle:
            await client.connect(str(path))
        for refused in idle[control.MAX_CLIENTS :]:
            assert b"has 64 clients already" in await refused.recv(1000)
        for client in idle[: control.MAX_CLIENTS]:
            assert await client.recv(1) == b""
        assert trio.current_time() < 2 * control.REQUEST_SECONDS
        await trio.testing.wait_all_tasks_blocked()  # their places are free
        assert b'"keys": 1' in await raw(path, b'{"do": "x"}\n')
        for client in idle:
            client.close()
        nursery.cancel_scope.cancel()
