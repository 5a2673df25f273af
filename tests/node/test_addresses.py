"""Where members are found: addresses that are learnt, the one that is used, and the dead ones."""

from __future__ import annotations

import itertools

import attrs
import pytest
from sealring_protocol.codec.messages import Addresses
from sealring_protocol.control.effects import Send
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import Request
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import ADDRESSES_PER_SECOND, MAX_LEARNT_ADDRESSES, MAX_MEMBERS
from sealring_protocol.links.addresses import (
    AS_SEEN,
    PROBE_EVERY,
    PROBES_AT_ONCE,
    REFILL_SECONDS,
    SETTLE_SECONDS,
    AddressBook,
    KnownFrom,
    address_of,
    packed,
    unpacked,
)
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster, sign_roster

from tests.node.links import links_of, ring_links
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import COORDINATOR, make_roster


def roster_at(*addresses: tuple[str, ...]) -> SignedRoster:
    """A roster whose members are at *addresses*, each with port 1."""
    roster = make_roster(len(addresses), fixed_head=True).roster  # whoever is away
    members = tuple(
        attrs.evolve(member, addresses=tuple(f"{host}:1" for host in hosts))
        for member, hosts in zip(roster.members, addresses, strict=True)
    )
    return sign_roster(attrs.evolve(roster, members=members), COORDINATOR)


def cluster_at(*addresses: tuple[str, ...], seed: int = 1, **options) -> Cluster:
    """Machines that are where the roster says."""
    roster = roster_at(*addresses)
    return Cluster(
        len(addresses),
        seed,
        rosters=[roster] * len(addresses),
        at=dict(enumerate(addresses)),
        **options,
    )


THREE = (("10.0.0.1",), ("10.0.0.2",), ("10.0.0.3",))


def whole(cluster: Cluster) -> bool:
    world = len(cluster.hosts)
    return all(links_of(cluster, rank) == ring_links(rank, world) for rank in range(world))


def routes(cluster: Cluster, at: int, of: int) -> dict[str, KnownFrom]:
    peers = {peer.rank: peer for peer in cluster.hosts[f"host{at}"].node.peers()}
    return {route.address: route.known_from for route in peers[of].routes}


@pytest.mark.parametrize("seed", range(5))
def test_two_that_changed_their_addresses_at_once_find_each_other_through_the_head(seed):
    cluster = cluster_at(*THREE, seed=seed)
    cluster.run_until(lambda: cluster.ready and whole(cluster), 10.0)
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_for(0.02)
    cluster.network.move(cluster.hosts["host1"], "10.0.0.12")
    cluster.network.move(cluster.hosts["host2"], "10.0.0.13")
    cluster.run_for(3.0)
    assert not whole(cluster)
    cluster.run_until(lambda: whole(cluster), 20.0)
    cluster.run_until(lambda: cluster.all_done, 20.0)
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, 6)
    assert routes(cluster, 1, 2)["10.0.0.13:1"] is KnownFrom.TOLD
    assert routes(cluster, 2, 1)["10.0.0.12:1"] is KnownFrom.TOLD


def test_a_machine_that_starts_again_is_not_looked_for_where_it_was_before():
    cluster = cluster_at(*THREE)
    cluster.network.move(cluster.hosts["host2"], "10.0.0.13")
    cluster.run_until(lambda: whole(cluster), 20.0)
    cluster.crash(cluster.hosts["host1"])  # which forgets what it had learnt
    cluster.run_for(3.0)
    cluster.boot(1)
    cluster.run_until(lambda: whole(cluster), 20.0)
    assert routes(cluster, 1, 2)["10.0.0.13:1"] is KnownFrom.TOLD


