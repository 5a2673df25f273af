"""The Unix socket of a node: who may speak there, and what becomes of a client that leaves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.http import bodies
from sealring.local import node_socket
from sealring.local.node_socket import ask, listening
from sealring.service import owner_api
from sealring.service.owner_api import OwnerApi, serve_owner
from sealring.service.verification import Reply
from sealring_trio.errors import OperationError, UserError

from tests.attacks.doorway import hello
from tests.serving import PATIENCE


async def answer(name: str, body: bytes, reply: Reply) -> None:
    """Answers with text, or an error."""
    match name:
        case "mistake":
            raise UserError("wrong", "do better")
        case "failure":
            raise OperationError("broken", "wait")
        case "late":
            await reply({"event": "text", "text": "x"})
            raise OperationError("broken", "wait")
        case _:
            await reply({"event": "text", "text": "ä\ud800"})
            await reply({"event": "done"})


APP = OwnerApi(answer, lambda: None)


def posted(name: str, body: bytes = b"{}") -> bytes:
    """The bytes of a request."""
    kind = "Content-Type: application/json"
    header = f"POST /node/{name} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n"
    return f"{header}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.asynccontextmanager
async def serving(path: Path, app: OwnerApi) -> AsyncIterator[None]:
    """A node's socket at *path*."""
    with listening(path) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_owner, listener, app)
            yield
            nursery.cancel_scope.cancel()


async def connected(path: Path) -> trio.socket.SocketType:
    client = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await client.connect(str(path))
    return client


async def ask_in_thread(
    path: Path, name: str, fields: Mapping[str, Any] = {}
) -> list[dict[str, Any]]:
    return await trio.to_thread.run_sync(lambda: list(ask(path, name, fields)))


async def test_lines_there_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", APP):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        lines = await ask_in_thread(tmp_path / "s", "text")
        assert lines == [{"event": "text", "text": "ä\ud800"}, {"event": "done"}]
    assert not (tmp_path / "s").exists()


async def test_the_node_itself_takes_post_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", APP):
        client = await connected(tmp_path / "s")
        await client.send(posted("text").replace(b"POST", b"PUT"))
        assert (await client.recv(1000)).startswith(b"HTTP/1.1 405 ")
        client.close()


async def test_an_answer_may_have_no_line(tmp_path: Path) -> None:
    async def silent(name: str, body: bytes, reply: Reply) -> None:
        pass

    async with serving(tmp_path / "s", OwnerApi(silent, lambda: None)):
        assert await ask_in_thread(tmp_path / "s", "end") == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mistake", UserError), ("failure", OperationError), ("late", OperationError)],
)
async def test_errors_keep_their_kind(tmp_path: Path, name: str, kind: type[UserError]) -> None:
    async with serving(tmp_path / "s", APP):
        with pytest.raises(UserError) as caught:
            await ask_in_thread(tmp_path / "s", name)
        assert type(caught.value) is kind
        assert caught.value.advice


async def test_a_client_that_leaves_is_cancelled(tmp_path: Path) -> None:
    gone, began = trio.Event(), trio.Event()

    async def wait(name: str, body: bytes, reply: Reply) -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            gone.set()

    async with serving(tmp_path / "s", OwnerApi(wait, lambda: None)):
        client = await connected(tmp_path / "s")
        await client.send(posted("text"))
        with trio.fail_after(PATIENCE):
            await began.wait()
            client.close()
            await gone.wait()


async def test_a_client_that_leaves_before_its_answer(tmp_path: Path) -> None:
    release, over = trio.Event(), trio.Event()

    async def late(name: str, body: bytes, reply: Reply) -> None:
        with trio.CancelScope(shield=True):
            await release.wait()
        try:
            raise UserError("wrong", "too late to say")
        finally:
            over.set()

    async with serving(tmp_path / "s", OwnerApi(late, lambda: None)):
        client = await connected(tmp_path / "s")
        await client.send(posted("text"))
        await trio.testing.wait_all_tasks_blocked()
        client.close()
        release.set()
        with trio.fail_after(PATIENCE):
            await over.wait()
            with pytest.raises(UserError, match="wrong"):
                await ask_in_thread(tmp_path / "s", "text")


@pytest.mark.parametrize("serves", [True, False])
async def test_other_paths_are_the_apis(tmp_path: Path, serves: bool) -> None:
    app = OwnerApi(answer, lambda: hello if serves else None)
    async with serving(tmp_path / "s", app):
        client = await connected(tmp_path / "s")
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = (await client.recv(1000)).decode()
        assert got.startswith(f"HTTP/1.1 {200 if serves else 404} ")
        assert ("GET /v1/models" if serves else "serves no API") in got
        client.close()


async def test_another_user_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_api, "peer_uid", lambda _: os.geteuid() + 1)
    async with serving(tmp_path / "s", APP):
        with pytest.raises(OperationError, match="the node went away"):
            await ask_in_thread(tmp_path / "s", "text")
        monkeypatch.setattr(node_socket, "peer_uid", lambda _: os.geteuid() + 1)
        with pytest.raises(OperationError, match="belongs to another user"):
            await ask_in_thread(tmp_path / "s", "text")


