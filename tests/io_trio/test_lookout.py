"""One thread that looks at the sockets of several."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
import trio
from sealring_trio import shared_wire
from sealring_trio.lookout import Lookout
from sealring_trio.shared_wire import Guard, SharedWire

from tests.io_trio.test_wire import pair

LONG = 60.0
"""Seconds, more than a test takes."""


class Watched:
    """One end of a socket pair, of which it is kept who read what."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.got = bytearray()
        self.came = threading.Semaphore(0)
        self.readers: list[int] = []

    def fileno(self) -> int:
        return self.near.fileno()

    def look(self) -> bool:
        data = self.near.recv(4096)
        self.got += data
        self.readers.append(threading.get_ident())
        self.came.release()
        return bool(data)


class Watcher(threading.Thread):
    """Has a socket watched, once."""

    def __init__(self, lookout: Lookout, watched: Watched, soon: float = LONG) -> None:
        super().__init__(daemon=True)
        self._do = lambda: lookout.watch(watched, soon)
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._do()
        except ZeroDivisionError as error:
            self.raised = error

    def ended(self) -> bool:
        self.join(10)
        return not self.is_alive()


@pytest.fixture
def watched() -> Iterator[list[Watched]]:
    made = [Watched() for _ in range(3)]
    yield made
    for one in made:
        one.near.close()
        one.far.close()


def watch_all(lookout: Lookout, watched: list[Watched]) -> list[Watcher]:
    """A watcher for each, where the first one looks."""
    watchers = [Watcher(lookout, one) for one in watched]
    for watcher, one in zip(watchers, watched, strict=True):
        watcher.start()
        one.far.send(b"x")
        assert one.came.acquire(timeout=10)
    return watchers


def test_one_thread_looks_for_all(watched: list[Watched]) -> None:
    watchers = watch_all(Lookout(), watched)
    assert {one.readers[0] for one in watched} == {watchers[0].ident}
    for one in watched:
        one.far.close()
    assert all(watcher.ended() for watcher in watchers)


def test_another_goes_on_when_no_more_can_come_for_who_looks(watched: list[Watched]) -> None:
    watchers = watch_all(Lookout(), watched)
    watched[0].far.close()
    assert watchers[0].ended()
    for one in watched[1:]:
        one.far.send(b"y")
        assert one.came.acquire(timeout=10)
    looking = {one.readers[-1] for one in watched[1:]}
    assert len(looking) == 1
    assert looking < {watcher.ident for watcher in watchers[1:]}
    for one in watched[1:]:
        one.far.close()
    assert all(watcher.ended() for watcher in watchers)


def test_who_waits_goes_as_soon_as_no_more_can_come_for_it(watched: list[Watched]) -> None:
    watchers = watch_all(Lookout(), watched)
    watched[1].far.close()
    assert watchers[1].ended()
    assert watchers[0].is_alive()
    assert watchers[2].is_alive()
    for one in watched:
        one.far.close()
    assert all(watcher.ended() for watcher in watchers)


def test_after_silence_all_part_and_may_watch_again(watched: list[Watched]) -> None:
    lookout = Lookout()
    for _ in range(3):
        watchers = [Watcher(lookout, one, 0.01) for one in watched]
        for watcher in watchers:
            watcher.start()
        assert all(watcher.ended() for watcher in watchers)
    watched[0].far.send(b"x")
    watcher = Watcher(lookout, watched[0], LONG)
    watcher.start()
    assert watched[0].came.acquire(timeout=10)
    watched[0].far.close()
    assert watcher.ended()


def test_a_defect_ends_who_looks_and_nobody_else(
    watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    watchers = watch_all(Lookout(), watched)

    def fail() -> bool:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(watched[2], "look", fail)
    watched[2].far.send(b"x")
    assert watchers[0].ended()
    assert isinstance(watchers[0].raised, ZeroDivisionError)
    assert watched[2].came.acquire(timeout=10)
    assert watched[2].readers[-1] in {watcher.ident for watcher in watchers[1:]}
    for one in watched:
        one.far.close()
    assert all(watcher.ended() for watcher in watchers)


@pytest.mark.parametrize("soon", [LONG, 0.002])
async def test_wires_that_are_looked_at_by_one_lose_nothing_and_keep_their_order(
    soon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where their threads stay together, and where they part and meet again."""
    monkeypatch.setattr(Guard, "eager", True)
    monkeypatch.setattr(SharedWire, "eager", True)
    monkeypatch.setattr(shared_wire, "SOON", soon)
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


@pytest.mark.parametrize("freed", [0, 1])
async def test_a_wire_is_freed_from_the_lookout_at_once(
    freed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its own thread looks or another."""
    monkeypatch.setattr(Guard, "eager", True)
    monkeypatch.setattr(SharedWire, "eager", True)
    monkeypatch.setattr(shared_wire, "SOON", LONG)
    guard = Guard()
    ends = [pair() for _ in range(2)]
    wires = [SharedWire(near, lambda: None, guard) for near, _ in ends]
    heard = [0, 0]
    came = trio.Event()

    def hear(index: int) -> None:
        nonlocal came
        heard[index] += 1
        guard.soon(came.set)

    async def say(index: int) -> None:
        nonlocal came
        came = trio.Event()
        ends[index][1].sendall(b"x")
        await came.wait()

    with trio.fail_after(10):
        async with trio.open_nursery() as rest:
            async with trio.open_nursery() as ending:
                for index, wire in enumerate(wires):
                    nursery = ending if index == freed else rest
                    nursery.start_soon(wire.hear, lambda _, index=index: hear(index))
                    await say(index)
                    await say(index)
                ending.cancel_scope.cancel()
            await say(1 - freed)
            rest.cancel_scope.cancel()
    assert heard[1 - freed] == 3
    for wire, (_, far) in zip(wires, ends, strict=True):
        wire.close()
        far.close()
