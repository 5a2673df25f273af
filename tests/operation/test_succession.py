"""A ring that loses its head goes on under another, and so do its streams.

The cases of one ring take place one after the other: whichever machine is head then is hit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import attrs
import httpx2
import pytest

from tests.operation.crowd import (
    Listener,
    all_there,
    alone,
    begin,
    body,
    head_of,
    plain,
    streamed,
    urls,
)
from tests.operation.machines import Machine, machines

TOKENS: Final = 100
STREAMS: Final = 8
WITHIN: Final = 5.0
"""Seconds from a fault to the next part of each stream, on a quiet machine. `BUSY` times as much
are allowed here, where others may run."""

BUSY: Final = 4.0
LOAD: Final = 4.0
"""Processes that want each processor, from which on seconds say nothing: they are only printed."""

SILENCE: Final = 1.5
"""Seconds of silence after which a member is given up (`patience`)."""


@attrs.frozen
class Stage:
    """A *ring* of three machines, a *guest* whose clients have a *key*, and the texts that
    questions were *asked* for while nothing happened. Each case asks for one of them alone."""

    ring: tuple[Machine, ...]
    guest: Machine
    key: str
    asked: list[dict[str, object]]
    expected: list[str]

    def alone(self, number: int, first: int) -> str:
        """The text of question *number* in one piece, from machine *first*."""
        return alone(self.ring, self.guest, self.key, self.asked[number], first)

    def streamed(self, number: int, first: int) -> Listener:
        """Begin stream *number* by the shipped client, which asks machine *first* at first."""
        asked = self.asked[number]
        return Listener(partial(streamed, self.ring, self.guest, self.key, asked, first))

    def plain(self, number: int, first: int) -> Listener:
        """Begin stream *number* by a client that knows machine *first* alone."""
        asked = self.asked[number]
        return Listener(partial(plain, self.ring, self.guest, self.key, asked, first))

    def head(self) -> Machine:
        """The head, once all machines serve."""
        self.ring[0].wait_for(lambda: all_there(self.ring), "all machines", 120)
        return head_of(self.ring, self.guest, self.key)

    def answers(self, machine: Machine) -> httpx2.Response:
        """What *machine* answers to a short question."""
        headers = {"authorization": f"Bearer {self.key}"}
        url = urls(self.ring, machine.index)[0]
        asked = {**body(0, 4), "stream": False}
        with self.guest.inside(), httpx2.Client(timeout=90, trust_env=False) as client:
            return client.post(f"{url}/v1/chat/completions", json=asked, headers=headers)


def _within(what: str, seconds: float, bound: float) -> None:
    """Say that *what* cost *seconds*, which are fewer than *bound* where the machine has time."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{what}: {seconds:.1f} s without a token, at a load of {load:.1f} for each processor")
    assert seconds < bound or load > LOAD


def _stage(ring: tuple[Machine, ...], guest: Machine) -> Stage:
    key = begin(ring)
    asked = [body(number, TOKENS) for number in range(STREAMS)]
    made = [
        Listener(partial(plain, ring, guest, key, each, number % len(ring)))
        for number, each in enumerate(asked)
    ]
    return Stage(ring, guest, key, asked, [listener.result() for listener in made])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with machines(3, guests=1) as (*ring, guest):
        yield _stage(tuple(ring), guest)


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


