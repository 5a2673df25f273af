"""The carrier's thread and its lines on real sockets: order, ends of every kind, defects."""

from __future__ import annotations

import math
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from sealring_protocol.table import cross_product
from sealring_trio.collective import carrier as carriers
from sealring_trio.collective.carrier import (
    LINE_TABLE,
    Carrier,
    Line,
    LineEvent,
    LineState,
)
from sealring_trio.net.pump import PUMP_TABLE, PumpEvent, PumpState

from tests.io_trio.test_wire import pair
from tests.serving import PATIENCE

BIG = bytes(range(256)) * 8_000


class Place:
    """A carrier that is served, with one line on *near*; *far* is the test's."""

    def __init__(self, near: socket.socket) -> None:
        self.carrier = Carrier()
        self.carrier.tended = self
        self.got = bytearray()
        self.ends = 0
        self.drains = 0
        self.news = trio.Event()
        self.line: Line
        self.carrier.order(partial(self._begin, near))

    def _begin(self, near: socket.socket) -> None:
        self.line = Line(self.carrier, near, self._heard, self._ended, self._drained)

    def _heard(self, data: bytes) -> None:
        self.got += data
        self.carrier.report(self._tell)

    def _ended(self) -> None:
        self.ends += 1
        self.carrier.report(self._tell)

    def _drained(self) -> None:
        self.drains += 1
        self.carrier.report(self._tell)

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.news.wait()

    async def do(self, call: Callable[[Line], Any]) -> Any:
        """What *call* gives, in the thread."""
        given: list[Any] = []
        done = trio.Event()

        def order() -> None:
            given.append(call(self.line))
            self.carrier.report(done.set)

        self.carrier.order(order)
        await done.wait()
        return given[0]

    def next_timeout(self) -> float:
        return math.inf

    def tend(self, now: float) -> None:
        """Nothing."""


@asynccontextmanager
async def carried() -> AsyncIterator[tuple[Place, socket.socket]]:
    near, far = pair()
    with trio.fail_after(PATIENCE), far:
        async with trio.open_nursery() as nursery:
            place = Place(near)
            nursery.start_soon(place.carrier.serve)
            await place.do(lambda _: None)
            yield place, far
            nursery.cancel_scope.cancel()
    assert near.fileno() == -1  # whatever the test did


async def received(far: socket.socket) -> bytes:
    """All that comes until the stream ends."""
    far.settimeout(10)

    def receive() -> bytes:
        got = bytearray()
        while data := far.recv(1 << 16):
            got += data
        return bytes(got)

    return await trio.to_thread.run_sync(receive)


def reset(far: socket.socket) -> None:
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()


@pytest.mark.parametrize(
    ("table", "states", "events", "last"),
    [
        (LINE_TABLE, LineState, LineEvent, LineState.CLOSED),
        (PUMP_TABLE, PumpState, PumpEvent, PumpState.OVER),
    ],
    ids=["line", "pump"],
)
def test_what_is_over_stays_over(table: Any, states: Any, events: Any, last: Any) -> None:
    for state, event, after in cross_product(table, states, events):
        if state is last:
            assert after in (last, None)
        elif event.name in ("CLOSE", "END") and after is not None:
            assert after is last


async def test_much_goes_both_ways_at_once_and_nothing_changes_places() -> None:
    async with carried() as (place, far):
        data = os.urandom(4 << 20)
        far.settimeout(10)

        def talk() -> None:
            far.sendall(data)
            far.shutdown(socket.SHUT_WR)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, talk)
            for at in range(0, len(data), 100_000):
                await place.do(lambda line, at=at: line.send(data[at : at + 100_000]))
            await place.until(lambda: place.got == data)
    assert place.drains <= len(data) // 100_000 + 1


async def test_what_was_said_before_a_half_close_is_heard_and_the_end_told_once() -> None:
    async with carried() as (place, far):
        await trio.to_thread.run_sync(far.sendall, BIG)
        far.shutdown(socket.SHUT_WR)
        await place.until(lambda: place.ends > 0)
        assert place.got == BIG
        await place.do(lambda line: line.send(b"too late"))
        await place.do(lambda line: line.part())
        await place.do(lambda line: line.close())
        assert place.ends == 1


