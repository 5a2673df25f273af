"""A wire that a thread reads: its end, its freeing, and what it leaves for the event loop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from sealring_trio.net import threaded_socket
from sealring_trio.net.threaded_socket import Guard, SharedWire

from tests.io_trio.test_wire import pair


@pytest.fixture(params=["as on Linux", "as elsewhere", "eager"])
def either_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait as on Linux, as elsewhere, and without sleeping."""
    monkeypatch.setattr(threaded_socket, "WAITS_IN_RECEIVE", request.param != "as elsewhere")
    monkeypatch.setattr(Guard, "eager", request.param == "eager")
    monkeypatch.setattr(SharedWire, "eager", True)
    monkeypatch.setattr(threaded_socket, "SOON", 0.2)


async def hearing(
    nursery: trio.Nursery, wire: SharedWire, guard: Guard, far: socket.socket
) -> None:
    """Have *wire* heard, and wait until its thread is there."""
    there = trio.Event()
    nursery.start_soon(wire.hear, lambda _: guard.soon(there.set))
    far.sendall(b"x")
    await there.wait()


@pytest.mark.usefixtures("either_wait")
async def test_a_thread_hears_until_the_stream_ends() -> None:
    near, far = pair()
    wire = SharedWire(near, lambda: None, Guard())
    heard = bytearray()
    with trio.fail_after(10), far:
        far.sendall(b"one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.hear, heard.extend)
            far.shutdown(socket.SHUT_WR)
    assert heard == b"one"
    wire.close()
    assert near.fileno() == -1


@pytest.mark.usefixtures("either_wait")
async def test_what_a_thread_reads_is_shut_down_at_once_and_closed_when_it_is_done() -> None:
    near, far = pair()
    guard = Guard()
    wire = SharedWire(near, lambda: None, guard)
    begun, go = trio.Event(), threading.Event()

    def heard(_: bytes) -> None:
        guard.soon(begun.set)
        assert go.wait(10)

    with trio.fail_after(10), far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.hear, heard)
            far.sendall(b"x")
            await begun.wait()
            wire.close()
            assert far.recv(1) == b""
            assert near.fileno() >= 0  # or the thread might read what has its number next
            go.set()
    assert near.fileno() == -1


async def test_a_defect_in_a_thread_is_not_lost() -> None:
    near, far = pair()
    wire = SharedWire(near, lambda: None, Guard())

    def heard(_: bytes) -> None:
        raise ZeroDivisionError

    with trio.fail_after(10), far:
        far.sendall(b"x")
        with pytest.RaisesGroup(ZeroDivisionError):
            await wire.hear(heard)
    wire.close()


@pytest.mark.usefixtures("either_wait")
async def test_a_thread_that_waits_is_freed_and_what_waits_goes_out_first() -> None:
    near, far = pair()
    guard = Guard()
    wire = SharedWire(near, lambda: None, guard)
    got = bytearray()

    def take() -> None:
        while data := far.recv(65536):
            got.extend(data)

    with trio.fail_after(10), far:
        async with trio.open_nursery() as nursery:
            await hearing(nursery, wire, guard, far)
            await trio.testing.wait_all_tasks_blocked()
            with guard.lock:
                wire.send(bytes(1_000_000))
                assert wire.busy
            wire.be_polite()
            nursery.start_soon(trio.to_thread.run_sync, take)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert len(got) == 1_000_000
    wire.close()


@pytest.mark.parametrize("turn", range(8))  # which of two tasks comes first is for the loop to draw
async def test_what_begins_to_wait_as_a_thread_is_freed_goes_out_once(turn: int) -> None:
    near, far = pair()
    guard = Guard()
    wire = SharedWire(near, lambda: None, guard)
    sent, got = os.urandom(1_000_000), bytearray()

    def take() -> None:
        while data := far.recv(65536):
            got.extend(data)

    with trio.fail_after(10), far:
        async with trio.open_nursery() as reading, trio.open_nursery() as nursery:
            await hearing(nursery, wire, guard, far)
            nursery.start_soon(wire.write)
            await trio.testing.wait_all_tasks_blocked()
            wire.be_polite()
            with guard.lock:
                wire.send(sent)
            guard.soon(nursery.cancel_scope.cancel)
            reading.start_soon(trio.to_thread.run_sync, take)
    assert got == sent
    wire.close()


