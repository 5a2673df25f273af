"""A change of the coordinator in a whole cluster: who is there learns it at once, who was away from
any member, and requests go on."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.links.current_roster import Arrival, CurrentRoster
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.roster import SERIALS, SignedRoster, name_spare, sign_roster

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import (
    COORDINATOR,
    NEXT,
    THIEF,
    WALL,
    appointed,
    make_roster,
    signer,
)

PLAIN = make_roster(3)
NAMED = appointed(make_roster(3), at=2)
CHANGED = appointed(make_roster(3), 1, by=NEXT)


def serials(cluster: Cluster) -> list[int]:
    return [host.node.roster.roster.serial for host in cluster.hosts.values() if host.alive]


def bring(cluster: Cluster, index: int, roster: SignedRoster) -> None:
    """The owner of *index* installs *roster* there."""
    host = cluster.hosts[f"host{index}"]
    host.node.bring_roster(roster.encode(), cluster.now, WALL)
    cluster.settle(host)


@pytest.mark.parametrize("held", [PLAIN, NAMED], ids=["before the naming", "after it"])
def test_a_member_that_was_away_learns_the_change_from_another(held):
    """The one that it learns it from was no part of the change either."""
    cluster = Cluster(3, 1, rosters=[held] * 3)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(3.0)
    if held is PLAIN:
        bring(cluster, 0, NAMED)
        cluster.run_for(3.0)
    uid = cluster.submit(Request((4, 5, 6), 9))
    bring(cluster, 0, CHANGED)
    cluster.run_until(lambda: serials(cluster) == [SERIALS + 1] * 2)

    cluster.crash(cluster.hosts["host0"])  # who installed it
    cluster.boot(2)  # with the roster that it had
    cluster.run_until(lambda: cluster.hosts["host2"].node.roster == CHANGED)
    cluster.rosters[0] = CHANGED
    cluster.notes.clear()
    cluster.boot(0)
    cluster.run_until(lambda: cluster.ready)
    assert serials(cluster) == [SERIALS + 1] * 3
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: uid in cluster.done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)


def test_requests_go_on_through_the_naming_and_the_change():
    cluster = Cluster(3, 2, rosters=[PLAIN] * 3)
    cluster.run_until(lambda: cluster.ready)
    epoch = cluster.head.node.standing().epoch
    uid = cluster.submit(Request((4, 5, 6), 600))
    for index, roster in ((0, NAMED), (1, CHANGED)):
        cluster.run_for(0.3)
        bring(cluster, index, roster)
    cluster.run_until(lambda: serials(cluster) == [SERIALS + 1] * 3)
    assert uid not in cluster.done
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.LENGTH
    assert cluster.tokens[uid] == reference((4, 5, 6), 600, 6)
    assert cluster.head.node.standing().epoch == epoch  # members, ranks and policy are the same


def test_the_change_wins_over_the_former_key_whoever_was_first():
    """The thief of the former key gives one member a roster of the highest serial that it can
    sign, before the change; and others his, after it."""
    last = appointed(make_roster(3, inner_seal=False), at=SERIALS - 1)
    cluster = Cluster(3, 3, rosters=[NAMED, NAMED, last])
    cluster.run_until(lambda: serials(cluster) == [SERIALS - 1] * 3)
    bring(cluster, 1, CHANGED)
    cluster.run_until(lambda: serials(cluster) == [SERIALS + 1] * 3)
    highest = make_roster(3, serial=2**64 - 1)
    own = name_spare(b"c" * 32, 9 * SERIALS, COORDINATOR, THIEF)
    renamed = attrs.evolve(highest.roster, serial=9 * SERIALS, appointment=own)
    for stolen, why in (
        (last, "is not newer"),
        (highest, "does not name the spare coordinator"),
        (sign_roster(renamed, COORDINATOR), "names another spare coordinator"),
    ):
        with pytest.raises(LocalProtocolError, match=why):
            bring(cluster, 0, stolen)
        cluster.crash(cluster.hosts["host2"])
        cluster.rosters[2] = stolen  # a machine that he has, too
        cluster.boot(2)
        cluster.run_for(8.0)
        assert serials(cluster)[:2] == [SERIALS + 1] * 2


def test_two_changes_with_one_number_do_not_meet_until_the_next():
    twin = appointed(make_roster(3), 1, at=7, by=THIEF)
    cluster = Cluster(3, 4, rosters=[CHANGED, CHANGED, twin])
    cluster.run_for(5.0)
    assert not cluster.ready
    text = "the spare has appointed two coordinators with the number 1"
    assert any(text in note for _, _, note in cluster.notes)
    with pytest.raises(LocalProtocolError, match=f"{text}: change the coordinator again$"):
        bring(cluster, 0, twin)
    bring(cluster, 0, appointed(make_roster(3), 2, by=COORDINATOR))
    cluster.run_until(lambda: cluster.ready and serials(cluster) == [2 * SERIALS + 1] * 3)


def test_a_roster_that_was_on_its_way_when_the_spare_was_named():
    """It was newer than the roster in force as its handshake began, and does not name the spare."""
    held = CurrentRoster(HandshakeConfig(signer(0).public_key, PLAIN, COORDINATOR.public_key, 1))
    assert held.came(1, NAMED) is Arrival.TO_STORE
    assert held.stored(1)
    assert held.came(2, make_roster(3, serial=3)) is Arrival.STALE
    assert held.came(3, CHANGED) is Arrival.TO_STORE
