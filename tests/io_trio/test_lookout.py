"""One thread that looks at the sockets of several."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest
import trio
from sealring_trio.net import threaded_socket
from sealring_trio.net.busy_poll import Lookout
from sealring_trio.net.threaded_socket import Guard, SharedWire

from tests.io_trio.test_wire import pair

LONG = 60.0
"""Seconds, more than a test takes."""


class Watched:
    """One end of a socket pair, of which it is kept who read it."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.came = threading.Semaphore(0)
        self.readers: list[int] = []

    def fileno(self) -> int:
        return self.near.fileno()

    def look(self) -> bool:
        data = self.near.recv(4096, socket.MSG_DONTWAIT)
        self.readers.append(threading.get_ident())
        self.came.release()
        return bool(data)

    def say(self) -> int:
        """Have something come, and tell by whom it was read."""
        self.far.send(b"x")
        assert self.came.acquire(timeout=10)
        return self.readers[-1]


class Place:
    """A lookout on a clock that stands still, and a thread for each of three sockets to watch."""

    def __init__(self) -> None:
        self.time = 0.0
        self.busy: set[int] = set()
        self.goes_on: dict[int, bool] = {}
        self.lookout = Lookout(lambda: self.time, self.is_busy)
        self.watched = [Watched() for _ in range(3)]
        self.watchers = [self.watcher(one) for one in self.watched]

    def is_busy(self) -> bool:
        return threading.get_ident() in self.busy

    def watcher(self, watched: Watched) -> threading.Thread:
        def watch() -> None:
            self.goes_on[threading.get_ident()] = self.lookout.watch(watched, 10.0)

        return threading.Thread(target=watch, daemon=True)

    def begin(self) -> list[int]:
        """Have all watched, the first one's thread looking; the threads."""
        for watcher, watched in zip(self.watchers, self.watched, strict=True):
            watcher.start()
            watched.say()
        return [watcher.ident or 0 for watcher in self.watchers]

    def ended(self, index: int) -> bool:
        self.watchers[index].join(10)
        return not self.watchers[index].is_alive()

    def end(self) -> None:
        for watched in self.watched:
            watched.far.close()
        assert all(self.ended(index) for index in range(3))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.end()
    for watched in made.watched:
        watched.near.close()


def test_one_thread_looks_for_all(place: Place) -> None:
    first, *_ = place.begin()
    assert [watched.say() for watched in place.watched] == [first] * 3


def test_another_goes_on_when_no_more_can_come_for_who_looks(place: Place) -> None:
    _, *others = place.begin()
    place.watched[0].far.close()
    assert place.ended(0)
    looking = {watched.say() for watched in place.watched[1:]}
    assert len(looking) == 1
    assert looking < set(others)


def test_who_waits_goes_as_soon_as_no_more_can_come_for_it(place: Place) -> None:
    first, second, _ = place.begin()
    place.watched[1].far.close()
    assert place.ended(1)
    assert place.goes_on == {second: False}
    assert place.watched[2].say() == first


def test_after_silence_all_part_at_once(place: Place) -> None:
    threads = place.begin()
    place.time = 9.0
    place.watched[1].say()
    place.time = 18.0  # nine seconds after what came last
    place.watched[2].say()
    place.time = 29.0
    assert all(place.ended(index) for index in range(3))
    assert place.goes_on == dict.fromkeys(threads, False)


