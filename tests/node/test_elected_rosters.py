"""Rosters with elections, in a whole cluster: who brings one, who takes it, and who does not."""

from __future__ import annotations

import pytest
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.links.link_manager import FINISHING, HEAD_FIRST
from sealring_protocol.security.mandate import UNELECTED, Certificate, Mandate, vote_payload
from sealring_protocol.security.roster import SignedRoster

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import WALL, make_roster, signer

PLAIN = make_roster(3)
NEXT = make_roster(3, serial=2)


def elected(term: int, head: int, *voters: int, of: SignedRoster = PLAIN) -> SignedRoster:
    payload = vote_payload(of.roster.digest, term, head)
    votes = tuple((voter, signer(voter).sign(payload)) for voter in voters)
    return of.elected(Certificate(term, head, votes))


def mandates(cluster: Cluster) -> list[Mandate]:
    return [host.node.roster.roster.mandate for host in cluster.hosts.values()]


def ranks(cluster: Cluster) -> list[int]:
    return [host.node.rank for host in cluster.hosts.values()]


def bring(cluster: Cluster, index: int, roster: SignedRoster) -> None:
    host = cluster.hosts[f"host{index}"]
    host.node.bring_roster(roster.encode(), cluster.now, WALL)
    cluster.settle(host)


def test_an_election_that_one_member_holds_spreads_and_makes_the_ring_anew():
    second = elected(1, 1, 1, 2)
    cluster = Cluster(3, 1, rosters=[PLAIN, PLAIN, second])
    cluster.run_until(lambda: mandates(cluster) == [Mandate(1, 1)] * 3)
    assert ranks(cluster) == [1, 0, 2]
    cluster.ask_at(cluster.hosts["host1"])
    cluster.run_until(lambda: cluster.head.node.serving)
    assert cluster.head.node.ring == (0, 1, 2)
    assert cluster.hosts["host0"].stored[-1] == second.encode()
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: uid in cluster.done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)


def test_an_election_waits_for_no_requests_and_for_no_head():
    cluster = Cluster(3, 2)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((4, 5, 6), 2000))
    cluster.run_for(0.5)
    bring(cluster, 2, elected(1, 1, 1, 2))
    cluster.run_until(lambda: mandates(cluster) == [Mandate(1, 1)] * 3)
    assert cluster.done[uid].reason is not FinishReason.LENGTH
    assert not any(why in text for _, _, text in cluster.notes for why in (FINISHING, HEAD_FIRST))


def test_requests_go_on_where_the_head_is_confirmed():
    cluster = Cluster(3, 3)
    cluster.run_until(lambda: cluster.ready)
    epoch = cluster.head.node.standing().epoch
    uid = cluster.submit(Request((4, 5, 6), 600))
    cluster.run_for(0.3)
    bring(cluster, 2, elected(1, 0, 0, 1))
    cluster.run_until(lambda: mandates(cluster) == [Mandate(1, 0)] * 3)
    assert uid not in cluster.done
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.tokens[uid] == reference((4, 5, 6), 600, 6)
    assert cluster.head.node.standing().epoch == epoch


def test_the_next_roster_begins_without_an_election():
    cluster = Cluster(3, 4, rosters=[elected(5, 2, 0, 2)] * 3)
    cluster.run_until(lambda: ranks(cluster) == [1, 2, 0] and cluster.ready)
    bring(cluster, 2, NEXT)
    cluster.run_until(lambda: ranks(cluster) == [0, 1, 2])
    assert mandates(cluster) == [UNELECTED] * 3
    with pytest.raises(LocalProtocolError, match="is not newer"):
        bring(cluster, 1, elected(6, 1, 0, 1))


def test_a_place_that_was_taken_is_not_followed_where_a_head_is_seen():
    """The head is elected once more, in a later term, which who took the place obeys then."""
    taken = elected(3, 2, 2)
    cluster = Cluster(3, 5, rosters=[PLAIN, PLAIN, PLAIN])
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(3.0)
    cluster.rosters[2] = taken
    cluster.boot(2)
    seen = set()

    def settled() -> bool:
        seen.update(mandates(cluster)[:2])
        return mandates(cluster)[0].term > 3 and len(set(mandates(cluster))) == 1

    cluster.run_until(settled)
    assert mandates(cluster)[0] == Mandate(mandates(cluster)[0].term, 0)
    assert taken.roster.mandate not in seen
    assert ranks(cluster) == [0, 1, 2]