def test_a_dead_address_is_told_once_while_the_other_direction_works():
    cluster = cluster_at(*THREE)
    cluster.network.move(cluster.hosts["host1"], "10.0.0.12")
    cluster.run_until(lambda: whole(cluster), 20.0)
    cluster.run_for(80.0)  # it has been probed twice
    said = [(who, text) for who, text in cluster.warnings if "does not answer at" in text]
    end = "it does not answer at 10.0.0.2:1: no answer within 5 s"
    assert sorted(said) == [
        ("host0", f"node1 is reached at 10.0.0.12:1; {end}"),
        ("host2", f"node1 reaches this node; {end}"),  # before it was told
    ]
    cluster.network.move(cluster.hosts["host1"], "10.0.0.2")
    cluster.run_for(140.0)
    assert whole(cluster)
    assert any(text == "node1 answers at 10.0.0.2:1 again" for _, _, text in cluster.notes)


def test_the_address_that_answers_fastest_is_used_and_the_next_if_it_dies():
    roster = (("10.0.0.1",), ("10.9.0.2", "10.0.0.2"))
    cluster = cluster_at(*roster, strategy=Strategy.PIPELINE)
    other = cluster.hosts["host1"]
    other.at["10.9.0.2"] = 0.03
    cluster.run_until(lambda: cluster.ready, 10.0)
    cluster.run_for(5.0)
    (peer,) = cluster.head.node.peers()
    slow, fast = peer.routes
    assert (slow.address, fast.address) == ("10.9.0.2:1", "10.0.0.2:1")
    assert slow.answers
    assert fast.answers
    assert slow.seconds > 5 * fast.seconds
    for left in ("10.0.0.2", "10.9.0.2"):
        cluster.network.closed = {("host1", "host0")}  # only the head dials
        cluster.network.move(other, left)
        cluster.run_for(12.0)  # patience has grown with the first silence
        cluster.run_until(lambda: whole(cluster), 20.0)
        (peer,) = cluster.head.node.peers()
        assert peer.dialing[Purpose.CONTROL] == f"{left}:1"


def test_the_fastest_is_dialed_first_once_it_is_known():
    cluster = cluster_at(("10.0.0.1",), ("10.9.0.2", "10.0.0.2"))
    cluster.hosts["host1"].at["10.9.0.2"] = 0.03
    cluster.network.closed = {("host1", "host0")}
    cluster.run_for(10.0)
    for wire in list(cluster.head.wires.values()):
        cluster.network.cut(wire)
    cluster.run_until(lambda: not whole(cluster), 5.0)
    cluster.run_until(lambda: whole(cluster), 20.0)
    (peer,) = cluster.head.node.peers()
    assert set(peer.dialing.values()) == {"10.0.0.2:1"}


def test_what_is_heard_is_tried_and_decides_nothing():
    """Two that moved at once while the head was away find each other by what was heard."""
    cluster = cluster_at(*THREE)
    cluster.network.move(cluster.hosts["host1"], "10.0.0.12")
    cluster.network.move(cluster.head, "10.0.0.11")
    cluster.run_for(20.0)
    assert links_of(cluster, 1) == []
    node, ids = cluster.hosts["host1"].node, [m.id for m in cluster.rosters[0].roster.members]
    node.address_heard(ids[0], "10.0.0.3", 1, cluster.now)  # where another member is
    node.address_heard(ids[0], "10.0.0.77", 1, cluster.now)
    node.address_heard(ids[0], "10.0.0.11", 1, cluster.now)
    cluster.settle(cluster.hosts["host1"])
    cluster.run_until(lambda: whole(cluster), 40.0)
    (head, _) = node.peers()
    answers = {route.address: route.answers for route in head.routes}
    assert answers["10.0.0.11:1"]
    assert not answers["10.0.0.3:1"]
    assert head.routes[-1].known_from is not KnownFrom.ROSTER


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 1),
        ("::1", 1),
        ("0.0.0.0", 1),
        ("224.0.0.251", 1),
        ("255.255.255.255", 1),
        ("::ffff:127.0.0.1", 1),
        ("den.local", 1),
        ("fe80::1%a\x1b[2J", 1),
        ("", 1),
        ("10.0.0.9", 0),
        ("10.0.0.9", 1 << 16),
    ],
)
def test_what_leads_to_no_other_machine_is_not_learnt(host, port):
    cluster = cluster_at(*THREE)
    before = routes(cluster, 0, 1)
    (other,) = (m.id for m in cluster.rosters[0].roster.members if m.name == "node1")
    cluster.head.node.address_heard(other, host, port, 0.0)
    assert routes(cluster, 0, 1) == before
    assert unpacked(bytes(16), port, host) is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.9", "10.0.0.9:7"),
        ("169.254.7.7", "169.254.7.7:7"),
        ("::ffff:10.0.0.9", "10.0.0.9:7"),
        ("2001:DB8::9", "[2001:db8::9]:7"),
    ],
)
def test_an_address_is_told_as_it_was_learnt(host, address):
    assert address_of(host, 7) == address
    pair = packed(address)
    assert pair is not None
    assert unpacked(*pair) == address