async def test_a_line_that_parts_while_it_sends_sends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carriers, "LINGER", 15.0)  # a busy machine takes its time
    async with carried() as (place, far):

        def part(line: Line) -> bool:
            line.send(BIG)
            line.send(b"bye")
            waits = line.unsent
            line.part()
            line.part()
            line.send(b"too late")
            return waits

        assert await place.do(part)
        far.send(b"unread")  # to close with this unread would reset the connection
        assert await received(far) == BIG + b"bye"
        far.close()
        await place.until(lambda: place.ends > 0)
        assert (place.got, place.ends) == (b"", 1)


async def test_a_peer_that_never_ends_is_left_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carriers, "LINGER", 0.0)
    async with carried() as (place, far):
        await place.do(lambda line: line.part())
        await place.until(lambda: place.ends > 0)
        assert far.recv(1) == b""


@pytest.mark.parametrize("doing", ["nothing", "sending", "parting", "pausing"])
async def test_a_reset_is_told_once_whatever_the_line_does(doing: str) -> None:
    async with carried() as (place, far):

        def begin(line: Line) -> None:
            if doing in ("sending", "parting"):
                line.send(BIG)
            if doing == "parting":
                line.part()
            if doing == "pausing":
                line.pause()

        await place.do(begin)
        reset(far)
        await place.until(lambda: place.ends > 0)
        await place.do(lambda line: line.part())
        assert place.ends == 1


async def test_who_closes_a_line_is_not_told() -> None:
    async with carried() as (place, far):

        def close(line: Line) -> None:
            line.send(BIG)
            line.close()
            line.close()
            line.fail()
            line.part()
            line.resume()  # and its number, which may be another's now, is not polled for
            assert line.number not in place.carrier._lines

        await place.do(close)
        await place.do(lambda _: None)
        assert place.ends == 0
        far.close()


async def test_a_paused_line_leaves_with_the_kernel_what_comes() -> None:
    async with carried() as (place, far):
        await place.do(lambda line: line.pause())
        far.send(b"later")
        await place.do(lambda _: None)
        assert place.got == b""
        await place.do(lambda line: line.resume())
        await place.until(lambda: place.got == b"later")


async def test_a_scope_that_ends_in_the_middle_of_a_send_closes_all_at_once() -> None:
    async with carried() as (place, far):
        await place.do(lambda line: line.send(BIG))
    assert (place.ends, place.line.unsent > 0) == (0, True)
    assert far.fileno() == -1


async def test_an_order_comes_before_what_was_sent_after_it() -> None:
    """The peer sent because of something that this node said after it gave the order."""
    async with carried() as (place, far):
        done: list[str] = []

        def change(line: Line) -> None:
            take = line.take

            def taken() -> bytes:
                data = take()
                place.carrier.order(lambda: done.append("order"))  # by the event loop, just before
                return data

            line.take = taken  # type: ignore[method-assign]
            line._heard = lambda _: done.append("heard")

        await place.do(change)
        far.send(b"an answer")
        await place.do(lambda _: None)
        while "heard" not in done:
            await place.do(lambda _: None)
        assert done == ["order", "heard"]


async def test_a_defect_in_the_thread_is_not_lost() -> None:
    near, far = pair()
    with trio.fail_after(PATIENCE), far:
        place = Place(near)
        place.carrier.order(lambda: place.line.send(b"" + 1))  # type: ignore[operator]
        with pytest.RaisesGroup(TypeError):
            await place.carrier.serve()
        assert near.fileno() == -1


async def test_what_is_ordered_of_a_thread_that_ends_is_closed_with_it() -> None:
    near, far = pair()
    with trio.fail_after(PATIENCE), far:
        async with trio.open_nursery() as nursery:
            place = Place(near)
            nursery.start_soon(place.carrier.serve)
            await place.do(lambda _: None)
            other, end = pair()
            nursery.cancel_scope.cancel()
            place.carrier.order(place.carrier._stop)
            place.carrier.order(partial(place._begin, other))
        assert (near.fileno(), other.fileno()) == (-1, -1)
        end.close()
