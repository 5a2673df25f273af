"""When a node wants to be called: never later than it has something to do, whatever came before."""

from __future__ import annotations

import pytest
from sealring_protocol.control.deadlines import earliest
from sealring_protocol.control.requests import Request
from sealring_protocol.limits import PING_INTERVAL, PING_TIMEOUT
from sealring_protocol.node import Node

from tests.sim.cluster import Cluster


def due(node: Node) -> float | None:
    """The first deadline of any link and dial of *node*, each asked anew."""
    links = node._links
    driven = [c.driven for c in links._connections.values()]
    each = [link.next_timeout() for link in driven if link is not None]
    dials = None if links.closed else links._dialer.next_timeout()
    return earliest(*each, dials, links.refusals.next_timeout())


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_the_deadlines_of_links_is_never_too_late(seed: int):
    cluster = Cluster(3, seed)

    def check() -> bool:
        for host in cluster.hosts.values():
            truth, kept = due(host.node), host.node._links.next_timeout()
            assert truth is None or (kept is not None and kept <= truth)
        return False

    def checked(seconds: float) -> None:
        until = cluster.now + seconds
        while cluster.step(until):
            check()
        cluster.now = until

    checked(1.0)
    cluster.submit(Request((1, 2, 3), 10))
    checked(3.0)
    host = cluster.hosts["host1"]
    cluster.network.cut(next(iter(host.wires.values())))
    checked(3.0)
    cluster.crash(cluster.hosts["host2"])
    checked(PING_TIMEOUT)
    cluster.boot(2)
    checked(5.0)
    assert cluster.ready


def test_an_idle_ring_is_called_for_its_pings_and_not_much_more():
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    cluster.run_for(5.0)
    calls = 0
    node = cluster.head.node

    def count(now: float) -> None:
        nonlocal calls
        calls += 1
        type(node).handle_timeout(node, now)

    node.handle_timeout = count
    cluster.run_for(20 * PING_INTERVAL)
    assert calls < 20 * PING_INTERVAL + 4 * 20