FAULTS: Final = {
    "its daemon is killed": Fault(lambda _, head: head.kill(), lambda _, head: head.start()),
    "its engine is killed": Fault(_engine_killed, _nothing),
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
def test_streams_of_a_head_that_is_lost_go_on(name: str, stage: Stage) -> None:
    fault, ring = FAULTS[name], stage.ring
    head = stage.head()
    followers = [machine for machine in ring if machine is not head]
    listeners = [stage.streamed(number, number % 3) for number in range(STREAMS)]
    others = [stage.plain(number, each.index) for number, each in enumerate(followers)]
    head.wait_for(lambda: all(len(each.times) > 20 for each in listeners), "streams")
    at = time.monotonic()
    fault.begin(ring, head)
    try:
        texts = [listener.result() for listener in listeners]
        rest = [listener.result() for listener in others]
    finally:
        fault.end(ring, head)
    assert texts == stage.expected
    assert rest == stage.expected[: len(rest)]
    longest = max(each.silence(at, each.times[-1]) for each in listeners)
    assert stage.alone(1, followers[0].index) == stage.expected[1]
    _within(name, longest, fault.noticed + BUSY * WITHIN)


@pytest.mark.long
def test_streams_go_on_without_a_head_that_is_gone_for_good() -> None:
    with machines(3, guests=1) as (*ring, guest):
        stage = _stage(tuple(ring), guest)
        listeners = [stage.streamed(number, number % 3) for number in range(STREAMS)]
        ring[0].wait_for(lambda: all(len(each.times) > 20 for each in listeners), "streams")
        at = time.monotonic()
        _cut(stage.ring, ring[0])
        ring[0].stall()
        ring[0].way_to(guest).passes = guest.way_to(ring[0]).passes = False
        assert [listener.result() for listener in listeners] == stage.expected
        longest = max(each.silence(at, each.times[-1]) for each in listeners)
        for number in (1, 2):
            assert stage.alone(number, number) == stage.expected[number]
        _within("it is gone for good", longest, SILENCE + BUSY * WITHIN)


@pytest.mark.long
def test_an_old_head_that_wakes_answers_nobody_before_it_hears_of_the_new_one(stage: Stage) -> None:
    ring = stage.ring
    old = stage.head()
    new = [machine for machine in ring if machine is not old]
    until = time.monotonic() + 60
    old.stall()
    try:
        assert stage.answers(new[0]).status_code == 200
        old.wait_for(lambda: time.monotonic() >= until, "minute", 90)
        _cut(ring, old)
        answers: list[httpx2.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(stage.answers(old)), daemon=True)
        waiting.start()  # it finds a request when it wakes
    finally:
        old.resume()
    refused = stage.answers(old)
    waiting.join(90)
    assert [refused.status_code, *(each.status_code for each in answers)] == [503, 503]
    assert not {refused.json()["error"]["code"], answers[0].json()["error"]["code"]} - {
        "no_majority", "ring_not_ready", "no_head"
    }, refused.text  # fmt: skip
    _joined(ring, old)
    old.wait_for(lambda: stage.answers(old).status_code == 200, "answer")
    answer = stage.answers(old)
    assert answer.headers["x-sealring-head"] in {machine.name for machine in new}


@pytest.mark.long
def test_machines_restart_one_after_the_other_under_plain_streams(stage: Stage) -> None:
    for machine in stage.ring:
        stage.head()
        others = [other.index for other in stage.ring if other is not machine]
        listeners = [stage.plain(number, others[number % 2]) for number in range(STREAMS)]
        machine.wait_for(lambda of=listeners: all(len(each.times) > 5 for each in of), "streams")
        at = time.monotonic()
        machine.stop()
        away = [stage.plain(number, place) for number, place in enumerate(others)]
        machine.start()
        stage.head()
        back = [stage.plain(number, place) for number, place in enumerate(others)]
        assert [listener.result() for listener in listeners] == stage.expected
        for listener in (*away, *back):
            assert listener.result() in stage.expected[:2]
        longest = max(each.silence(at, each.times[-1]) for each in listeners)
        _within(f"{machine.name} is restarted", longest, BUSY * WITHIN)


@pytest.mark.long
def test_the_place_of_the_head_moves_under_streams(stage: Stage) -> None:
    ring = stage.ring
    head = stage.head()
    listeners = [stage.plain(number, number % 3) for number in range(STREAMS)]
    for step in (1, 2, 3):
        to = ring[(head.index + step) % 3] if step < 3 else head
        before = [len(each.times) for each in listeners]
        now = head_of(ring, stage.guest, stage.key)
        moved = now.run("head", "move", to.name, "--config", now.config)
        assert moved.code == 0, moved.err
        to.wait_for(
            lambda before=before: all(
                each.over or len(each.times) > count
                for each, count in zip(listeners, before, strict=True)
            ),
            "tokens after the move",
        )
        assert head_of(ring, stage.guest, stage.key) is to
    assert [listener.result() for listener in listeners] == stage.expected


@pytest.mark.long
def test_the_survivor_of_two_takes_the_place_of_the_head_by_hand() -> None:
    with machines(2, guests=1) as (desk, shelf, guest):
        ring = (desk, shelf)
        key = begin(ring)
        asked = body(0, 60)
        expected = alone(ring, guest, key, asked)
        refused = shelf.run("head", "take", "--config", shelf.config)
        assert refused.code == 2
        assert "sees the head" in refused.err
        desk.kill()
        take = "head", "take", "--yes", "--config", shelf.config
        shelf.wait_for(lambda: shelf.run(*take).code == 0, "head")
        shelf.wait_for(lambda: head_of(ring, guest, key) is shelf, "answer")
        assert alone(ring, guest, key, asked, 1) == expected
        desk.start()
        desk.wait_for_log("its API passes requests on to shelf")
        assert alone(ring, guest, key, asked, 0) == expected


@pytest.mark.long
def test_two_machines_and_a_witness_go_on_by_themselves() -> None:
    with machines(3, guests=1, witnesses=1) as (desk, shelf, witness, guest):
        stage = _stage((desk, shelf, witness), guest)
        for head, other in ((desk, shelf), (shelf, desk)):
            assert stage.head() is head
            listeners = [stage.streamed(number, number % 3) for number in range(STREAMS)]
            plainly = stage.plain(0, other.index), stage.plain(1, witness.index)
            head.wait_for(lambda of=listeners: all(len(each.times) > 20 for each in of), "streams")
            at = time.monotonic()
            head.kill()
            assert [listener.result() for listener in listeners] == stage.expected
            assert [listener.result() for listener in plainly] == stage.expected[:2]
            longest = max(each.silence(at, each.times[-1]) for each in listeners)
            _within(f"{head.name} of two and a witness is killed", longest, BUSY * WITHIN)
            head.start()
            assert stage.head() is other
