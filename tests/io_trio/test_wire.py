"""A wire and a pump on real sockets: order, back pressure, ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from sealring_trio import shared_wire
from sealring_trio.pump import Pump
from sealring_trio.shared_wire import Guard, SharedWire
from sealring_trio.wire import Wire


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected TCP sockets with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        near.connect(server.getsockname())
        far, _ = server.accept()
    return near, far


class Owner:
    """Echoes nothing; hands out what the test queued, and keeps what came."""

    def __init__(self) -> None:
        self.queued: list[bytes] = []
        self.got = bytearray()
        self.drains = 0
        self.over = trio.Event()
        self.guard = Guard()

    def received(self, link: int, data: bytes) -> None:
        self.got += data

    def ended(self, link: int) -> None:
        self.over.set()

    def data_to_send(self, link: int) -> bytes:
        self.drains += 1
        data = b"".join(self.queued)
        self.queued.clear()
        return data


async def test_small_messages_leave_in_the_call() -> None:
    near, far = pair()
    with far:
        wire = Wire(near, lambda: None)
        wire.send(b"one")
        wire.send(b"two")
        assert not wire.busy
        far.settimeout(5)
        assert far.recv(6, socket.MSG_WAITALL) == b"onetwo"
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wire.close()


async def test_pieces_of_any_size_that_wait_keep_their_order() -> None:
    near, far = pair()
    pieces = [os.urandom(size) for size in (1 << 21, 1, 3000, 3000, 3000, 9000, 1, 1, 5000, 2)]
    with far:
        far.setblocking(False)
        wire = Wire(near, lambda: None)
        for piece in pieces:
            wire.send(piece)
        left = wire.unsent
        got = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.write)
            while len(got) < sum(map(len, pieces)):
                await trio.lowlevel.wait_readable(far)
                got += far.recv(1 << 16)
                if len(got) < 1 << 20:
                    wire.send(b"more")
                    pieces.append(b"more")
            nursery.cancel_scope.cancel()
        wire.close()
    assert got == b"".join(pieces)
    assert left > 1 << 20
    assert wire.unsent == 0


async def test_what_does_not_fit_waits_and_keeps_its_order() -> None:
    near, far = pair()
    data = bytes(range(256)) * 8_000
    drained = trio.Event()
    wire = Wire(near, drained.set)
    other = Wire(far, lambda: None)
    wire.send(data)
    assert wire.busy
    wire.send(b"tail")
    got = bytearray()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.write)
            while len(got) < len(data) + 4:
                got += await other.receive()
            await drained.wait()
            nursery.cancel_scope.cancel()
    assert got == data + b"tail"
    wire.close()
    other.close()


@pytest.mark.parametrize("taken", [True, False], ids=["the peer takes it", "it is closed"])
async def test_who_waits_for_an_idle_wire(taken: bool) -> None:
    near, far = pair()
    wire, other = Wire(near, lambda: None), Wire(far, lambda: None)
    await wire.idle()
    wire.send(bytes(2_000_000))
    assert 0 < wire.unsent < 2_000_000
    idle = trio.Event()

    async def wait() -> None:
        await wire.idle()
        idle.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not idle.is_set()
            if not taken:
                wire.close()
            else:
                nursery.start_soon(wire.write)
                left = 2_000_000
                while left:
                    left -= len(await other.receive())
            await idle.wait()
            nursery.cancel_scope.cancel()
    wire.close()
    other.close()


async def test_a_pump_drains_only_what_the_socket_takes() -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    other = Wire(far, lambda: None)
    owner.queued = [bytes(2_000_000)]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            pump.flush()
            owner.queued = [b"later"]
            drains = owner.drains
            pump.flush()
            assert owner.drains == drains  # the link's bytes stay with the node meanwhile
            got = bytearray()
            while not got.endswith(b"later"):
                got += await other.receive()
            other.send(b"answer")
            other.close()
            await owner.over.wait()
    assert len(got) == 2_000_005
    assert owner.got == b"answer"


async def test_a_peer_that_never_ends_is_left_after_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    with far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            pump.hang_up(b"bye")
            await owner.over.wait()
    assert near.fileno() == -1


async def test_cancelling_a_pump_kills_its_link() -> None:
    near, far = pair()
    owner = Owner()
    with trio.fail_after(10), far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Pump(owner, 1, near).run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert owner.over.is_set()
        assert near.fileno() == -1


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_reset_kills_the_link(waiting: bool) -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            if waiting:
                owner.queued = [bytes(2_000_000)]
                pump.flush()
            await trio.testing.wait_all_tasks_blocked()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            await owner.over.wait()
    owner.queued = [b"too late"]
    pump.flush()
    assert owner.queued == [b"too late"]


@pytest.fixture(params=[True, False])
def either_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait as on Linux, and as elsewhere."""
    monkeypatch.setattr(shared_wire, "WAITS_IN_RECEIVE", request.param)


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


@pytest.mark.parametrize("heard", [False, True])
async def test_last_words_that_do_not_fit_go_out_all_the_same(heard: bool) -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    other = Wire(far, lambda: None)
    got = bytearray()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            if heard:
                pump.hand_over(bytes)
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()
            owner.queued = [bytes(1_000_000)]
            pump.flush()
            pump.hang_up(bytes(1_000_000) + b"bye")
            pump.hang_up(b"again")
            while data := await other.receive():
                got += data
            other.close()
            await owner.over.wait()
    assert len(got) == 2_000_003
    assert got.endswith(b"bye")


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
    monkeypatch.setattr(shared_wire, "MAX_LEFT", 5)
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
