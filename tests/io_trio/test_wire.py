"""A wire and a pump on real sockets: order, back pressure, ends."""

from __future__ import annotations

import os
import socket

import pytest
import trio
from sealring_trio.net import pump as wires
from sealring_trio.net.pump import RECEIVE_SIZE, ROOM, Pump, Wire

from tests.serving import PATIENCE


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
        assert not wire.unsent
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
    assert wire.unsent
    wire.send(b"tail")
    got = bytearray()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.write)
            while len(got) < len(data) + 4:
                got += await other.receive()
            await drained.wait()
            nursery.cancel_scope.cancel()
    assert got == data + b"tail"
    wire.close()
    other.close()


async def test_a_pump_drains_only_what_the_socket_takes() -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    other = Wire(far, lambda: None)
    owner.queued = [bytes(2_000_000)]
    with trio.fail_after(PATIENCE):
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
    with trio.fail_after(PATIENCE), far:
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
    with trio.fail_after(PATIENCE):
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


async def test_last_words_that_do_not_fit_go_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wires, "LINGER", 15.0)  # a busy machine takes its time
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    other = Wire(far, lambda: None)
    got = bytearray()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
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


async def test_a_wire_has_much_room_once_it_is_to_carry_much() -> None:
    near, far = pair()
    wire = Wire(near, lambda: None)
    with trio.fail_after(PATIENCE), far:
        far.setblocking(False)
        far.send(bytes(200_000))
        assert len(await wire.receive()) <= RECEIVE_SIZE
        wire.make_room(ROOM)
        assert len(await wire.receive()) > RECEIVE_SIZE
    wire.close()


async def test_a_pump_that_lets_go_of_its_socket_loses_nothing_either_way() -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    other = Wire(far, lambda: None)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()
            owner.queued = [bytes(range(256)) * 8_000]
            pump.flush()
            other.send(b"for the next")  # there, before the pump's reader can look
            released = pump.release()
        assert released is not None
        sock, rest = released
        assert 0 < len(rest) < 256 * 8_000
        assert (near.fileno(), owner.got) == (-1, b"")
        assert not owner.over.is_set()
        sent = 256 * 8_000 - len(rest)
        got = bytearray()
        while len(got) < sent:
            got += await other.receive()
        assert got + rest == bytes(range(256)) * 8_000
        heir = Wire(sock, lambda: None)
        assert await heir.receive() == b"for the next"
        heir.close()
    other.close()


async def test_a_pump_that_reads_as_it_lets_go_reads_no_more() -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    released = []
    owner.received = lambda _, data: released.append((data, pump.release()))  # type: ignore
    with trio.fail_after(PATIENCE), far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            far.send(b"the link is up")
        ((data, given),) = released
        assert data == b"the link is up"
        assert given is not None
        far.send(b"later")
        heir = Wire(given[0], lambda: None)
        assert await heir.receive() == b"later"
        heir.close()
    assert not owner.over.is_set()


@pytest.mark.parametrize("first", ["hung up", "reset"])
async def test_a_pump_whose_stream_is_over_has_no_socket_to_give(first: str) -> None:
    near, far = pair()
    owner = Owner()
    pump = Pump(owner, 1, near)
    with trio.fail_after(PATIENCE), far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            if first == "hung up":
                pump.hang_up(b"")
            else:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                far.close()
                await owner.over.wait()
            assert pump.release() is None
        assert owner.over.is_set()


async def test_a_half_closed_stream_is_read_to_its_end() -> None:
    near, far = pair()
    owner = Owner()
    data = os.urandom(1 << 20)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Pump(owner, 1, near).run)
            other = Wire(far, lambda: None)
            nursery.start_soon(other.write)
            other.send(data)
            while other.unsent:
                await trio.testing.wait_all_tasks_blocked()
            far.shutdown(socket.SHUT_WR)
            await owner.over.wait()
            nursery.cancel_scope.cancel()
    assert owner.got == data
    other.close()