def test_an_address_that_only_one_network_knows_is_kept_and_not_told():
    assert address_of("fe80::9%eth0", 7) == "[fe80::9%eth0]:7"
    assert packed("[fe80::9%eth0]:7") is None
    assert unpacked(bytes([0xFE, 0x80, *bytes(13), 9]), 7) is None
    assert unpacked(AS_SEEN, 7, "fe80::9%eth0") == "[fe80::9%eth0]:7"


def book(world: int = 3, own: int = 0) -> tuple[AddressBook, list[bytes]]:
    roster = roster_at(*[(f"10.0.0.{rank}",) for rank in range(1, world + 1)]).roster
    ids = [member.id for member in roster.members]
    return AddressBook(roster, ids[own], None), ids


def v4(*last: int) -> tuple[tuple[bytes, int], ...]:
    return tuple((bytes(10) + b"\xff\xff" + bytes([10, 0, 0, each]), 1) for each in last)


def learnt(book: AddressBook, member: bytes) -> list[str]:
    known = book.routes(member)
    return [route.address for route in known if route.known_from is not KnownFrom.ROSTER]


def test_of_what_is_heard_few_are_kept_and_one_that_answers_stays():
    made, ids = book()
    for last in range(100, 100 + MAX_LEARNT_ADDRESSES):
        made.heard(ids[1], f"10.0.0.{last}", 1, 0.0)
    made.answered(ids[1], "10.0.0.100:1", 0.001, 0.0)
    for minute in range(20):
        for more in range(50):
            now = minute * REFILL_SECONDS + more / 10
            made.heard(ids[1], f"10.1.{minute}.{more}", 1, now)
            assert len(learnt(made, ids[1])) == MAX_LEARNT_ADDRESSES
    known = learnt(made, ids[1])
    assert known[0] == "10.0.0.100:1"
    assert known[1:] == [f"10.1.{minute}.0:1" for minute in (17, 18, 19)]


def test_who_hears_lies_does_not_lose_what_the_head_told():
    made, ids = book(own=1)
    made.told(ids[0], "10.0.0.1", Addresses(2, v4(31, 32, 33, 34)), 0.0)
    for last in range(100, 200):
        made.heard(ids[2], f"10.0.0.{last}", 1, last * 100.0)
    assert {f"10.0.0.{last}:1" for last in (31, 32, 33, 34)} <= set(learnt(made, ids[2]))
    made.told(ids[0], "10.0.0.1", Addresses(2, v4(35)), 0.0)
    known = {route.address: route.known_from for route in made.routes(ids[2])}
    told = {address for address, origin in known.items() if origin is KnownFrom.TOLD}
    assert told == {"10.0.0.35:1"}
    assert len(known) == 1 + 1 + MAX_LEARNT_ADDRESSES


def test_a_stranger_s_lies_do_not_keep_a_node_from_the_roster_s_address():
    made, ids = book()
    for last in range(100, 100 + MAX_LEARNT_ADDRESSES):
        made.heard(ids[1], f"10.0.0.{last}", 1, 0.0)
    dialed = []
    for now in range(0, 100, 5):  # nobody answers
        dialed.append(made.best(ids[1]))
        made.failed(ids[1], dialed[-1], "no answer", now, linked=False)
    assert len(set(dialed)) == 1 + MAX_LEARNT_ADDRESSES
    waits = [round for round, address in enumerate(dialed) if address == "10.0.0.2:1"]
    assert waits[:3] == [0, 5, 6]
    assert len(waits) > len(dialed) / 3


