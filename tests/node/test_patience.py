"""How long a peer may be silent: little where all is calm, longer for those who pause."""

from __future__ import annotations

import pytest
from sealring_protocol.limits import LONGEST_PATIENCE, PING_TIMEOUT
from sealring_protocol.link import PAUSE_SECONDS, Patience

from tests.sim.cluster import Cluster


def test_patience_is_short_where_the_network_is_calm() -> None:
    patience = Patience()
    for _ in range(100):
        patience.measured(0.03)
    patience.paused(0.53, 1.0)
    assert patience.seconds(2.0) == PING_TIMEOUT


def test_patience_follows_slow_and_uneven_round_trips() -> None:
    patience = Patience()
    for n in range(100):
        patience.measured(0.8 if n % 2 else 1.6)
    assert 2.5 < patience.seconds(0.0) < 4.0
    for _ in range(100):
        patience.measured(20.0)
    assert patience.seconds(0.0) == LONGEST_PATIENCE


def test_a_pause_is_remembered_for_a_while() -> None:
    patience = Patience(floor=3.0)
    assert patience.seconds(0.0) == 3.0
    patience.paused(2.2, 10.0)
    patience.paused(1.0, 20.0)
    assert patience.seconds(30.0) == 4.4
    assert patience.seconds(10.0 + PAUSE_SECONDS + 1.0) == 3.0
    assert Patience(floor=20.0).seconds(0.0) == 20.0


def stall(cluster: Cluster, seconds: float) -> int:
    """How many links are lost by a stall of rank 1."""
    cluster.run_for(3.0)
    cluster.notes.clear()
    host = cluster.hosts["host1"]
    host.frozen = True
    cluster.run_for(seconds)
    host.frozen = False
    cluster.run_for(8.0)
    return sum("is gone" in text or "broke" in text for _, _, text in cluster.notes)


@pytest.mark.parametrize("seed", range(3))
def test_a_stall_costs_a_ring_its_links_once_and_not_again(seed: int) -> None:
    cluster = Cluster(2, seed)
    cluster.run_until(lambda: cluster.ready)
    assert stall(cluster, 2.0) > 0
    assert stall(cluster, 2.0) == 0
    assert stall(cluster, 2.0) == 0


def test_a_peer_that_is_frozen_for_good_is_still_lost() -> None:
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    stall(cluster, 2.0)
    assert stall(cluster, LONGEST_PATIENCE + 1.0) > 0
