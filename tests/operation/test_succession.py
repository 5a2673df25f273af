"""A ring that loses its head goes on under another, and so do its streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import pytest

from tests.operation.crowd import Listener, alone, begin, body, head_of, plain, streamed
from tests.operation.machines import Machine, machines

TOKENS: Final = 250
WITHIN: Final = 5.0
"""Seconds from a fault to the next part of each stream, on a quiet machine. `BUSY` times as much
are allowed here, where others may run."""

BUSY: Final = 4.0


@attrs.frozen
class Fault:
    """What happens to the *head* of three machines; *ring* are all. `noticed` is how long the
    others need to notice that it is gone: a closed connection says so at once."""

    begin: Callable[[tuple[Machine, ...], Machine], None]
    end: Callable[[tuple[Machine, ...], Machine], None]
    noticed: float = 0.0


def _cut(ring: tuple[Machine, ...], one: Machine, *, to: bool = True, back: bool = True) -> None:
    for other in ring:
        if other is not one:
            one.way_to(other).passes = not to
            other.way_to(one).passes = not back


def _joined(ring: tuple[Machine, ...], one: Machine) -> None:
    _cut(ring, one, to=False, back=False)


def _killed_with_a_full_disk(ring: tuple[Machine, ...], head: Machine) -> None:
    head.fill_disk()
    head.kill()


def _comes_back(ring: tuple[Machine, ...], head: Machine) -> None:
    head.free_disk()
    head.start()


def _engine_killed(ring: tuple[Machine, ...], head: Machine) -> None:
    head.kill_engine()


def _nothing(ring: tuple[Machine, ...], head: Machine) -> None:
    """It comes back by itself."""


SILENCE: Final = 10.0
"""Seconds of silence after which a member is given up (`patience`)."""

FAULTS: Final = {
    "its daemon is killed": Fault(lambda _, head: head.kill(), lambda _, head: head.start()),
    "its engine is killed": Fault(_engine_killed, _nothing),
    "it is gone for good": Fault(_cut, _nothing, SILENCE),
    "it is cut off both ways": Fault(_cut, _joined, SILENCE),
    "it can send nothing": Fault(lambda ring, head: _cut(ring, head, back=False), _joined, SILENCE),
    "it hears nothing": Fault(lambda ring, head: _cut(ring, head, to=False), _joined, SILENCE),
    "it is stopped and wakes": Fault(
        lambda _, head: head.stall(), lambda _, head: head.resume(), SILENCE
    ),
    "its disk is full, and it is killed": Fault(_killed_with_a_full_disk, _comes_back),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_streams_of_a_head_that_is_lost_go_on(name: str) -> None:
    fault = FAULTS[name]
    with machines(3, guests=1) as (*all_machines, guest):
        ring = tuple(all_machines)
        key = begin(ring)
        asked = [body(number, TOKENS) for number in range(8)]
        expected = [alone(ring, guest, key, each) for each in asked]
        listeners = [
            Listener(partial(streamed, ring, guest, key, each, number % 3))
            for number, each in enumerate(asked)
        ]
        other = Listener(partial(plain, ring, guest, key, asked[0], 2))
        ring[0].wait_for(lambda: all(len(each.times) > 20 for each in listeners), "streams")
        at = time.monotonic()
        fault.begin(ring, ring[0])
        texts = [listener.result() for listener in listeners]
        fault.end(ring, ring[0])
        assert texts == expected
        assert other.result() == expected[0]
        longest = max(each.silence(at, each.times[-1]) for each in listeners)
        print(f"{name}: {longest:.1f} s without a token")
        assert longest < fault.noticed + BUSY * WITHIN
        assert alone(ring, guest, key, asked[1], 1) == expected[1]


@pytest.mark.long
def test_the_place_of_the_head_moves_under_streams() -> None:
    with machines(3, guests=1) as (*all_machines, guest):
        ring = tuple(all_machines)
        key = begin(ring)
        asked = [body(number, TOKENS) for number in range(8)]
        expected = [alone(ring, guest, key, each) for each in asked]
        listeners = [
            Listener(partial(plain, ring, guest, key, each, number % 3))
            for number, each in enumerate(asked)
        ]
        for name in ("shelf", "den", "desk"):
            before = [len(each.times) for each in listeners]
            head = head_of(ring, guest, key)
            moved = head.run("head", "move", name, "--config", head.config)
            assert moved.code == 0, moved.err
            head.wait_for(
                lambda before=before: all(
                    each.over or len(each.times) > count
                    for each, count in zip(listeners, before, strict=True)
                ),
                "tokens after the move",
            )
            assert head_of(ring, guest, key).name == name
        assert [listener.result() for listener in listeners] == expected


@pytest.mark.long
def test_the_survivor_of_two_takes_the_place_of_the_head_by_hand() -> None:
    with machines(2, guests=1) as (desk, shelf, guest):
        ring = (desk, shelf)
        key = begin(ring)
        asked = body(0, 60)
        expected = alone(ring, guest, key, asked)
        refused = shelf.run("head", "take", "--config", shelf.config)
        assert refused.code == 1
        assert "sees the head" in refused.err
        desk.kill()
        shelf.wait_for(
            lambda: shelf.run("head", "take", "--config", shelf.config).code == 0, "head"
        )
        shelf.wait_for(lambda: head_of(ring, guest, key) is shelf, "answer")
        assert alone(ring, guest, key, asked, 1) == expected
        desk.start()
        desk.wait_for_log("passed on to the head, shelf")
        assert alone(ring, guest, key, asked, 0) == expected
