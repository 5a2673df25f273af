"""Programs of several releases in one ring: which step version it takes, and who is refused."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import Build
from sealring_protocol.control.requests import FinishReason, Request

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

ONE, TWO, THREE = Build("0.1.0", 1, 1), Build("0.2.0", 1, 2), Build("0.3.0", 2, 3)


def ring(*builds: Build) -> Cluster:
    return Cluster(len(builds), 1, builds=dict(enumerate(builds)))


def upgrade(made: Cluster, index: int, build: Build) -> None:
    """Stop node *index*, and start it as *build* half a second later."""
    made.crash(made.hosts[f"host{index}"])
    made.run_for(0.5)
    made.builds[index] = build
    made.notes.clear()
    made.boot(index)


def steps_of(made: Cluster) -> list[int]:
    """The step version in the order that the engine of each rank has."""
    orders = [made.hosts[name].engine.order for name in sorted(made.hosts)]
    return [order.steps for order in orders]


@pytest.mark.parametrize(
    ("builds", "steps"),
    [
        ((ONE, ONE), 1),
        ((ONE, TWO), 1),
        ((TWO, ONE), 1),
        ((TWO, TWO), 2),
        ((TWO, THREE), 2),
        ((THREE, TWO, THREE), 2),
        ((THREE, THREE), 3),
        ((Build(), Build("0.1.0+1a2b3c4d")), 1),
    ],
)
def test_an_epoch_has_the_newest_step_version_that_all_know(builds, steps):
    made = ring(*builds)
    made.run_until(lambda: made.ready)
    assert steps_of(made) == [steps] * len(builds)
    assert made.head.node.standing().builds == dict(enumerate(builds))


@pytest.mark.parametrize("builds", [(ONE, THREE), (THREE, ONE)])
def test_a_refused_rank_is_dialed_less_and_less_and_each_log_says_it_once(builds):
    made = ring(*builds)
    made.run_for(10.0)
    seen = [made.hosts["host0"].node.peers()[0], made.hosts["host1"].node.peers()[0]]
    assert sum(trouble.count for peer in seen for trouble in peer.incoming.values()) <= 4
    made.run_for(590.0)
    for name, what in (("host0", "incoming"), ("host1", "incoming")):
        said = [text for who, text in made.warnings if who == name]
        assert len([text for text in said if "upgrade node" in text]) == 1, said
        troubles = getattr(made.hosts[name].node.peers()[0], what)
        assert all(trouble.count <= 30 for trouble in troubles.values())


@pytest.mark.parametrize(("builds", "to_upgrade"), [((ONE, THREE), 0), ((THREE, ONE), 1)])
def test_an_upgraded_node_is_taken_in_as_soon_as_it_runs(builds, to_upgrade):
    made = ring(*builds)
    made.run_for(300.0)
    upgrade(made, to_upgrade, THREE)
    made.run_until(lambda: made.ready, seconds=2.0)


def test_a_rank_that_two_others_cannot_both_work_with_waits_for_the_upgrade_of_one():
    made = ring(Build("0.2.0", 1, 3), ONE, THREE)
    made.run_for(300.0)
    said = {text for _, text in made.warnings if "upgrade" in text}
    assert all("node2 runs sealring 0.3.0 (steps 2 to 3), node1 0.1.0 (steps 1)" in s for s in said)
    refused = next(f"host{n}" for n in (1, 2) if n not in made.head.node.standing().present)
    other = "host1" if refused == "host2" else "host2"
    upgrade(made, int(other[-1]), Build("0.2.0", 1, 3))
    made.run_until(lambda: made.ready, seconds=2.0)


@pytest.mark.slow
def test_streams_go_on_while_one_rank_after_the_other_is_upgraded():
    made = ring(ONE, ONE, ONE)
    made.run_until(lambda: made.ready)
    uid = made.submit(Request((4, 5, 6), 4000))
    for rank in (1, 2):
        made.run_for(0.5)
        upgrade(made, rank, TWO)
        made.run_until(lambda: made.ready)
    assert not made.done
    assert steps_of(made) == [1, 1, 1]  # the head is the last
    made.run_until(lambda: made.all_done)
    assert made.done[uid].reason is FinishReason.LENGTH
    assert made.tokens[uid] == reference((4, 5, 6), 4000, 6)
    upgrade(made, 0, TWO)
    made.run_until(lambda: made.ready)
    assert steps_of(made) == [2, 2, 2]
    assert not [text for _, text in made.warnings if "upgrade" in text]