def test_another_looks_while_who_looked_is_busy(place: Place) -> None:
    first, *others = place.begin()
    place.busy.add(first)
    place.watched[2].say()
    assert place.ended(0)
    assert place.goes_on == {first: True}
    looking = {watched.say() for watched in place.watched}  # its own as well
    assert len(looking) == 1
    assert looking < set(others)
    place.busy.clear()
    place.watchers[0] = place.watcher(place.watched[0])
    place.watchers[0].start()
    assert {watched.say() for watched in place.watched} == looking


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that comes comes soon, and is looked for."""
    monkeypatch.setattr(Guard, "eager", True)
    monkeypatch.setattr(SharedWire, "eager", True)
    monkeypatch.setattr(threaded_socket, "SOON", LONG)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("soon", [LONG, 0.002])
async def test_wires_that_are_looked_at_by_one_lose_nothing_and_keep_their_order(
    soon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where their threads stay together, and where they part and meet again."""
    monkeypatch.setattr(threaded_socket, "SOON", soon)
    draw = random.Random(7)
    guard = Guard()
    ends = [pair() for _ in range(4)]
    wires = [SharedWire(near, lambda: None, guard) for near, _ in ends]
    sent = [bytearray() for _ in wires]
    heard = [bytearray() for _ in wires]
    threads: list[int] = []
    turn = threading.Condition()
    inside = [threading.Lock() for _ in wires]

    def hear(index: int, data: bytes) -> None:
        assert inside[index].acquire(blocking=False)
        with turn:
            threads.append(threading.get_ident())
            heard[index] += data
            turn.notify_all()
        inside[index].release()

    def send() -> None:
        for _ in range(1000):
            index = draw.randrange(len(wires))
            piece = os.urandom(draw.choice([1, 100, 3000]))
            sent[index] += piece
            ends[index][1].sendall(piece)
            if draw.random() < 0.5:
                with turn:
                    assert turn.wait_for(lambda index=index: heard[index] == sent[index], 10)
        with turn:
            assert turn.wait_for(lambda: heard == sent, 10)
        for _, far in ends:
            far.close()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for index, wire in enumerate(wires):
                nursery.start_soon(wire.hear, partial(hear, index))
            await trio.to_thread.run_sync(send)
    # Each is there once for its own first message.
    assert soon < LONG or max(Counter(threads).values()) == len(threads) - len(wires) + 1
    for wire in wires:
        wire.close()


