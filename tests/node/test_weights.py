"""Ranks whose models differ in their weights alone do not serve together, unless the head is told
to trust them."""

from __future__ import annotations

import pytest
from sealring_protocol.diagnosis import Cause

from tests.sim.cluster import Cluster

Pins = tuple[int, ...]

HEAD: Pins = (7, 10, 11, 12, 13, 14, 15, 16)  # of the files, the ends, six layers
UNKNOWN: Pins = (0,) * 8
OTHERS: dict[str, tuple[Pins, Pins, str]] = {
    # the pins of rank 1 and of rank 2, and why the head refuses one of them
    "one layer": ((7, *HEAD[1:7], 99), HEAD, "node1 has other weights than node0 in layer 5"),
    "the ends and some layers": (
        (7, 99, 11, 98, 97, 14, 96, 16),
        HEAD,
        "node1 has other weights than node0 in the ends, layers 1 to 2, layer 4",
    ),
    "what a rank holds of it": ((0, 0, 0, 0, 0, 14, 15, 99), HEAD, "in layer 5"),
    "the files, and nothing else is known": (
        (8, *UNKNOWN[1:]),
        HEAD,
        "node1 has other weights than node0",
    ),
    "nothing is known": (UNKNOWN, HEAD, "node1 has of the weights cannot be compared with what"),
    "it has no pins": ((), HEAD, "trust_weights = true in node0's config does without"),
}
SAME: dict[str, tuple[Pins, Pins]] = {
    "all": (HEAD, HEAD),
    "a part on each": ((0, 0, 11, 12, 0, 0, 0, 0), (0, 0, 0, 0, 13, 14, 0, 0)),
    "other files with the same tensors": ((99, *HEAD[1:]), HEAD),
    "the files alone": ((7, *UNKNOWN[1:]), HEAD),
}


def ring(pins: dict[int, Pins], seed: int, *, trust: bool = False) -> Cluster:
    cluster = Cluster(3, seed, pins=pins, trust_weights=trust)
    cluster.run_until(lambda: cluster.ready or bool(refusal(cluster)), 20)
    cluster.run_for(2)
    return cluster


def refusal(cluster: Cluster) -> str:
    """Why the head refuses a rank, in its words."""
    told = cluster.hosts["host0"].node.obstacles(cluster.now)
    return next((o.text(cluster.now) for o in told if o.cause is Cause.OTHER_MODEL), "")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("row", OTHERS)
def test_a_rank_with_other_weights_is_refused_before_anything_is_loaded(row, seed):
    first, second, why = OTHERS[row]
    cluster = ring({0: HEAD, 1: first, 2: second}, seed)
    assert why in refusal(cluster)
    assert not cluster.ready
    assert all(host.engine.order is None for host in cluster.hosts.values())


@pytest.mark.parametrize("row", SAME)
def test_ranks_with_the_same_weights_serve(row):
    first, second = SAME[row]
    assert ring({0: HEAD, 1: first, 2: second}, 1).ready


@pytest.mark.parametrize("row", OTHERS)
def test_a_head_that_trusts_weights_takes_them_with_a_warning(row):
    first, second, _ = OTHERS[row]
    cluster = ring({0: HEAD, 1: first, 2: second}, 1, trust=True)
    assert cluster.ready
    told = [text for who, text in cluster.warnings if who == "host0"]
    assert any(text.startswith("taken for trust_weights = true: ") for text in told), told


def test_a_head_without_pins_compares_none():
    assert ring({1: HEAD, 2: (99, *HEAD[1:])}, 1).ready


def test_two_ranks_that_differ_where_the_head_knows_nothing():
    parts = {1: (0, 0, 0, 0, 13, 14, 0, 0), 2: (0, 10, 0, 0, 0, 99, 0, 0)}
    cluster = ring({0: (7, 10, 11, 0, 13, 0, 0, 0), **parts}, 1)
    assert "other weights than node" in refusal(cluster)
    assert "in layer 3" in refusal(cluster)
