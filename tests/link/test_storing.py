"""A link that waits until its owner has stored the roster that the peer brought."""

from __future__ import annotations

import pytest
from sealring_protocol.errors import CloseCode
from sealring_protocol.link import RosterReceived

from tests.driver import End
from tests.link.pair import LinkClosed, Pair, config, messages
from tests.sim.rosters import make_roster

CODE, WHY = CloseCode.SHUTDOWN, "the disk is full"


def storing(which: str) -> tuple[Pair, End, End]:
    """Two ends, of which *which*, ``a`` (it dialed) or ``b``, has yet to store the other's roster:
    that end, and its peer."""
    serials = (1, 2) if which == "a" else (2, 1)
    pair = Pair(*(config(1 - at, make_roster(3, serial)) for at, serial in enumerate(serials)))
    pair.a.stores = pair.b.stores = False
    pair.run()
    waits, peer = (pair.a, pair.b) if which == "a" else (pair.b, pair.a)
    (received,) = waits.events
    assert isinstance(received, RosterReceived)
    assert received.roster.roster.serial == 2
    assert not waits.link.established
    return pair, waits, peer


def assert_closed(pair: Pair, end: End, told: End) -> None:
    """*end* closed the link, *told* knows why, and both are done."""
    pair.run()
    assert messages(told) == [LinkClosed(CODE, WHY)]
    for each in (end, told):
        assert each.error is None
        assert not each.link.established
        assert each.link.next_timeout() is None


@pytest.mark.parametrize("which", ["a", "b"])
def test_who_waits_for_its_disk_may_close(which):
    pair, waits, peer = storing(which)
    waits.link.close(CODE, WHY)
    assert_closed(pair, waits, peer)


def test_who_was_dialed_may_refuse_while_it_waits_for_its_disk():
    pair, waits, peer = storing("b")
    waits.link.refuse(CODE, WHY)
    assert_closed(pair, waits, peer)


def test_the_peer_of_who_was_dialed_may_close_meanwhile():
    pair, waits, peer = storing("b")
    peer.link.close(CODE, WHY)
    assert_closed(pair, peer, waits)
