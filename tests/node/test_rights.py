"""Members with other rights than the usual: witnesses, and ranks that may see no texts."""

from __future__ import annotations

import pytest
from sealring_protocol.control.head.attendance import GATHER_SECONDS, STEADY_SECONDS
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.diagnosis import Cause
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Rights

from tests.node.links import links_of
from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import WALL, make_roster

LAYERS = 6
WITNESS, BLIND = Rights.WITNESS, Rights(0)
ANSWERED = (4, 5, 6)


def cluster_with(rights: dict[int, Rights], world: int = 3, seed: int = 1, **more) -> Cluster:
    return Cluster(world, seed, rosters=[make_roster(world, rights=rights)] * world, **more)


def serves(cluster: Cluster, ring: tuple[int, ...]) -> bool:
    """Whether *ring* serves."""
    node = cluster.head.node
    return node.serving and node.standing().ring == ring


def answers(cluster: Cluster) -> None:
    """The head answers a request as a ring of any ranks would."""
    uid = cluster.submit(Request(ANSWERED, 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.LENGTH
    assert cluster.tokens[uid] == reference(ANSWERED, 9, LAYERS)


def bring(cluster: Cluster, **terms) -> None:
    """The head's owner brings the next roster."""
    serial = cluster.head.node.roster.roster.serial + 1
    cluster.head.node.bring_roster(make_roster(3, serial, **terms).encode(), cluster.now, WALL)
    cluster.settle(cluster.head)


# ------------------------------------------------------------------------ witnesses


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("right", [WITNESS, WITNESS | Rights.TEXT])
def test_a_ring_is_of_all_but_the_witness(at, least, right):
    cluster = cluster_with({at: right}, least=least)
    others = tuple(rank for rank in range(3) if rank != at)
    cluster.run_until(lambda: serves(cluster, others))
    assert cluster.now < STEADY_SECONDS
    answers(cluster)
    cluster.run_for(2 * GATHER_SECONDS)
    assert serves(cluster, others)
    standing = cluster.head.node.standing()
    assert (standing.outside, standing.needs_all) == ({}, "")
    assert cluster.warnings == []
    purposes = {purpose for _, purpose in links_of(cluster, at)}
    assert purposes == {Purpose.CONTROL}
    assert (at, Purpose.CONTROL) in links_of(cluster, 0)


def test_a_witness_does_its_part_while_it_is_linked_to_the_head():
    cluster = cluster_with({2: WITNESS}, least=1)
    cluster.run_until(lambda: serves(cluster, (0, 1)))
    witness = cluster.hosts["host2"].node
    assert (witness.serving, witness.obstacles(cluster.now)) == (True, [])
    assert witness.standing().state == "witness"
    told = [text for _, host, text in cluster.notes if host == "host2"]
    assert "the head (node0) is here" in told
    assert witness.ring == (0, 1)
    cluster.kill_engine(cluster.hosts["host2"], back_after=1000)
    cluster.run_for(20.0)
    assert (witness.serving, witness.obstacles(cluster.now)) == (True, [])
    cluster.crash(cluster.head)
    cluster.run_for(20.0)
    assert witness.serving  # with its vote node1 is the head
    assert witness.roster.roster.members[0].name == "node1"
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert not witness.serving
    (why, *_) = witness.obstacles(cluster.now)
    assert (why.cause, why.rank) == (Cause.UNREACHABLE, 0)


@pytest.mark.parametrize("least", [0, 1])
def test_nobody_waits_for_a_witness_that_is_away(least):
    cluster = cluster_with({1: WITNESS}, least=least)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_until(lambda: serves(cluster, (0, 2)))
    assert cluster.now < STEADY_SECONDS
    cluster.run_for(60.0)
    assert cluster.head.node.obstacles(cluster.now) == []
    told = [text for _, host, text in cluster.notes if host == "host0" and "node1" in text]
    assert not any("not in the ring: " in text for text in told)


def test_a_witness_that_goes_and_comes_disturbs_nobody():
    cluster = cluster_with({2: WITNESS}, least=1)
    cluster.run_until(lambda: serves(cluster, (0, 1)))
    epoch = cluster.head.node.standing().epoch
    uid = cluster.submit(Request(ANSWERED, 300))
    for _ in range(3):
        cluster.crash(cluster.hosts["host2"])
        cluster.run_for(2.0)
        cluster.boot(2)
        cluster.run_for(2.0)
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference(ANSWERED, 300, LAYERS)
    assert cluster.head.node.standing().epoch == epoch


def test_a_member_after_a_witness_comes_to_a_ring_that_serves():
    cluster = cluster_with({1: WITNESS}, least=1)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_until(lambda: serves(cluster, (0,)))
    cluster.boot(2)
    cluster.run_until(lambda: serves(cluster, (0, 2)))
    answers(cluster)


def test_a_witness_with_another_model_is_not_refused():
    cluster = cluster_with({2: WITNESS}, models=[b"m" * 32, b"m" * 32, b"x" * 32])
    cluster.run_until(lambda: serves(cluster, (0, 1)))
    cluster.run_for(20.0)
    assert cluster.warnings == []
    assert (2, Purpose.CONTROL) in links_of(cluster, 0)


@pytest.mark.parametrize("least", rows([0, 1], 0))
def test_a_rank_becomes_a_witness_and_a_rank_again_while_requests_go_on(least):
    cluster = Cluster(3, 1, least=least)
    cluster.run_until(lambda: cluster.ready)
    lengths = {cluster.submit(Request((4, 5, 6 + n), 900 + n)): n for n in range(4)}
    cluster.run_for(0.3)
    bring(cluster, rights={1: WITNESS})
    cluster.run_until(lambda: serves(cluster, (0, 2)))
    cluster.run_for(0.3)
    assert not cluster.done
    bring(cluster)
    cluster.run_until(lambda: serves(cluster, (0, 1, 2)))
    cluster.run_until(lambda: cluster.all_done, 600)
    for uid, n in lengths.items():
        assert cluster.done[uid].reason is FinishReason.LENGTH
        assert cluster.tokens[uid] == reference((4, 5, 6 + n), 900 + n, LAYERS)


def test_the_witness_of_a_ring_of_two_leaves_the_head_alone():
    cluster = cluster_with({1: WITNESS}, world=2)
    cluster.run_until(lambda: serves(cluster, (0,)))
    answers(cluster)


@pytest.mark.parametrize("purpose", [Purpose.STEP, Purpose.TUNNEL])
def test_a_member_that_links_to_a_witness_for_steps_changes_nothing(purpose):
    cluster = cluster_with({2: WITNESS})
    cluster.run_until(lambda: serves(cluster, (0, 1)))
    hostile, epoch = cluster.hosts["host1"], cluster.head.node.standing().epoch
    hostile.node._links.want(2, purpose, cluster.now)
    cluster.settle(hostile)
    cluster.run_for(5.0)
    assert (1, purpose) in links_of(cluster, 2)
    answers(cluster)
    assert cluster.head.node.standing().epoch == epoch


def test_what_a_witness_says_of_its_engine_and_its_weights_changes_nothing():
    cluster = cluster_with({2: WITNESS}, splits=2, strategy=Strategy.TENSOR)
    cluster.run_until(lambda: serves(cluster, (0, 1)))
    liar, head = cluster.hosts["host2"], cluster.head.node
    for second in range(60):
        liar.node.engine_starved(float(second), cluster.now)
        liar.node.fetched(1, 2, cluster.now)
        cluster.settle(liar)
        cluster.run_for(1.0)
    told = [link for rank, _, link in cluster.hosts["host1"].node.links() if rank == 0]
    assert {link.keepalive.peer_starved for link in told} <= {0.0, None}, "it lends no time"
    assert head.facts(cluster.now).progress[2].fetch_bytes == 2
    assert not head.facts(cluster.now).starved
    assert not any("starves" in text for _, who, text in cluster.notes if who == "host0")
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert {each.rank for each in head.obstacles(cluster.now)} == {1}


# ----------------------------------------------------------- ranks that see no texts


def test_a_rank_that_sees_no_texts_is_in_pipelines():
    cluster = cluster_with({1: BLIND}, splits=3, strategy=Strategy.AUTO)
    cluster.run_until(lambda: serves(cluster, (0, 1, 2)))
    plan = cluster.head.node.standing().plan
    assert plan.strategy is Strategy.PIPELINE
    assert "the roster lets node1 see no texts" in plan.reason
    answers(cluster)


def test_who_asks_for_tensor_parallelism_with_it_is_told():
    cluster = cluster_with({1: BLIND, 2: BLIND}, splits=3, strategy=Strategy.TENSOR)
    cluster.run_for(20)
    assert not cluster.ready
    told = "it gives every rank the tokens, and the roster lets node1 and node2 see no texts"
    assert any("no plan: " in text and told in text for _, _, text in cluster.notes)


def test_a_roster_that_takes_the_right_ends_tensor_parallelism():
    cluster = Cluster(3, 1, splits=3)
    cluster.run_until(lambda: serves(cluster, (0, 1, 2)))
    assert cluster.head.node.standing().plan.strategy is Strategy.TENSOR
    bring(cluster, rights={2: BLIND})
    cluster.run_for(20.0)
    assert not cluster.head.node.serving
    (why,) = cluster.head.node.obstacles(cluster.now)
    assert "the roster lets node2 see no texts" in why.what
    bring(cluster)
    cluster.run_until(lambda: serves(cluster, (0, 1, 2)))
    answers(cluster)
