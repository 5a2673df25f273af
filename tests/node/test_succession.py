"""Who is head when the head is lost: whole nodes with elections, in virtual time."""

from __future__ import annotations

import pytest
from sealring_protocol.control.election import Ballot, ElectionState
from sealring_protocol.control.requests import NoMajority, Request
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.roster import Rights

from tests.sim.fake_engine import reference
from tests.sim.hosts import Host
from tests.sim.ring import LAYERS, PROMPT, Ring
from tests.sim.rosters import WALL, make_roster


def ring(world: int = 3, seed: int = 1, **settings) -> Ring:
    made = Ring(world, seed, least=1, **settings)
    made.run_until(lambda: made.serves(made.head), 30)
    made.run_for(2.0)
    return made


def succeeded(cluster: Ring, within: float, *lost: str) -> Host:
    """Who serves in place of the *lost*, *within* so many seconds."""
    others = cluster.others(*lost)
    cluster.run_until(lambda: any(map(cluster.serves, others)), within)
    return next(filter(cluster.serves, others))


@pytest.mark.parametrize("world", [3, 5])
def test_a_head_that_dies_is_succeeded_by_the_next_within_five_seconds(world):
    cluster = ring(world)
    cluster.crash(cluster.head)
    head = succeeded(cluster, 5.0, "host0")
    assert head.name == "host1"
    cluster.answers(head)
    led = cluster.led(head)
    assert (led.term, led.taken, led.leads, led.followed) == (1, False, True, True)
    assert head.node.roster.roster.members[0].name == "node1"
    assert [h.node.rank for h in cluster.others("host0", "host1")] == list(range(2, world))


def test_a_head_that_died_comes_back_as_a_follower_and_is_taken_in():
    cluster = ring()
    cluster.crash(cluster.head)
    head = succeeded(cluster, 5.0, "host0")
    back = cluster.restart(0)
    cluster.run_until(lambda: head.node.ring == (0, 1, 2) and cluster.serves(head), 30)
    assert back.node.rank == 1
    assert back.stored
    with pytest.raises(LocalProtocolError, match="takes no requests; ask the head, node1"):
        back.node.submit(Request(PROMPT, 3), cluster.now)
    cluster.answers(head)


def test_a_ring_that_starts_again_keeps_the_head_that_it_has_elected():
    cluster = ring()
    cluster.crash(cluster.head)
    succeeded(cluster, 5.0, "host0")
    for host in cluster.others("host0"):
        cluster.crash(host)
    cluster.run_for(1.0)
    for index in range(3):
        cluster.restart(index)
    cluster.run_until(lambda: any(map(cluster.serves, cluster.hosts.values())), 20)
    assert [host.name for host in cluster.leaders()] == ["host1"]
    assert all(cluster.led(host).term == 1 for host in cluster.hosts.values())
    cluster.answers(cluster.hosts["host1"])


@pytest.mark.parametrize("hears", [False, True])
@pytest.mark.parametrize("is_heard", [False, True])
def test_a_head_that_is_cut_off_leads_no_more_before_another_does(hears, is_heard):
    if hears and is_heard:
        pytest.skip("that is no cut")
    cluster = ring()
    old = cluster.head
    cluster.cut_off("host0", hears=hears, is_heard=is_heard)
    head = succeeded(cluster, 8.0, "host0")
    assert not old.node.leads(cluster.now)
    cluster.run_for(4.0)
    with pytest.raises(NoMajority, match="1 of 3 machines here, and it takes 2; missing: node1"):
        old.node.submit(Request(PROMPT, 3), cluster.now)
    cluster.network.heal()
    cluster.run_until(lambda: old.node.rank == 1 and cluster.serves(head), 20)
    cluster.answers(head)


def test_a_head_that_was_stopped_finds_another_in_its_place():
    cluster = ring()
    old = cluster.head
    old.frozen = True
    head = succeeded(cluster, 8.0, "host0")
    old.frozen = False
    cluster.run_until(lambda: old.node.rank == 1, 10)
    cluster.run_until(lambda: head.node.ring == (0, 1, 2) and cluster.serves(head), 40)
    cluster.answers(head)


def test_a_short_stop_of_the_head_changes_nothing():
    cluster = ring()
    cluster.head.frozen = True
    cluster.run_for(1.0)
    cluster.head.frozen = False
    cluster.run_for(5.0)
    assert cluster.led(cluster.head).term == 0
    cluster.answers(cluster.head)


def test_a_follower_that_is_away_takes_no_lease():
    """Two of three renew it; with one of them stopped, too, there is none."""
    cluster = ring()
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(10.0)
    assert cluster.serves(cluster.head)
    cluster.answers(cluster.head)
    assert cluster.led(cluster.head).absent == (2,)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(20.0)
    assert cluster.leaders() == []
    causes = [each.cause.value for each in cluster.head.node.obstacles(cluster.now)]
    assert "no_majority" in causes
    cluster.restart(1)
    cluster.run_until(lambda: cluster.serves(cluster.head), 20)
    cluster.answers(cluster.head)


