"""Clusters with an engine that gets hardly a processor, in virtual time: it is waited for, within
bounds, and told of; one that hangs is not."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Row, Step, StepDone
from sealring_protocol.control.deadlines import (
    LONGEST_EXTENSION,
    AnswerDeadline,
    DeadlineRule,
)
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.diagnosis import Cause, starving

from tests.node.test_waiting import heard
from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

PROMPT = (5, 6, 7)
LOOK = 0.4
STEP = 40.0
"""Seconds that a step takes of an engine that starves."""


class Machines(Cluster):
    """A cluster in which the engine of host *slow* takes *step_takes* seconds for a step. Its
    node sees that it starves, if it *starves*."""

    slow = ""
    starves = False
    starved = 0.0
    step_takes = STEP

    def _work(self, host, message):
        slow = host.name == self.slow and isinstance(message, Step | StepDone)
        host.free = max(self.now, host.free) + (self.step_takes if slow else 0.001)
        return host.free - self.now, None

    def begin(self, slow, *, starves):
        self.slow, self.starves = slow, starves
        if starves:
            self.look(self.hosts[slow])

    def look(self, host):
        self.starved += LOOK * 0.99 * bool(self.slow)
        host.node.engine_starved(self.starved, self.now)
        self.settle(host)
        self.after(LOOK, lambda: self.look(host))

    def said(self, text):
        return [(at, who) for at, who, said in self.notes if text in said]


def machines(world, strategy=Strategy.PIPELINE):
    splits = world if strategy is Strategy.TENSOR else 0
    made = Machines(world, 1, strategy=strategy, splits=splits)
    made.run_until(lambda: made.ready)
    uid = made.submit(Request(PROMPT, 60, frozenset(), Row(0)))
    made.run_until(lambda: len(made.tokens[uid]) >= 20)
    return made, uid


RINGS = [
    *((world, rank, Strategy.PIPELINE) for world, rank in [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)]),
    *((world, rank, Strategy.TENSOR) for world, rank in [(2, 0), (2, 1), (3, 1)]),
]


@pytest.mark.parametrize(("world", "rank", "strategy"), rows(RINGS, RINGS[1], RINGS[-1]))
def test_a_starved_engine_is_waited_for_and_told_of(world, rank, strategy):
    made, uid = machines(world, strategy)
    epoch = made.head.node.standing().epoch
    engines = [host.engine for host in made.hosts.values()]
    began, known = made.now, len(made.tokens[uid])
    made.begin(f"host{rank}", starves=True)
    made.run_until(lambda: len(made.tokens[uid]) >= known + 3, 8 * STEP)
    assert made.now - began > STEP
    (told,) = starving(made.head.node.facts(made.now))
    assert told.cause is Cause.STARVED
    assert told.rank == (rank or None)
    assert not made.head.node.obstacles(made.now)
    made.step_takes = 0.001
    made.run_until(lambda: made.all_done, 3 * STEP)
    made.slow = ""
    assert made.done[uid].reason is FinishReason.LENGTH
    assert made.tokens[uid] == reference(PROMPT, 60, 6)
    assert made.head.node.standing().epoch == epoch
    assert engines == [host.engine for host in made.hosts.values()]
    # The log of the machine itself, and the head's, once each.
    assert sorted(who for _, who in made.said("starves")) == sorted({"host0", f"host{rank}"})
    made.run_for(60)
    assert not starving(made.head.node.facts(made.now))


@pytest.mark.parametrize(("world", "rank"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_an_engine_that_hangs_is_replaced_as_soon_as_ever(world, rank):
    made, uid = machines(world)
    host = made.hosts[f"host{rank}"]
    engine, began = host.engine, made.now
    made.begin(host.name, starves=False)
    made.run_until(lambda: host.engine is not engine)
    assert 15 <= made.now - began < 16
    made.slow = ""
    made.run_until(lambda: made.all_done)
    assert made.tokens[uid] == reference(PROMPT, 60, 6)


def test_a_rank_that_only_claims_to_starve_holds_the_ring_for_a_bounded_time():
    made, _ = machines(2)
    liar = made.hosts["host1"]
    liar.node._brain._engine.deadline = AnswerDeadline(
        DeadlineRule(1e9, 1e9, 1.0)
    )  # it does not mind its engine
    began, made.step_takes = made.now, 1e6
    made.begin("host1", starves=False)
    claims = Random(1)

    def claim():
        liar.node.engine_starved(claims.random() * 1e6, made.now)
        made.settle(liar)
        made.after(LOOK, claim)

    claim()
    lost = "nor within 600 s more, as it starved"
    made.run_until(lambda: made.said(lost), 2 * LONGEST_EXTENSION)
    at, who = made.said(lost)[0]
    assert who == "host0"
    assert 30 + LONGEST_EXTENSION <= at - began < 31 + LONGEST_EXTENSION


def test_an_engine_that_starves_for_ever_is_replaced_in_the_end_and_the_reason_says_so():
    made, _ = machines(1)
    engine, began = made.head.engine, made.now
    made.begin("host0", starves=True)
    made.step_takes = 1e6
    made.run_until(lambda: made.head.engine is not engine, 2 * LONGEST_EXTENSION)
    assert LONGEST_EXTENSION + 15 <= made.now - began < LONGEST_EXTENSION + 16


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
def test_a_node_that_slept_looks_before_it_blames(strategy):
    made, uid = machines(2, strategy)
    epoch = made.head.node.standing().epoch
    engines = [host.engine for host in made.hosts.values()]
    node = made.head.node
    asleep = made.now + 500
    # All of this machine stood still, and its timers are the first to know.
    made.now = asleep
    node.handle_timeout(made.now)
    assert not any("did not answer" in text or "deadline" in text for _, text in made.warnings)
    assert node.standing().epoch == epoch or strategy is Strategy.PIPELINE
    assert engines
    made.settle(made.head)
    made.run_until(lambda: made.all_done)
    assert made.tokens[uid] == reference(PROMPT, 60, 6)
    assert not made.said("deadline")


def test_how_much_an_engine_starves_is_no_reason_for_having_no_epoch():
    """It is another number each second, and would be news to every rank each second."""
    made = Machines(3, 1)
    made.run_until(lambda: made.ready)
    made.crash(made.hosts["host2"])
    made.run_for(20.0)
    came = heard(made, "host1")
    made.begin("host0", starves=True)
    made.run_for(60.0)
    assert starving(made.head.node.facts(made.now))
    assert came == []


def test_a_new_link_tells_nothing_a_second_time():
    """A rank tells what its engine has starved since its node began, whatever its links do."""
    made, _ = machines(2)
    made.run_for(100)
    made.hosts["host1"].node.engine_starved(50.0, made.now)
    made.run_for(100)
    said: list[tuple[int, float, float]] = []
    made.head.node._brain.starved = lambda *told: said.append(told)
    for wire in list(made.head.wires.values()):
        made.network.cut(wire)
    made.run_for(30)
    assert made.ready
    assert said == []