class Two:
    """Two wires that are heard, each in a nursery of its own, and the threads that heard them."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.ends = [pair() for _ in range(2)]
        self.wires = [SharedWire(near, lambda: None, self.guard) for near, _ in self.ends]
        self.heard: list[list[int]] = [[], []]
        self.do: list[Callable[[], None]] = [lambda: None, lambda: None]
        self.came = trio.Event()

    def hear(self, index: int, _: bytes) -> None:
        do = self.do[index]  # before anybody has it do something else
        self.heard[index].append(threading.get_ident())
        self.guard.soon(self.came.set)
        do()

    async def say(self, index: int) -> int:
        """Have something come on a wire, and tell by whom it was heard."""
        self.came = trio.Event()
        self.ends[index][1].sendall(b"x")
        await self.came.wait()
        return self.heard[index][-1]

    async def begin(self, index: int, nursery: trio.Nursery) -> None:
        """Hear a wire in *nursery*."""
        nursery.start_soon(self.wires[index].hear, partial(self.hear, index))
        for _ in range(2):
            await self.say(index)

    def end(self) -> None:
        for wire, (_, far) in zip(self.wires, self.ends, strict=True):
            wire.close()
            far.close()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    with trio.fail_after(10):
        yield made
        made.end()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("freed", [0, 1])
async def test_a_wire_is_freed_from_the_lookout_at_once(two: Two, freed: int) -> None:
    """Whether its own thread looks or another."""
    async with trio.open_nursery() as rest:
        async with trio.open_nursery() as ending:
            for index in range(2):
                await two.begin(index, ending if index == freed else rest)
            ending.cancel_scope.cancel()
        await two.say(1 - freed)
        rest.cancel_scope.cancel()


@pytest.mark.usefixtures("eager")
async def test_a_polite_end_is_not_cut_short_by_what_comes_on_another_wire(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded_socket, "LINGER", LONG)
    monkeypatch.setattr(threaded_socket, "MAX_LEFT", 0)
    far, scope, gone = two.ends[0][1], trio.CancelScope(), trio.Event()

    def leave() -> None:
        with two.guard.lock:
            two.guard.later(lambda: None)

    async def hear() -> None:
        with scope:
            await two.wires[0].hear(partial(two.hear, 0))
        gone.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear)
        await two.say(0)
        await two.begin(1, nursery)
        two.wires[0].be_polite()
        scope.cancel()
        assert await trio.to_thread.run_sync(far.recv, 1) == b""
        two.do[1] = leave
        assert await two.say(1) == two.heard[0][0]  # its thread then waits for the loop
        for _ in range(3):
            await two.say(1)
        far.sendall(b"the last of it")
        assert not gone.is_set()
        far.shutdown(socket.SHUT_WR)
        await gone.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("eager")
async def test_a_defect_that_shows_in_another_thread_is_that_wires(two: Two) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        await two.begin(0, nursery)
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            async with trio.open_nursery() as failing:
                await two.begin(1, failing)
                two.do[1] = fail
                assert await two.say(1) == two.heard[0][0]
        said = len(two.heard[1])
        two.ends[1][1].sendall(b"x")  # which nobody is given
        assert await two.say(0) == two.heard[0][0]
        assert len(two.heard[1]) == said
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("eager")
async def test_what_is_stuck_for_a_peer_holds_no_other_wire_up(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, there = pair()
    onward = SharedWire(out, lambda: None, two.guard)
    pushing, go = trio.Event(), threading.Event()

    def push(*_: object) -> None:
        two.guard.soon(pushing.set)
        assert go.wait(10)

    def send() -> None:
        with two.guard.lock:
            onward.send(bytes(10_000_000))

    monkeypatch.setattr(SharedWire, "push", push)
    async with trio.open_nursery() as nursery:
        for index in range(2):
            await two.begin(index, nursery)
        two.do[1] = send
        assert await two.say(1) == two.heard[0][0]
        await pushing.wait()
        two.do[1] = lambda: None
        second = await two.say(1)
        assert second not in two.heard[0]
        assert await two.say(0) == second
        go.set()
        nursery.cancel_scope.cancel()
    onward.close()
    there.close()


@pytest.mark.parametrize(
    ("node", "wire", "soon"),
    [(True, True, LONG), (True, True, 0.0), (True, False, LONG), (False, True, LONG)],
)
async def test_only_what_comes_soon_on_an_eager_wire_is_looked_for(
    two: Two, monkeypatch: pytest.MonkeyPatch, *, node: bool, wire: bool, soon: float
) -> None:
    monkeypatch.setattr(Guard, "eager", node)
    monkeypatch.setattr(SharedWire, "eager", wire)
    monkeypatch.setattr(threaded_socket, "SOON", soon)
    watched: list[int] = []

    def watch(_: Lookout, own: SharedWire, __: float) -> bool:
        watched.append(own.fileno())
        return False

    monkeypatch.setattr(Lookout, "watch", watch)
    async with trio.open_nursery() as nursery:
        await two.begin(0, nursery)
        await two.say(0)
        nursery.cancel_scope.cancel()
    assert bool(watched) is (node and wire and soon > 0)


@pytest.mark.usefixtures("eager")
async def test_what_comes_after_silence_does_not_come_soon(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though to look for it in vain took some of that time."""
    time, watched = 0.0, []

    def watch(*_: object) -> bool:
        nonlocal time
        watched.append(len(two.heard[0]))
        time += 1.2 * threaded_socket.SOON
        return False

    monkeypatch.setattr(Guard, "now", lambda _: time)
    monkeypatch.setattr(Lookout, "watch", watch)
    async with trio.open_nursery() as nursery:
        await two.begin(0, nursery)
        for _ in range(3):
            await two.say(0)
        nursery.cancel_scope.cancel()
    assert watched == [1, 3, 5]