def test_what_is_known_of_a_member_goes_with_it():
    made, ids = book()
    made.told(ids[1], "10.0.0.9", Addresses(1, v4(9)), 0.0)
    made.answered(ids[1], "10.0.0.9:1", 0.001, 0.0)
    assert made.to_pass_on(ids[1]) == [(2, Addresses(1, v4(9)))]
    assert made.to_pass_on(ids[1]) == []
    before = roster_at(*THREE).roster
    fewer = attrs.evolve(before, members=before.members[:1] + before.members[2:])
    made.renew(fewer, ids[0])
    assert made.routes(ids[1]) == ()
    made.renew(before, ids[0])
    assert [route.known_from for route in made.routes(ids[1])] == [KnownFrom.ROSTER]
    made.told(ids[1], "10.0.0.9", Addresses(1, v4(9)), 0.0)
    made.answered(ids[1], "10.0.0.9:1", 0.001, 0.0)
    assert made.to_pass_on(ids[1]) == [(2, Addresses(1, v4(9)))]


@pytest.mark.parametrize(
    ("own", "sender", "message"),
    [
        (0, 1, Addresses(2, v4(9))),  # a rank of another
        (0, 1, Addresses(0, v4(9))),  # a rank of the head
        (1, 0, Addresses(1, v4(9))),  # the head of the receiver
        (1, 0, Addresses(3, v4(9))),  # of nobody
        (0, 1, Addresses(3, ())),
        (1, 0, Addresses(2, ((AS_SEEN, 1),))),  # the head, of another as it is seen
    ],
)
def test_nobody_speaks_for_another_but_the_head(own, sender, message):
    made, ids = book(own=own)
    with pytest.raises(RemoteProtocolError):
        made.told(ids[sender], "10.0.0.9", message, 0.0)
    assert [learnt(made, member) for member in ids] == [[], [], []]


def test_addresses_have_a_budget():
    made, ids = book()
    for last in range(ADDRESSES_PER_SECOND):
        made.told(ids[1], "10.0.0.9", Addresses(1, v4(last)), 0.0)
    with pytest.raises(LimitExceeded):
        made.told(ids[1], "10.0.0.9", Addresses(1, v4(99)), 0.0)
    made.told(ids[1], "10.0.0.9", Addresses(1, v4(99)), 1.0)
    assert learnt(made, ids[1]) == ["10.0.0.99:1"]


def test_a_liar_sends_the_head_to_dial_in_vain_now_and_then_and_nobody_else():
    cluster = cluster_at(*THREE)
    cluster.run_until(lambda: cluster.ready and whole(cluster), 10.0)
    dialed: dict[str, list[tuple[float, str]]] = {host: [] for host in cluster.hosts}
    connect = cluster.network.connect

    def watched(host, link, address):
        dialed[host.name].append((cluster.now, address))
        connect(host, link, address)

    cluster.network.connect = watched
    liar = cluster.hosts["host1"]
    begun = cluster.now
    for tick in range(120):  # in each second four other addresses
        lies = tuple((ip, 443) for ip, _ in v4(*(tick % 50 * 4 + 50 + each for each in range(4))))
        liar.node._carry_out([Send(0, Purpose.CONTROL, Addresses(1, lies))], cluster.now)
        cluster.settle(liar)
        cluster.run_for(1.0)
    lies = [address for _, address in dialed["host0"] if address.endswith(":443")]
    assert 0 < len(lies) <= (cluster.now - begun) / 5  # each dial takes 5 s, one at a time
    assert not any(address.endswith(":443") for _, address in dialed["host2"])
    assert routes(cluster, 2, 1) == {"10.0.0.2:1": KnownFrom.ROSTER}
    assert whole(cluster)


