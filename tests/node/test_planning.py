"""Steps are planned when the caller says so, and never by looking for the next event."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Step, StepDone
from sealring_protocol.control.effects import Level, Note, ToEngine
from sealring_protocol.control.requests import Request, SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.links.logs import AT_ONCE

from tests.driver import events_of
from tests.sim.cluster import Cluster
from tests.sim.hosts import Host


class Watched(Cluster):
    """Keeps what the head's engine is given: one list for each time that events were taken."""

    def __init__(self, *arguments, **named):
        self.given: list[list[type]] = []
        super().__init__(*arguments, **named)

    def _carry_out(self, host: Host) -> None:
        if host.name == "host0":
            self.given.append([])
        super()._carry_out(host)

    def _on(self, host: Host, event) -> None:
        if host.name == "host0" and isinstance(event, ToEngine):
            self.given[-1].append(type(event.message))
        super()._on(host, event)


def serving(world: int) -> Watched:
    cluster = Watched(world, 1, scheduler=SchedulerConfig(groups=2, rows=1))
    cluster.run_until(lambda: cluster.ready)
    return cluster


def test_the_engine_has_what_came_back_before_more_is_planned():
    cluster = serving(2)
    for first in (1, 2, 3):
        cluster.submit(Request((first,), 8))
    cluster.run_until(lambda: cluster.all_done)
    with_answer = [at for at, given in enumerate(cluster.given) if StepDone in given]
    assert with_answer
    assert not any(Step in cluster.given[at] for at in with_answer)
    assert any(Step in cluster.given[at + 1] for at in with_answer)


def test_looking_for_events_plans_nothing():
    cluster = serving(2)
    cluster.submit(Request((1,), 8))
    node = cluster.head.node
    plans = 0

    def plan(now: float) -> bool:
        nonlocal plans
        deadline = node.next_timeout()
        assert [node.next_event() for _ in range(3)] == [None] * 3
        assert node.next_timeout() == deadline
        planned = type(node).plan_steps(node, now)
        plans += planned
        return planned

    node.plan_steps = plan
    cluster.run_until(lambda: cluster.all_done)
    assert plans


def test_a_caller_that_never_plans_is_served_all_the_same():
    cluster = serving(2)
    cluster.head.node.plan_steps = lambda now: False
    cluster.submit(Request((1,), 8))
    cluster.run_until(lambda: cluster.all_done)


def test_only_the_head_plans():
    cluster = serving(2)
    assert not cluster.hosts["host1"].node.plan_steps(cluster.now)
    with pytest.raises(LocalProtocolError):
        cluster.hosts["host1"].node.submit(Request((1,), 8), cluster.now)


def test_a_line_is_bounded_by_when_it_is_said_and_not_by_when_it_is_taken():
    cluster = Cluster(2, 1)
    node = cluster.head.node
    for n in range(AT_ONCE + 3):
        node.engine_lost("again", float(n) / 1000)
    said = [event for event in events_of(node) if isinstance(event, Note)]
    lines = [note.level for note in said if "engine is gone" in note.text]
    assert lines == [Level.WARNING] * AT_ONCE + [Level.DEBUG] * 3