def test_requests_under_way_wait_for_a_lease_that_comes_back():
    cluster = ring()
    uid = cluster.submit(Request(PROMPT, 2000))
    cluster.run_for(0.2)
    for host in cluster.others("host0"):
        cluster.crash(host)
    cluster.run_for(15.0)
    had = len(cluster.tokens[uid])
    cluster.run_for(5.0)
    assert len(cluster.tokens[uid]) == had < 2000
    cluster.restart(2)
    cluster.run_until(lambda: cluster.all_done, 60)
    assert cluster.tokens[uid] == reference(PROMPT, 2000, LAYERS)


def test_the_next_may_have_no_disk_left_and_the_one_after_it_is_elected():
    cluster = ring(5)
    cluster.hosts["host1"].full = True
    cluster.crash(cluster.head)
    head = succeeded(cluster, 20.0, "host0")
    assert head.name == "host2"
    cluster.hosts["host1"].full = False
    cluster.run_until(lambda: head.node.ring == (0, 2, 3, 4) and cluster.serves(head), 60)
    cluster.answers(head)


@pytest.mark.parametrize("name", ["host0", "host1"])
def test_a_machine_that_is_cut_off_says_so_while_the_others_may_have_a_head(name: str):
    cluster = ring()
    cut = cluster.hosts[name]
    assert not any(host.node.cut_off(cluster.now) for host in cluster.hosts.values())
    cluster.cut_off(name)
    cluster.run_for(20.0)
    told = [host.node.cut_off(cluster.now) for host in cluster.hosts.values()]
    assert told == [host is cut for host in cluster.hosts.values()]
    cluster.network.heal()
    cluster.run_for(20.0)
    assert not any(host.node.cut_off(cluster.now) for host in cluster.hosts.values())


def test_who_asks_for_votes_is_not_cut_off_from_members_that_it_has_yet_to_meet():
    cluster = ring()
    cluster.crash(cluster.head)
    said: list[Host] = []

    def elected() -> bool:
        said.extend(host for host in cluster.others("host0") if host.node.cut_off(cluster.now))
        return bool(cluster.leaders())

    cluster.run_until(elected, 8.0)
    assert said == []


def test_a_new_head_that_starves_is_not_cut_off_before_its_first_lease():
    """It imports what only a head needs, and so asks nobody for a second or two."""
    cluster = ring()
    cluster.crash(cluster.head)
    new = cluster.hosts["host1"]
    cluster.run_until(lambda: new.node.rank == 0, 8.0)
    assert not new.node.leads(cluster.now)
    new.frozen = True
    cluster.run_for(1.4)
    new.frozen = False
    said = [new.node.cut_off(cluster.now)]

    def leads() -> bool:
        said.append(new.node.cut_off(cluster.now))
        return new.node.leads(cluster.now)

    cluster.run_until(leads, 4.0)
    assert not any(said)


def taken() -> tuple[Ring, Host]:
    """Two of three die; nobody is elected, and the owner of the last has it take the place."""
    cluster = ring()
    for name in ("host0", "host2"):
        cluster.crash(cluster.hosts[name])
    cluster.run_for(20.0)
    last = cluster.hosts["host1"]
    assert cluster.led(last).may_take
    assert last.node.cut_off(cluster.now)
    why = {each.cause.value: each for each in last.node.obstacles(cluster.now)}["no_majority"]
    assert "1 of 3 machines here, and it takes 2; missing: node0, node2" in why.what
    assert "sealring head take" in why.advice
    last.node.take(cluster.now)
    cluster.settle(last)
    cluster.run_until(lambda: cluster.serves(last), 10)
    assert cluster.led(last).taken
    cluster.answers(last)
    return cluster, last


def test_an_owner_takes_the_place_where_there_is_no_majority():
    cluster, last = taken()
    cluster.restart(2)
    cluster.run_until(lambda: last.node.ring == (0, 2) and cluster.serves(last), 40)
    cluster.restart(0)
    cluster.run_until(lambda: last.node.ring == (0, 1, 2) and cluster.serves(last), 40)
    assert [host.node.rank for host in cluster.hosts.values()] == [1, 0, 2]
    cluster.answers(last)


def test_a_head_that_a_majority_follows_gives_its_place_to_nobody_who_took_it():
    cluster, last = taken()
    for index in (0, 2):
        cluster.restart(index)
    cluster.run_until(lambda: last.node.rank == 1 and cluster.serves(cluster.hosts["host0"]), 40)
    assert not cluster.led(cluster.hosts["host0"]).taken
    cluster.answers(cluster.hosts["host0"])


def test_who_sees_the_head_cannot_take_its_place():
    cluster = ring()
    with pytest.raises(LocalProtocolError, match="sees the head"):
        cluster.hosts["host1"].node.take(cluster.now)
    with pytest.raises(LocalProtocolError, match="is the head, and answers"):
        cluster.head.node.take(cluster.now)


