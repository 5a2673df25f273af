"""Hostile requests at a node's Unix socket: each is its client's mistake, and nothing else."""

from __future__ import annotations

import json
import math
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pydantic
import pytest
import trio
from sealring.http import bodies
from sealring.http.http1 import HEADER_SECONDS
from sealring.local import node_socket
from sealring.local.node_socket import ask
from sealring.service.owner_api import OwnerApi
from sealring.service.requests import GenerateFields, UseFields, read_fields
from sealring.service.verification import Reply, VerifyFields
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError, UserError

from tests.io_trio.test_control import connected, posted, serving


class AnyFields(pydantic.BaseModel):
    """Whatever there is."""


async def echo(name: str, body: bytes, reply: Reply) -> None:
    if name == "fail":
        raise LocalProtocolError("what nobody thought of")
    read_fields(AnyFields, body, "status")
    await reply({"event": "done", "bytes": len(body)})


ECHO = OwnerApi(echo, lambda: None)


async def raw(path: Path, data: bytes) -> bytes:
    """What the socket at *path* answers to *data*, up to its end."""
    with await connected(path) as client:
        stream = trio.SocketStream(client)
        try:
            await stream.send_all(data)
            await stream.send_eof()
            return b"".join([chunk async for chunk in stream])
        except trio.BrokenResourceError:
            return b""


async def lives(path: Path) -> None:
    """The next client is answered."""
    with await connected(path) as client:
        await client.send(posted("x"))
        assert b'"bytes": 2' in await client.recv(1000)


HOSTILE = {
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep within a request": b'{"x":' + b"[" * 200_000,
    "a huge number": b'{"x":' + b"1" * 100_000 + b"}x",
    "no UTF-8": b'{"x":"\xff\xfe"}',
    "no JSON": b"GET / HTTP/1.1\r\n",
    "no object": b"[1, 2]",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_what_is_no_request_is_that_clients_mistake(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with trio.fail_after(20):
            with await connected(path) as client:
                await trio.SocketStream(client).send_all(posted("x", data))
                answer = await client.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"the request cannot be read" in answer
            await lives(path)


async def test_what_is_no_http_is_that_clients_mistake(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with trio.fail_after(20):
            with await connected(path) as client:
                await client.send(b'{"do": "status"}\r\n\r\n')
                assert (await client.recv(1000)).startswith(b"HTTP/1.1 400 ")
            await lives(path)


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
        ("prompt", 1),
    ],
)
def test_a_number_that_no_row_may_have_is_that_clients_mistake(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        read_fields(GenerateFields, json.dumps({"prompt": "x", name: value}).encode(), "generate")


@pytest.mark.parametrize("seconds", [-1, 0, math.nan])
def test_a_time_that_cannot_pass_is_refused_before_the_node_changes(seconds: float) -> None:
    body = json.dumps({"model": "tiny", "seconds": seconds}).encode()
    with pytest.raises(UserError, match="seconds"):
        read_fields(UseFields, body, "model use")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (GenerateFields, '{"prompt": "x", "guesses": [%s]}'),
        (VerifyFields, '{"rows": [{"tokens": 1, "prompt": [%s]}]}'),
    ],
)
def test_the_first_wrong_value_of_a_list_ends_its_check(
    kind: type[pydantic.BaseModel], body: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate_json(body % ",".join(['""'] * 1000))
    assert caught.value.error_count() == 1


def test_fields_beyond_number_are_refused_before_each_is_an_error() -> None:
    known = '{"prompt":"a:b"'
    unknown = "".join(f',"{n}":1' for n in range(999))
    with pytest.raises(UserError, match="0: Extra inputs"):
        read_fields(GenerateFields, f"{known}{unknown}}}".encode(), "generate")
    with pytest.raises(UserError, match="it has 1,001 fields, and 1,000 are the most"):
        read_fields(GenerateFields, f'{known}{unknown},"x":1}}'.encode(), "generate")


def test_what_a_prompt_says_is_no_field() -> None:
    prompt = json.dumps({str(n): [n] for n in range(5000)})
    body = json.dumps({"prompt": prompt, "guesses": [*range(5000)]}).encode()
    assert read_fields(GenerateFields, body, "generate").prompt == prompt


async def test_a_fault_in_answering_ends_that_connection_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with trio.fail_after(20):
            with await connected(path) as client:
                await client.send(posted("fail"))
                assert (await client.recv(1000)).startswith(b"HTTP/1.1 500 ")
            await lives(path)


async def test_a_client_that_sends_no_more_is_one_that_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with trio.fail_after(20):
            assert b'"bytes"' in await raw(path, posted("x"))
            assert await raw(path, posted("x")[:20]) == b""
            await lives(path)


async def test_a_request_that_is_too_long_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    fields = {"prompt": "a" * (2 * bodies.MAX_BODY)}
    async with serving(path, ECHO):
        with trio.fail_after(20), pytest.raises(UserError, match="is larger than 8 MiB"):
            await trio.to_thread.run_sync(partial(list, ask(path, "generate", fields)))


async def test_a_client_beyond_the_last_place_is_refused(tmp_path: Path) -> None:
    async def wait(name: str, body: bytes, reply: Reply) -> None:
        await trio.sleep_forever()

    path = tmp_path / "s"
    async with serving(path, OwnerApi(wait, lambda: None)):
        with ExitStack() as busy:
            for _ in range(node_socket.MAX_CLIENTS):
                client = busy.enter_context(await connected(path))
                await client.send(posted("x"))
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(OperationError, match="64 clients already"):
                await trio.to_thread.run_sync(partial(list, ask(path, "x")))


async def test_a_whole_request_that_nobody_has_read_keeps_its_place(tmp_path: Path) -> None:
    release = trio.Event()

    async def wait(name: str, body: bytes, reply: Reply) -> None:
        await release.wait()
        await reply({"event": "done"})

    path = tmp_path / "s"
    async with serving(path, OwnerApi(wait, lambda: None)):
        with trio.fail_after(20), ExitStack() as busy:
            for _ in range(node_socket.MAX_CLIENTS - 2):
                await busy.enter_context(await connected(path)).send(posted("x"))
            await trio.testing.wait_all_tasks_blocked(0.01)
            late = []
            for _ in range(6):  # at once: the server has no turn in between
                client = busy.enter_context(socket.socket(socket.AF_UNIX))
                client.connect(str(path))
                client.sendall(posted("x"))
                client.setblocking(False)
                late.append(trio.socket.from_stdlib_socket(client))
            await trio.testing.wait_all_tasks_blocked(0.01)
            release.set()
            starts = [(await client.recv(1000))[:12] for client in late]
            assert starts == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 503"] * 4


async def test_clients_that_say_nothing_take_no_place_from_others(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with ExitStack() as idle:
            for _ in range(2 * node_socket.MAX_CLIENTS):
                idle.enter_context(await connected(path))
                await lives(path)


async def test_clients_that_say_nothing_are_not_kept_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with ExitStack() as idle:
            clients = [
                idle.enter_context(await connected(path)) for _ in range(node_socket.MAX_CLIENTS)
            ]
            for client in clients:
                assert await client.recv(1) == b""
            assert trio.current_time() < 2 * HEADER_SECONDS
            await lives(path)


async def test_a_client_that_sends_its_request_slowly_is_cut_off(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "s"
    async with serving(path, ECHO):
        with await connected(path) as client:
            for byte in posted("x", b" " * 100 + b"{}"):
                try:
                    await client.send(bytes([byte]))
                except BrokenPipeError:
                    break
                await trio.sleep(1)
            assert (await client.recv(1000)).startswith(b"HTTP/1.1 408 ")