def test_a_liar_that_takes_its_lies_back_makes_nobody_dial_them_again_and_again():
    """A third party that refuses at once: an address that is taken back is known no more, so that
    it once was dialed each second, told anew."""
    cluster = cluster_at(*THREE, ("10.0.0.4",))
    cluster.run_until(lambda: cluster.ready and whole(cluster), 10.0)
    cluster.crash(cluster.hosts["host3"])
    cluster.run_until(lambda: cluster.ready and links_of(cluster, 1), 30.0)
    dialed: list[str] = []
    connect = cluster.network.connect

    def watched(host, link, address):
        dialed.append(address)
        connect(host, link, address)

    cluster.network.connect = watched
    liar, begun = cluster.hosts["host1"], cluster.now
    for tick in range(200):
        lies = tuple((ip, 443 + tick % 7) for ip, _ in v4(4)) if tick % 2 else ()
        liar.node._carry_out([Send(0, Purpose.CONTROL, Addresses(1, lies))], cluster.now)
        cluster.settle(liar)
        cluster.run_for(1.0)
    lies = [address for address in dialed if address != "10.0.0.4:1" and "10.0.0.4:" in address]
    assert 0 < len(lies) <= PROBES_AT_ONCE + (cluster.now - begun) / PROBE_EVERY


def test_the_head_of_the_largest_cluster_introduces_all_others_at_once():
    """More members than ADDRESSES that a follower once took: it would have left such a head."""
    world = MAX_MEMBERS
    head, ids = book(world)
    follower, _ = book(world, own=1)
    for rank in range(1, world):
        head.told(ids[rank], f"10.1.0.{rank}", Addresses(rank, ((AS_SEEN, 7470),)), 0.0)
        head.answered(ids[rank], f"10.1.0.{rank}:7470", 0.001, 0.0)
    for _ in range(2):  # and once more, when the link was cut
        for message in head.introduction(1):
            follower.told(ids[0], "10.0.0.1", message, 0.0)
    assert learnt(follower, ids[63]) == ["10.1.0.63:7470"]


def test_an_address_that_stays_dead_is_probed_less_and_less_often():
    made, ids = book()
    made.linked(ids[1], "", 0.0)
    times = [made.next_probe(ids[1])]
    for _ in range(7):
        made.probed(ids[1], times[-1])
        made.dialed(ids[1], "10.0.0.2:1", times[-1])
        made.failed(ids[1], "10.0.0.2:1", "no answer", times[-1], linked=True)
        times.append(made.next_probe(ids[1]))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == SETTLE_SECONDS
    assert gaps == [60, 120, 240, 480, 600, 600, 600]
    made.answered(ids[1], "10.0.0.2:1", 0.001, times[-1])
    assert made.next_probe(ids[1]) == times[-1] + 600


def test_who_speaks_for_another_loses_its_link():
    cluster = cluster_at(*THREE)
    cluster.run_until(lambda: cluster.ready and whole(cluster), 10.0)
    lie = Send(0, Purpose.CONTROL, Addresses(2, v4(66)))
    cluster.hosts["host1"].node._carry_out([lie], cluster.now)
    cluster.settle(cluster.hosts["host1"])
    cluster.run_for(0.05)
    why = "rank 1 does not speak for rank 2"
    assert ("host0", f"rank 1 (node1) is gone: {why}") in cluster.warnings
    said = f"the head (node0) is gone: the peer closed the link (protocol_error): {why}"
    assert ("host1", said) in cluster.warnings
    assert "10.0.0.66:1" not in routes(cluster, 0, 2)


def test_a_quiet_ring_probes_each_address_once_and_then_rarely():
    cluster = cluster_at(*THREE)
    cluster.run_until(lambda: cluster.ready and whole(cluster), 10.0)
    cluster.run_for(20.0)
    dialed = []
    connect = cluster.network.connect

    def watched(host, link, address):
        dialed.append((host.name, address))
        connect(host, link, address)

    cluster.network.connect = watched
    cluster.run_for(60.0)
    assert dialed == []