def test_an_owner_brings_no_place_that_was_taken_where_a_head_is_seen():
    cluster = Cluster(3, 5)
    cluster.run_until(lambda: cluster.ready)
    with pytest.raises(LocalProtocolError, match="this node obeys another head"):
        bring(cluster, 1, elected(3, 2, 2))
    bring(cluster, 1, elected(3, 2, 2, of=NEXT))
    cluster.run_until(lambda: cluster.head.node.roster == NEXT)
    cluster.run_for(3.0)
    assert mandates(cluster) == [UNELECTED] * 3


def test_a_head_that_gives_way_to_a_newer_roster_is_confirmed_meanwhile():
    """It lets its requests finish before that roster is in force, and leads until then."""
    cluster = Cluster(3, 5)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(3.0)
    stored, held = cluster._stored, []

    def hold(host, link):
        if host is cluster.hosts["host0"] and not held:
            held.append(link)
        else:
            stored(host, link)

    cluster._stored = hold
    bring(cluster, 0, make_roster(3, serial=2, order=(1, 0, 2)))
    cluster.run_until(lambda: held == [0])
    cluster.rosters[2] = elected(3, 2, 2)
    cluster.boot(2)
    head = cluster.head.node
    cluster.run_until(lambda: head.roster.roster.mandate.term > 3)
    cluster.run_until(lambda: head.leads(cluster.now), 5)
    assert (head.rank, head.roster.roster.serial) == (0, 1)
    stored(cluster.hosts["host0"], 0)
    cluster.run_until(lambda: ranks(cluster) == [1, 0, 2])
    assert mandates(cluster) == [UNELECTED] * 3


def test_a_newer_roster_is_taken_without_the_place_that_was_taken_in_it():
    taken = elected(3, 2, 2, of=NEXT)
    cluster = Cluster(3, 6, rosters=[PLAIN, PLAIN, PLAIN])
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(3.0)
    cluster.rosters[2] = taken
    cluster.boot(2)
    seen = set()

    def settled() -> bool:
        rosters = [host.node.roster.roster for host in cluster.hosts.values()]
        seen.update(each.mandate for each in rosters[:2])
        return {each.serial for each in rosters} == {2} and len(set(mandates(cluster))) == 1

    cluster.run_until(settled)
    assert taken.roster.mandate not in seen
    assert ranks(cluster) == [0, 1, 2]


def test_a_place_that_was_taken_is_followed_where_no_head_is_seen():
    taken = elected(3, 1, 1)
    cluster = Cluster(3, 7)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host0"])
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(10.0)
    cluster.rosters[1] = taken
    cluster.boot(1)
    cluster.run_until(lambda: cluster.hosts["host2"].node.roster == taken)


def test_a_place_taken_in_a_newer_roster_uses_no_terms_up():
    """No majority could ever elect another head after the last term."""
    taken = elected((1 << 64) - 1, 1, 1, of=NEXT)
    cluster = Cluster(3, 9)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host0"])
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(10.0)
    cluster.rosters[1] = taken
    cluster.boot(1)
    cluster.run_until(lambda: cluster.hosts["host2"].node.roster.roster.serial == 2)
    assert cluster.hosts["host2"].node.roster == NEXT
    cluster.run_for(10.0)
    assert cluster.hosts["host2"].node.roster == NEXT


def test_a_roster_that_changes_the_head_still_waits_for_it():
    cluster = Cluster(3, 8, rosters=[elected(1, 1, 1, 2)] * 3)
    cluster.run_until(lambda: cluster.hosts["host1"].node.serving)
    with pytest.raises(LocalProtocolError, match=HEAD_FIRST):
        bring(cluster, 2, NEXT)
    bring(cluster, 1, NEXT)
    cluster.run_until(lambda: ranks(cluster) == [0, 1, 2])