async def test_what_a_thread_did_not_get_rid_of_at_once_it_sends_without_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threaded_socket, "MOMENT", 10.0)
    guard = Guard()
    (near, far), (out, there) = pair(), pair()
    wire = SharedWire(near, lambda: None, guard)
    onward = SharedWire(out, lambda: None, guard)  # for which nobody writes
    sent, got = os.urandom(1_000_000), bytearray()

    def heard(_: bytes) -> None:
        with guard.lock:
            onward.send(sent)
            assert onward.busy

    def take() -> None:
        while len(got) < len(sent):
            got.extend(there.recv(65536))

    with trio.fail_after(10), far, there:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.hear, heard)
            far.sendall(b"x")
            await trio.to_thread.run_sync(take)
            far.shutdown(socket.SHUT_WR)
    assert got == sent
    assert not onward.busy
    onward.close()
    wire.close()


async def test_what_is_stuck_holds_its_thread_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other one: a peer that does not read is the event loop's to wait for."""
    guard = Guard()
    ends = [pair() for _ in range(3)]
    wires = [SharedWire(near, lambda: None, guard) for near, _ in ends]
    stalled, pushed, heard_last = wires[2], [], trio.Event()

    def push(wire: SharedWire, _: float) -> None:
        pushed.append((wire, threading.get_ident()))

    def heard(_: bytes) -> None:
        with guard.lock:
            for _ in range(100):
                stalled.send(bytes(100_000))
            pushed.append((None, threading.get_ident()))

    monkeypatch.setattr(SharedWire, "push", push)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wires[0].hear, heard)
            ends[0][1].sendall(b"x")
            while not pushed or pushed[-1][0] is None:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(wires[1].hear, lambda _: guard.soon(heard_last.set))
            ends[1][1].sendall(b"x")
            await heard_last.wait()
            for _, far in ends:
                far.close()
    assert [wire for wire, _ in pushed] == [None, stalled]
    assert len({thread for _, thread in pushed}) == 1
    for wire in wires:
        wire.close()


async def test_without_a_thread_the_connection_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = pair()

    async def none(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    wire = SharedWire(near, lambda: None, Guard())
    monkeypatch.setattr(trio.to_thread, "run_sync", none)
    with trio.fail_after(10), far:
        wire.be_polite()
        await wire.hear(bytes)
        wire.close()
        assert far.recv(1) == b""
    assert "no thread" in caplog.text


async def test_a_thread_that_has_left_too_much_waits_for_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threaded_socket, "MAX_LEFT", 5)
    near, far = pair()
    guard = Guard()
    wire = SharedWire(near, lambda: None, guard)
    done: list[int] = []
    over, waits, run = trio.Event(), threading.Event(), trio.from_thread.run

    def wait(call: Callable[[], Awaitable[None]]) -> None:
        waits.set()
        run(call)

    def do(byte: int) -> None:
        done.append(byte)
        if byte == ord("z"):
            over.set()

    def heard(data: bytes) -> None:
        with guard.lock:
            for byte in data:
                guard.later(partial(do, byte))

    monkeypatch.setattr(trio.from_thread, "run", wait)
    with trio.fail_after(20), far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.keep_up)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(wire.hear, heard)
            await trio.testing.wait_all_tasks_blocked()
            far.sendall(b"0123456789")
            assert waits.wait(10)  # the loop stands still here
            assert not done
            far.sendall(b"z")
            await over.wait()
            nursery.cancel_scope.cancel()
    assert bytes(done) == b"0123456789z"
    wire.close()
