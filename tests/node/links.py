"""The links that the nodes of a simulated cluster have, and those that they should have."""

from __future__ import annotations

from sealring_protocol.security.roles import Purpose

from tests.sim.cluster import Cluster


def links_of(cluster: Cluster, index: int) -> list[tuple[int, Purpose]]:
    node = cluster.hosts[f"host{index}"].node
    return sorted((rank, purpose) for rank, purpose, _ in node.links())


def ring_links(rank: int, world: int) -> list[tuple[int, Purpose]]:
    peers = {(rank + 1) % world, (rank - 1) % world} - {rank}
    steps = {(peer, Purpose.STEP) for peer in peers}
    others = range(1, world) if rank == 0 else [0]
    return sorted(steps | {(peer, Purpose.CONTROL) for peer in others})