def test_the_head_moves_its_place_and_the_ring_goes_on_at_once():
    cluster = ring()
    old, began = cluster.head, cluster.now
    old.node.move(2, cluster.now)
    cluster.settle(old)
    assert not old.node.leads(cluster.now)
    head = succeeded(cluster, 3.0, "host0")
    assert head.name == "host2"
    assert cluster.now - began < 1.5
    assert head.node.ring == (0, 1, 2)
    cluster.answers(head)
    assert [host.node.rank for host in cluster.hosts.values()] == [1, 2, 0]


@pytest.mark.parametrize("world", [3, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_was_in_the_ring_is_in_that_of_the_head_that_the_place_moves_to(world, seed):
    """None is taken in later, which would change every machine's layers a second time."""
    cluster = ring(world, seed)
    cluster.head.node.move(world - 1, cluster.now)
    cluster.settle(cluster.head)
    head = succeeded(cluster, 3.0, "host0")
    assert head.node.ring == tuple(range(world))
    cluster.answers(head)


def test_a_head_that_gives_its_place_away_and_stops_is_not_waited_for():
    cluster = ring()
    old, head = cluster.head, cluster.hosts["host2"]
    old.node.move(2, cluster.now)
    cluster.settle(old)
    cluster.run_until(lambda: head.node.rank == 0, 1.0)
    cluster.crash(old)
    cluster.run_until(lambda: cluster.serves(head), 1.5)
    assert head.node.ring == (0, 2)


@pytest.mark.parametrize("seconds", [0.1, 5.0])
def test_nobody_waits_for_a_head_that_moves_its_place_and_stops(seconds):
    """The others load their layers once, however long it takes to stop."""
    cluster = ring()
    old, head = cluster.head, cluster.hosts["host1"]
    old.node.move(1, cluster.now, stops=True)
    cluster.run_until(lambda: cluster.led(old).state is ElectionState.FOLLOWING, 3)
    cluster.after(seconds, lambda: cluster.crash(old))
    cluster.run_for(0.1)
    cluster.run_until(lambda: head.node.ring == (0, 2) and cluster.serves(head), 1)
    cluster.run_for(6.0)
    assert head.node.standing().epoch.counter == 1
    cluster.answers(head)


@pytest.mark.parametrize(
    ("rank", "why"), [(0, "is the head already"), (2, "is not there"), (3, "not let that")]
)
def test_the_place_is_moved_only_to_who_is_there_and_may_have_it(rank, why):
    rosters = [make_roster(4, rights={3: Rights(0)})] * 4
    cluster = ring(4, rosters=rosters)
    cluster.crash(cluster.hosts["host2"])
    cluster.run_for(1.0)
    with pytest.raises(LocalProtocolError, match=why):
        cluster.head.node.move(rank, cluster.now)
    with pytest.raises(LocalProtocolError, match="only the head moves its place"):
        cluster.hosts["host1"].node.move(0, cluster.now)


def test_two_machines_are_as_they_were():
    """A head of two needs no lease, and nobody is elected in its place."""
    cluster = ring(2)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(10.0)
    cluster.answers(cluster.head)
    cluster.restart(1)
    cluster.run_until(lambda: cluster.head.node.ring == (0, 1) and cluster.serves(cluster.head), 20)
    cluster.crash(cluster.head)
    cluster.run_for(20.0)
    assert cluster.leaders() == []
    assert cluster.led(cluster.hosts["host1"]).term == 0


def test_a_head_that_a_newer_roster_makes_waits_for_the_lease_of_the_one_before():
    """The others lose the head, which hears nothing of that, and their owner gives them a roster
    with another one."""
    cluster = ring()
    cluster.cut_off("host0", is_heard=True)
    for wire in list(cluster.head.wires.values()):
        cluster.network.cut(wire)
    cluster.run_for(0.01)
    newer = make_roster(3, serial=2, order=(1, 0, 2)).encode()
    for host in cluster.others("host0"):
        host.node.bring_roster(newer, cluster.now, WALL + int(cluster.now * 1000))
        cluster.settle(host)
    assert cluster.leaders() == [cluster.head]
    head = succeeded(cluster, 20.0, "host0")
    assert head.name == "host1"
    cluster.network.heal()
    cluster.run_until(lambda: head.node.ring == (0, 1, 2) and cluster.serves(head), 40)
    cluster.answers(head)


def test_links_between_followers_are_let_go_once_there_is_a_head():
    cluster = ring(5)
    cluster.crash(cluster.head)
    succeeded(cluster, 5.0, "host0")
    cluster.run_for(10.0)
    for host in cluster.others("host0", "host1"):
        control = [rank for rank, purpose, _ in host.node.links() if purpose.name == "CONTROL"]
        assert control == [0]


def test_votes_that_disks_have_lost_make_no_two_leaders_of_three():
    cluster = ring()
    cluster.crash(cluster.head)
    cluster.run_until(lambda: any(h.votes[-1][1].term for h in cluster.others("host0")), 10)
    for index in (1, 2):
        cluster.crash(cluster.hosts[f"host{index}"])
        cluster.restart(index, Ballot())
    cluster.restart(0)
    cluster.run_until(lambda: any(map(cluster.serves, cluster.hosts.values())), 60)
    cluster.run_for(10.0)
    assert len(cluster.leaders()) == 1
    cluster.answers(cluster.leaders()[0])
