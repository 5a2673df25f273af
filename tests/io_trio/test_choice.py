"""The head takes itself alone where that is faster: whole clusters in virtual time, at whose head
the daemon's choice watches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import attrs
import pytest
from sealring.files.config import Config
from sealring.generation.status import TakenRing, describe_choice
from sealring.generation.trace import Trace, Tracer
from sealring.service.choice import PaceMeter, RingChoice
from sealring_model import tiny
from sealring_protocol.codec.messages import Bootstrap, Ping
from sealring_protocol.control.effects import StepTiming, ToEngine
from sealring_protocol.control.requests import Request, RequestDone, TokenOut
from sealring_protocol.node import Node

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.hosts import Host

LAYERS = 6
PASS, HOP = 0.02, 0.3
"""Seconds that an engine takes for a step, whatever layers it has, and that bytes take between two
hosts at most. So a token takes 60 ms and two hops in a ring of two, and 20 ms and a turn alone."""


@attrs.define
class _Runtime:
    """What the choice needs of a runtime, on the cluster's head."""

    cluster: Cluster
    timings: deque[StepTiming] = attrs.field(factory=lambda: deque(maxlen=4096))

    @property
    def node(self) -> Node:
        return self.cluster.head.node

    def enter(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments, self.cluster.now)
        self.cluster.settle(self.cluster.head)

    def spawn(self, task: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        def run() -> None:
            with pytest.raises(StopIteration):  # it waits for nothing
                task(*arguments).send(None)

        self.cluster.after(0.0, run)


class Home(Cluster):
    """A cluster whose head chooses, as a config with *keys* allows."""

    def __init__(self, world: int = 2, least: int = 1, **keys: Any) -> None:
        self.runtime: _Runtime | None = None
        super().__init__(world, 1, least=least, delay=HOP, pace=lambda _: PASS)
        self.runtime = _Runtime(self)
        self.tracer, self.model = Tracer(), tiny.path()
        self.choice: TakenRing | None = None
        self._last: dict[int, float] = {}
        self._traces: dict[int, Trace] = {}
        self._asked: dict[int, tuple[tuple[int, ...], int]] = {}
        RingChoice(self, Config.model_construct(**keys))  # type: ignore[arg-type]
        self.run_until(lambda: self.head.node.serving)

    def _on(self, host: Host, event: Any) -> None:
        super()._on(host, event)
        if host is not self.head or self.runtime is None:
            return
        match event:
            case ToEngine(Bootstrap()):
                self.runtime.timings.clear()
            case StepTiming():
                self.runtime.timings.append(event)
                for observer in self.tracer.observers:
                    observer.step(event)
            case TokenOut(uid):
                trace, before = self._traces[uid], self._last.get(uid)
                self._last[uid] = self.now
                self.tracer.token(trace, before, self.now)
            case RequestDone(uid):
                self.tracer.leave(uid)
                for observer in self.tracer.observers:
                    observer.over(self._traces[uid])

    def answer(self, count: int = 1, tokens: int = 130) -> float:
        """Have *count* requests answered at once; how many tokens came in a second."""
        began = self.now
        for n in range(count):
            self.ask((7, n), tokens)
        self.finish()
        return count * tokens / (self.now - began)

    def ask(self, prompt: tuple[int, ...], tokens: int) -> None:
        """Have a request answered."""
        uid = self.submit(Request(prompt, tokens))
        self._asked[uid] = prompt, tokens
        trace = self._traces[uid] = Trace(str(uid), "chat", "", 0.0)
        self.tracer.follow(uid, trace)

    def finish(self) -> None:
        """Wait for all answers; each is what it ought to be."""
        self.run_until(lambda: self.all_done, 1200)
        for uid, (prompt, tokens) in self._asked.items():
            assert self.tokens[uid] == reference(prompt, tokens, LAYERS)
        self._asked.clear()

    def rest(self) -> tuple[int, ...]:
        """Let the ring be idle for a while; its ranks then."""
        self.run_for(30.0)
        assert self.head.node.serving
        return self.head.node.ring

    @property
    def told(self) -> str:
        """What the head says of its choice."""
        told = describe_choice(self.choice, self.head.node.standing())
        return str(told["text"]) if told else ""


def test_the_head_takes_itself_and_says_what_both_gave():
    home = Home()
    before = home.answer()
    assert "taken at the next pause between requests" in home.told
    assert home.rest() == (0,)
    assert home.told == home.head.node.standing().preference.why  # it is taken
    after = home.answer()
    assert after > 2 * before
    assert home.rest() == (0,)
    assert "node0 alone gives" in home.told
    assert ", measured, and the ring of 2 gave" in home.told
    gives, gave = (float(word) for word in home.told.split() if word[0].isdigit() and len(word) > 1)
    assert gives == pytest.approx(after, rel=0.1)
    assert gave == pytest.approx(before, rel=0.1)
    out = home.head.node.standing().outside[1]
    assert out.chosen
    assert home.told in out.why
    facts = describe_choice(home.choice, home.head.node.standing())
    assert facts is not None
    assert facts["compared"] == [0, 1]
    assert len(facts["paces"]["decode_us"]["1"]) == 2
    assert len(facts["bounds"]) == 3


def test_a_head_that_is_slower_alone_than_was_thought_goes_back_and_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sealring.node")
    home = Home()
    home.answer()
    assert home.rest() == (0,)
    home.pace = lambda _: PASS * (1 if len(home.head.node.ring) > 1 else 20)
    home.answer(tokens=260)
    assert home.rest() == (0, 1)
    taken, back, again = [record.getMessage() for record in caplog.records]
    assert taken.endswith("taken at the next pause between requests")
    assert back.endswith("all machines serve again")
    assert again.endswith("it was slower when it was tried")
    for _ in range(3):
        home.answer(tokens=260)
        assert home.rest() == (0, 1)
    assert len(caplog.records) == 3  # and nothing is said twice


def test_a_newcomer_brings_all_in_and_they_are_compared_again():
    home = Home(3)
    home.crash(home.hosts["host2"])
    home.run_until(lambda: home.head.node.serving and home.head.node.ring == (0, 1))
    home.answer()
    assert home.rest() == (0,)
    home.boot(2)
    assert home.rest() == (0, 1, 2)
    assert home.told == ""
    home.answer()
    assert home.rest() == (0,)
    assert "the ring of 3 gave" in home.told
    home.crash(home.hosts["host2"])
    home.boot(2)
    assert home.rest() == (0,)


@pytest.mark.parametrize(
    ("keys", "least", "why"),
    [
        ({"strategy": "pp"}, 1, "strategy = 'pp' asks for this ring"),
        ({"layers": (3, 3)}, 1, "the chosen layers ask for this ring"),
        ({"min_ranks": 2}, 2, "min_ranks = 2 asks for more than one machine"),
        ({"min_ranks": 0}, 0, "min_ranks = 0 asks for more than one machine"),
    ],
)
def test_who_asks_for_all_machines_keeps_them(keys: dict[str, Any], least: int, why: str):
    home = Home(least=least, **keys)
    home.answer()
    assert home.rest() == (0, 1)
    assert home.told.endswith(f"(estimate); but {why}")


def test_the_head_alone_has_to_be_faster_for_as_many_streams_as_are_asked_for():
    """Eight rows take as long as one here, so each of eight streams has 1/0.02 of a second alone,
    where a ring of two has two groups on the way at once."""
    home = Home(streams=8)
    home.answer()
    assert home.rest() == (0, 1)
    assert home.told == ""  # eight at once were never seen
    home.answer(8)
    assert home.rest() == (0,)
    assert "tokens/s for 8 streams" in home.told


def test_a_head_that_cannot_load_the_rest_of_the_model_says_so():
    home = Home()
    home.answer()
    home.head.engine.unloadable = "it has no such tensor"
    home.run_until(lambda: home.head.node.ring == (0,), 30)
    home.run_until(lambda: home.head.node.ring == (0, 1), 30)
    home.head.engine.unloadable = ""
    assert home.rest() == (0, 1)
    assert home.told.endswith("; but it failed: it has no such tensor")
    home.answer()
    assert home.rest() == (0, 1)
    assert home.told.endswith("; but it failed when it was tried: it has no such tensor")


def test_a_member_that_was_slow_for_a_while_is_not_left_out_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sealring.service.choice.REST", 200)
    caplog.set_level(logging.INFO, "sealring.node")
    home = Home()
    home.slower = {1: 20.0}  # something else runs there
    home.pace = lambda message: (
        0.0 if isinstance(message, Ping) else PASS * (1 if len(home.head.node.ring) > 1 else 30)
    )
    home.answer()
    assert home.rest() == (0,)
    home.slower = {}  # the ring of all would be faster again
    home.answer()
    assert home.rest() == (0,)
    home.answer(tokens=200)
    assert home.rest() == (0, 1)
    rings = []
    for _ in range(4):
        home.answer()
        rings.append(home.rest())
    assert rings == [(0,), *3 * [(0, 1)]]
    texts = [record.getMessage() for record in caplog.records]
    assert texts[2] == "all machines serve again, to be compared with the head alone anew"
    assert texts[4].endswith("all machines serve again")


def test_what_becomes_untrue_before_the_pause_is_not_taken():
    home = Home()
    home.ask((7,), 330)
    home.run_until(lambda: "taken at the next pause" in home.told, 600)
    home.slower = {0: 20.0}
    home.finish()
    assert "'sealring machines move node1 --rank 0'" in home.told
    assert home.rest() == (0, 1)


def test_a_client_that_takes_many_tokens_at_once_does_not_make_the_ring_look_faster():
    meter = PaceMeter(1)
    for _ in range(8):
        for seconds in [6.4, *63 * [0.0]]:
            meter.token(seconds, 1)
    assert meter.pace == pytest.approx(10.0)
