"""The local control socket: who may speak there, and what becomes of a client that leaves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.local import control_client
from sealring.local.control_client import ask
from sealring.service import control
from sealring.service.control import Reply, serve_control
from sealring_trio.errors import OperationError, UserError


async def echo(request: dict[str, Any], reply: Reply) -> None:
    """Answers with text, an error, or never."""
    match request["do"]:
        case "mistake":
            raise UserError("wrong", "do better")
        case "failure":
            raise OperationError("broken", "wait")
        case "wait":
            try:
                await trio.sleep_forever()
            finally:
                request["cancelled"].set()
        case _:
            await reply({"event": "text", "text": "ä\ud800"})
            await reply({"event": "done"})


async def ask_in_thread(path: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    return await trio.to_thread.run_sync(lambda: list(ask(path, request)))


async def test_lines_there_and_back(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", echo)
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        lines = await ask_in_thread(tmp_path / "s", {"do": "text"})
        assert lines == [{"event": "text", "text": "ä\ud800"}, {"event": "done"}]
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("do", "kind"), [("mistake", UserError), ("failure", OperationError)])
async def test_errors_keep_their_kind(tmp_path: Path, do: str, kind: type[UserError]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", echo)
        with pytest.raises(UserError) as caught:
            await ask_in_thread(tmp_path / "s", {"do": do})
        assert type(caught.value) is kind
        assert caught.value.advice
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_is_cancelled(tmp_path: Path) -> None:
    gone, began = trio.Event(), trio.Event()

    async def wait(request: dict[str, Any], reply: Reply) -> None:
        began.set()
        await echo({"do": "wait", "cancelled": gone}, reply)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", wait)
        client = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await client.connect(str(tmp_path / "s"))
        await client.send(b"{}\n")
        with trio.fail_after(10):
            await began.wait()
            client.close()
            await gone.wait()
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_before_its_answer(tmp_path: Path) -> None:
    release, over = trio.Event(), trio.Event()

    async def late(request: dict[str, Any], reply: Reply) -> None:
        with trio.CancelScope(shield=True):
            await release.wait()
        try:
            raise UserError("wrong", "too late to say")
        finally:
            over.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", late)
        client = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await client.connect(str(tmp_path / "s"))
        await client.send(b"{}\n")
        await trio.testing.wait_all_tasks_blocked()
        client.close()
        release.set()
        with trio.fail_after(10):
            await over.wait()
            await ask_in_thread_fails(tmp_path / "s")
        nursery.cancel_scope.cancel()


async def ask_in_thread_fails(path: Path) -> None:
    with pytest.raises(UserError, match="wrong"):
        await ask_in_thread(path, {})


async def test_another_user_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "peer_uid", lambda _: os.geteuid() + 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", echo)
        with pytest.raises(OperationError, match="the node went away"):
            await ask_in_thread(tmp_path / "s", {"do": "text"})
        monkeypatch.setattr(control_client, "peer_uid", lambda _: os.geteuid() + 1)
        with pytest.raises(OperationError, match="belongs to another user"):
            await ask_in_thread(tmp_path / "s", {"do": "text"})
        nursery.cancel_scope.cancel()


async def test_an_endless_line_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_LINE", 1000)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", echo)
        with pytest.raises(UserError, match="the request is longer than"):
            await ask_in_thread(tmp_path / "s", {"do": "text", "padding": "x" * 5000})
        nursery.cancel_scope.cancel()


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "s", echo)
        with pytest.raises(OperationError, match="already running"):
            await serve_control(tmp_path / "s", echo)
        assert await ask_in_thread(tmp_path / "s", {"do": "text"})
        nursery.cancel_scope.cancel()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="no node is running here"):
        list(ask(tmp_path / "s", {}))


def test_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(OperationError, match="no node is running here"):
        list(ask(tmp_path / "s", {}))


def test_too_long_a_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="longer than 100 bytes"):
        list(ask(tmp_path / ("s" * 101), {}))


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot make the control socket"):
        await serve_control(tmp_path / "none" / "s", echo)


def test_a_node_that_dies_in_the_middle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def die() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(json.dumps({"event": "text", "text": "x"}).encode() + b"\n")

        thread = threading.Thread(target=die)
        thread.start()
        answer = ask(tmp_path / "s", {"do": "text"})
        assert next(answer)["text"] == "x"
        with pytest.raises(OperationError, match="in the middle of its answer"):
            next(answer)
        thread.join()


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_node_that_is_stopped_or_hangs_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """The kernel takes connections for it, until as many wait as may."""
    monkeypatch.setattr(control_client, "ANSWER_SECONDS", 0.1)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as node, contextlib.ExitStack() as others:
        node.bind(str(path))
        node.listen(0)
        for _ in range(waiting):
            others.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        with pytest.raises(OperationError, match="takes no more" if waiting else "not answer"):
            list(ask(path, {"do": "status"}, 0.1))


def test_a_node_that_says_nothing_at_all_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the request goes on: what comes then is not lost, in the middle of a line either."""
    monkeypatch.setattr(control_client, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(control_client, "STATUS_SECONDS", 0.01)
    path = tmp_path / "socket"
    told: list[str] = []
    line = json.dumps({"event": "done", "text": "all of it"}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        accepted: list[socket.socket] = []

        def notice(text: str) -> None:
            told.append(text)
            if not accepted:
                accepted.append(listener.accept()[0])
                accepted[0].sendall(line[:9])
            elif len(told) == 3:
                accepted[0].sendall(line[9:])

        (event,) = ask(path, {"do": "generate"}, notice=notice)
        accepted[0].close()
    assert event["text"] == "all of it"
    assert told == [f"the node at {path} does not answer: it may be stopped"] * 3
