"""Tensor parallelism at the worst moment: links, orders and engines that cross, and members that
lie. Nothing hangs, no innocent link dies, and no engine is asked for what it cannot do."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request

from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import make_roster

LAYERS = 6
PROMPT = (5, 6, 7)


def ready(world=2, seed=1, **options):
    made = Cluster(world, seed, **{"splits": world, **options})
    made.run_until(lambda: made.ready)
    return made


def ask(made, tokens=12, prompt=PROMPT):
    return made.submit(Request(prompt, tokens, frozenset(), Row(0)))


def serve(made, tokens=12):
    uid = ask(made, tokens)
    made.run_until(lambda: made.all_done)
    assert made.done[uid].reason is FinishReason.LENGTH
    assert made.tokens[uid] == reference(PROMPT, tokens, LAYERS)


def strategy(made):
    return made.head.node.standing().plan.strategy


# ------------------------------------------------------------------- another ring


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("seed", rows(range(3), 0))
def test_a_machine_more_takes_another_group_of_other_processes(busy, seed):
    """The members of the old ring may be inside a sum, where no message reaches them."""
    made = ready(2, seed, splits=6, rosters=[make_roster(2)] * 2)
    if busy:
        ask(made, 3000)
    made.run_for(0.05)
    engines = [host.engine for host in made.hosts.values()]
    made.rosters.append(make_roster(3, serial=2))
    made.models.append(b"m" * 32)
    made.boot(2)
    made.run_until(lambda: sum("the ring is ready" in text for _, _, text in made.notes) == 2)
    assert made.head.node.world == 3
    assert strategy(made) is Strategy.TENSOR
    assert not any(host.engine in engines for host in made.hosts.values())
    assert all(done.reason is FinishReason.FAILED for done in made.done.values())
    serve(made)


# ---------------------------------------------------------------- while it comes up


@pytest.mark.parametrize("seed", range(8))
def test_a_node_that_begins_anew_while_a_collective_comes_up_is_no_reason_against_it(seed):
    made = Cluster(3, seed, splits=3)
    made.run_until(lambda: any("epoch 1: tensor" in text for _, _, text in made.notes))
    made.run_for(made.random.random() * 0.02)
    made.crash(made.hosts["host2"])
    made.after(0.5, lambda: made.boot(2))
    made.run_until(
        lambda: any("the ring is ready" in text for at, _, text in made.notes if at > 0.7)
    )
    assert strategy(made) is Strategy.TENSOR
    serve(made)