async def test_an_endless_request_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY", 1000)
    async with serving(tmp_path / "s", APP):
        with pytest.raises(UserError, match="body is larger than"):
            await ask_in_thread(tmp_path / "s", "text", {"padding": "x" * 5000})


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    async with serving(tmp_path / "s", APP):
        with pytest.raises(OperationError, match="already running"), listening(tmp_path / "s"):
            pytest.fail("two listen")
        assert await ask_in_thread(tmp_path / "s", "text")


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="no node is running here"):
        list(ask(tmp_path / "s", "text"))


def test_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(OperationError, match="no node is running here"):
        list(ask(tmp_path / "s", "text"))


def test_too_long_a_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="longer than 100 bytes"):
        list(ask(tmp_path / ("s" * 101), "text"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused = pytest.raises(UserError, match="cannot make the control socket")
    with refused, listening(tmp_path / "none" / "s"):
        pytest.fail("there is no such folder")


ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def answering(path: Path, data: bytes, *, again: bool = False) -> Iterator[None]:
    """Something at *path* that answers one request with *data*, maybe *again* and again until its
    client leaves, and closes."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.recv(1000)
            connection.sendall(data)
            while again:
                connection.sendall(data)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


def test_a_node_that_dies_in_the_middle(tmp_path: Path) -> None:
    with answering(tmp_path / "s", ANSWER + b'e\r\n{"text": "x"}\n\r\n'):
        answer = ask(tmp_path / "s", "text")
        assert next(answer)["text"] == "x"
        with pytest.raises(OperationError, match="in the middle of its answer"):
            next(answer)


NO_NODES = {
    "no JSON": b"hello",
    "a blank line": b"",
    "no UTF-8": b"\xff",
    "a list": b"[1]",
    "null": b"null",
    "nested deep": b"[" * 200_000,
    "a number of 5,000 digits": b"1" * 5000,
    "an error that is a text": b'{"error": "x"}',
    "an error without fields": b'{"error": {}}',
    "an error of other types": b'{"error": {"what": 1, "advice": 2, "exit_code": 3}}',
}


@pytest.mark.parametrize("line", NO_NODES.values(), ids=NO_NODES)
def test_what_is_no_node_is_named(tmp_path: Path, line: bytes) -> None:
    body = line + b"\n"
    with (
        answering(tmp_path / "s", ANSWER + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
        pytest.raises(OperationError, match="is no node of this version"),
    ):
        list(ask(tmp_path / "s", "status"))


def test_a_line_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_socket, "MAX_LINE", 1000)
    with (
        answering(tmp_path / "s", ANSWER + b"7d0\r\n%b\r\n" % (b"x" * 2000)),
        pytest.raises(OperationError, match="in the middle of its answer"),
    ):
        list(ask(tmp_path / "s", "status"))


def test_bytes_that_are_no_line_give_no_more_time(tmp_path: Path) -> None:
    begun = b"HTTP/1.1 100 Continue\r\n\r\n" * 100
    with (
        answering(tmp_path / "s", begun, again=True),
        pytest.raises(OperationError, match="does not answer"),
    ):
        list(ask(tmp_path / "s", "status", seconds=0.2))


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_node_that_is_stopped_or_hangs_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """The kernel takes connections for it, until as many wait as may."""
    monkeypatch.setattr(node_socket, "ANSWER_SECONDS", 0.1)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as node, contextlib.ExitStack() as others:
        node.bind(str(path))
        node.listen(0)
        for _ in range(waiting):
            others.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        with pytest.raises(OperationError, match="takes no more" if waiting else "not answer"):
            list(ask(path, "status", seconds=0.1))


def test_a_client_waits_until_as_many_do_not_as_may(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    asker = threading.Thread(target=lambda: lines.extend(ask(tmp_path / "s", "text")))
    with socket.socket(socket.AF_UNIX) as node, socket.socket(socket.AF_UNIX) as other:
        node.bind(str(tmp_path / "s"))
        node.listen(0)
        other.connect(str(tmp_path / "s"))
        asker.start()
        asker.join(0.1)
        assert asker.is_alive()
        node.accept()[0].close()
        with node.accept()[0] as client:
            client.sendall(ANSWER + b'e\r\n{"text": "x"}\n\r\n0\r\n\r\n')
            asker.join(PATIENCE)
    assert lines == [{"text": "x"}]


def test_a_folder_in_the_sockets_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with (
        pytest.raises(UserError, match="in the way of the control socket"),
        listening(tmp_path / "s"),
    ):
        pytest.fail("there is a folder")
    assert (tmp_path / "s").is_dir()


def test_a_node_that_says_nothing_at_all_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the request goes on: what comes then is not lost, in the middle of a line either."""
    monkeypatch.setattr(node_socket, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(node_socket, "STATUS_SECONDS", 0.01)
    path = tmp_path / "socket"
    reported: list[str] = []
    text = json.dumps({"event": "done", "text": "all of it"}).encode() + b"\n"
    line = ANSWER + f"{len(text):x}\r\n".encode() + text + b"\r\n0\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        accepted: list[socket.socket] = []

        def notice(text: str) -> None:
            reported.append(text)
            if not accepted:
                accepted.append(listener.accept()[0])
                accepted[0].sendall(line[:60])
            elif len(reported) == 3:
                accepted[0].sendall(line[60:])

        (event,) = ask(path, "generate", notice=notice)
        accepted[0].close()
    assert event["text"] == "all of it"
    assert reported == [f"the node at {path} does not answer: it may be stopped"] * 3
