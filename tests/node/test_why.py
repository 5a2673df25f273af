"""Why a ring does not serve, one row for each reason: what either end says, within five seconds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Bootstrap,
    Build,
    CannotServe,
    Failure,
    FailureKind,
    Pong,
    Progress,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import Level, Note, Phase
from sealring_protocol.control.election import FIRST_SECONDS
from sealring_protocol.control.plan import Strategy
from sealring_protocol.diagnosis import (
    ADVICE,
    APART_ADVICE,
    CLOCK_ADVICE,
    DTYPE_ADVICE,
    ENGINE_SECONDS,
    ROSTER_ADVICE,
    TELL_SECONDS,
    Cause,
    obstacles,
)
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.events import NodeEvent
from sealring_protocol.security.roster import Member, SignedRoster, sign_roster
from sealring_protocol.words import RING_CHANGED

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import FakeEngine, info
from tests.sim.hosts import Host
from tests.sim.rosters import COORDINATOR, WALL, make_roster, signer


def signed(roster: SignedRoster, **changes: object) -> SignedRoster:
    return sign_roster(attrs.evolve(roster.roster, **changes), COORDINATOR)


def readdressed(addresses: dict[int, tuple[str, ...]]) -> SignedRoster:
    roster = make_roster(2)
    members = [
        attrs.evolve(member, addresses=addresses.get(rank, member.addresses))
        for rank, member in enumerate(roster.roster.members)
    ]
    return signed(roster, members=tuple(members))


def unreachable() -> Cluster:
    return Cluster(2, 1, rosters=[readdressed({0: ("nowhere:1",), 1: ("nowhere:2",)})] * 2)


def without_addresses() -> Cluster:
    return Cluster(2, 1, rosters=[readdressed({0: (), 1: ()})] * 2)


def other_cluster() -> Cluster:
    return Cluster(2, 1, rosters=[make_roster(2), signed(make_roster(2), cluster=b"d" * 32)])


def other_key() -> Cluster:
    """The head's roster has another key for the rank, and no node has both."""
    head = make_roster(2)
    stranger = Member(signer(7).public_key, "node1", ("host1:1",))
    members = (head.roster.members[0], stranger)
    return Cluster(2, 1, rosters=[signed(head, serial=2, members=members), make_roster(2)])


def expired() -> Cluster:
    return Cluster(2, 1, rosters=[make_roster(2, lifetime_ms=300)] * 2)


def conflict() -> Cluster:
    return Cluster(2, 1, rosters=[make_roster(2), signed(make_roster(2), name="other")])


def other_model() -> Cluster:
    return Cluster(2, 1, models=[b"a" * 32, b"b" * 32])


@attrs.define
class Unloadable(FakeEngine):
    why: str = ""

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        if not isinstance(message, Bootstrap):
            return []
        return [CannotServe(message.epoch, FailureKind.LOAD, self.why)]


class Ring(Cluster):
    """One whose engines have *room*, and of which those after the head pass hidden states in
    another *dtype*, and cannot load if they are *unloadable*."""

    def __init__(
        self,
        world: int = 2,
        *,
        room: int = 1 << 30,
        unloadable: str = "",
        dtype: DType = DType.U32,
    ) -> None:
        self.room = room
        self.dtype = dtype
        self.unloadable = unloadable
        super().__init__(world, 1)

    def start_engine(self, host: Host) -> None:
        if not host.alive or host.engine is not None:
            return
        head = host.name == "host0"
        dtype = DType.U32 if head else self.dtype
        model = attrs.evolve(info(), room=self.room, dtype=dtype)
        broken = "" if head else self.unloadable
        host.engine = Unloadable(model, why=broken) if broken else FakeEngine(model)
        host.node.engine_message(host.engine.model, self.now)
        self.settle(host)


def manifest_on_the_head_alone() -> Cluster:
    return Cluster(2, 1, models=[b"a" * 32, b"b" * 32], unpinned={0: b"b" * 32})


def manifest_on_the_rank_alone() -> Cluster:
    return Cluster(2, 1, models=[b"a" * 32, b"b" * 32], unpinned={1: b"a" * 32})


def too_little_room() -> Cluster:
    return Ring(room=10)


def layers_that_do_not_load() -> Cluster:
    return Ring(unloadable="tensor x does not match the manifest")


OLDER, NEWER = Build("0.1.0", 1, 2), Build("0.2.0", 3, 3)
"""Two releases that have no step version in common."""


OLDER, NEWER = Build("0.1.0", 1, 2), Build("0.2.0", 3, 3)
"""Two releases that have no step version in common."""

ROWS: dict[str, tuple[Callable[[], Cluster], Cause, str, Cause, str]] = {
    # how the ring is made; what the head says; what the rank says
    "unreachable": (
        unreachable,
        Cause.UNREACHABLE,
        "rank 1 (node1) cannot be reached at nowhere:2: connection refused",
        Cause.UNREACHABLE,
        "the head (node0) cannot be reached at nowhere:1: connection refused",
    ),
    "no address": (
        without_addresses,
        Cause.NO_ADDRESS,
        "rank 1 (node1) has no address in the roster",
        Cause.NO_ADDRESS,
        "the head (node0) has no address in the roster",
    ),
    "another cluster": (
        other_cluster,
        Cause.SILENT,
        "rank 1 (node1) at host1:1 ended the handshake without a word",
        Cause.SILENT,
        "the head (node0) at host0:1 ended the handshake without a word; this node refused a "
        "connection from host0, too: it asks for another machine, or for one of another cluster",
    ),
    "another key, in a newer roster": (
        other_key,
        Cause.SILENT,
        "rank 1 (node1) at host1:1 ended the handshake without a word",
        Cause.NOT_A_MEMBER,
        "the head (node0) has a newer roster than this node's (1), in which this node is no member",
    ),
    "expired roster": (
        expired,
        Cause.ROSTER_EXPIRED,
        "roster 1, which this node has, has expired",
        Cause.ROSTER_EXPIRED,
        "roster 1, which this node has, has expired",
    ),
    "two rosters of one serial": (
        conflict,
        Cause.ROSTER_CONFLICT,
        "the peer holds another roster with the same serial 1",
        Cause.ROSTER_CONFLICT,
        "the peer holds another roster with the same serial 1",
    ),
    "another model": (
        other_model,
        Cause.OTHER_MODEL,
        "this node refused rank 1 (node1): node1 holds another model (626262626262) than node0 "
        "(616161616161)",
        Cause.OTHER_MODEL,
        "the head (node0) refused this node: node1 holds another model (626262626262)",
    ),
    "a manifest on the head alone": (
        manifest_on_the_head_alone,
        Cause.MANIFEST,
        "only one of both has a manifest of the weights (sealring.json): node0 has one, node1 has "
        "none",
        Cause.MANIFEST,
        "only one of both has a manifest of the weights (sealring.json): node0 has one, node1 has "
        "none",
    ),
    "a manifest on the rank alone": (
        manifest_on_the_rank_alone,
        Cause.OTHER_MODEL,
        "or node1 alone has a manifest (sealring.json)",
        Cause.MANIFEST,
        "only one of both has a manifest of the weights (sealring.json): node1 has one, node0 has "
        "none",
    ),
    "an older release": (
        lambda: Cluster(2, 1, builds={0: NEWER, 1: OLDER}),
        Cause.OTHER_VERSION,
        "this node refused rank 1 (node1): node0 runs sealring 0.2.0 (steps 3), node1 0.1.0 "
        "(steps 1 to 2): upgrade node1",
        Cause.OTHER_VERSION,
        "the head (node0) refused this node: node0 runs sealring 0.2.0 (steps 3), node1 0.1.0 "
        "(steps 1 to 2): upgrade node1",
    ),
    "a newer release": (
        lambda: Cluster(2, 1, builds={0: OLDER, 1: NEWER}),
        Cause.OTHER_VERSION,
        "this node refused rank 1 (node1): node1 runs sealring 0.2.0 (steps 3), node0 0.1.0 "
        "(steps 1 to 2): upgrade node0",
        Cause.OTHER_VERSION,
        "the head (node0) refused this node: node1 runs sealring 0.2.0 (steps 3), node0 0.1.0 "
        "(steps 1 to 2): upgrade node0",
    ),
    "layers that do not load": (
        layers_that_do_not_load,
        Cause.CANNOT_SERVE,
        "rank 1 (node1) could not serve: tensor x does not match the manifest",
        Cause.CANNOT_SERVE,
        "this node could not serve: tensor x does not match the manifest",
    ),
}


def swapped_keys() -> Cluster:
    """Each member's entry has the other's key, at its own address."""
    roster = make_roster(2)
    one, two = roster.roster.members
    members = (
        attrs.evolve(one, public_key=two.public_key),
        attrs.evolve(two, public_key=one.public_key),
    )
    return Cluster(2, 1, rosters=[signed(roster, members=members)] * 2)


def says(made: Cluster, name: str) -> list[tuple[Cause, str]]:
    return [(o.cause, o.text(made.now)) for o in made.hosts[name].node.obstacles(made.now)]


@pytest.mark.parametrize("row", ROWS)
def test_either_end_says_why_within_five_seconds_and_in_its_log(row):
    make, at_head, head, at_rank, rank = ROWS[row]
    made = make()
    made.run_for(5.0)
    for name, cause, text in (("host0", at_head, head), ("host1", at_rank, rank)):
        told = says(made, name)
        assert any(cause is c and text in t for c, t in told), told
    logged = [(who, text) for _, who, text in made.notes if "not serving: " in text]
    for name, cause, text in (("host0", at_head, head), ("host1", at_rank, rank)):
        if cause is not Cause.NOT_A_MEMBER:  # which whoever finds it out has told
            assert any(who == name and text in t for who, t in logged), logged


def test_a_node_that_dials_itself_says_so():
    made = swapped_keys()
    made.run_for(5.0)
    for host, member in (("host0", "the head (node0)"), ("host1", "rank 1 (node1)")):
        node = made.hosts[host].node
        (obstacle,) = node.obstacles(made.now)
        assert obstacle.cause is Cause.ITSELF
        assert obstacle.what == f"{member} is not at {host}:1: this node itself answers there"
        assert node.facts(made.now).strangers == []
    assert not any("refused a connection" in text for _, text in made.warnings)
    made.run_for(FIRST_SECONDS)  # the rank would be head in its place
    headless = [each.cause for each in made.hosts["host0"].node.obstacles(made.now)]
    assert headless == [Cause.ITSELF, Cause.NO_MAJORITY]


def test_a_reason_is_logged_at_once_and_then_each_minute():
    made = unreachable()
    made.run_for(3 * TELL_SECONDS + 2)
    times = [at for at, who, text in made.notes if who == "host0" and "not serving" in text]
    assert len(times) == 4, times
    assert times[0] < 1
    told = [text for _, who, text in made.notes if who == "host0" and "not serving" in text]
    assert "start that node" in told[0]
    assert "times in 2 minutes, the last time" in told[2]


def recording(
    next_event: Callable[[], NodeEvent | None], told: list[Note]
) -> Callable[[], NodeEvent | None]:
    """*next_event*, with what is said of not serving left in *told*."""

    def recorded() -> NodeEvent | None:
        event = next_event()
        if isinstance(event, Note) and event.text.startswith("not serving: "):
            told.append(event)
        return event

    return recorded


def test_each_of_many_peers_is_told_each_minute():
    made = Cluster(13, 1)
    for index in range(1, 13):
        made.crash(made.hosts[f"host{index}"])
    said: list[Note] = []
    made.head.node.next_event = recording(made.head.node.next_event, said)
    made.run_for(3 * TELL_SECONDS + 2)
    for index in range(1, 13):
        told = [note for note in said if f"(node{index}) cannot be reached" in note.text]
        assert [note.level for note in told] == [Level.INFO] * 4


def test_a_ring_that_serves_has_nothing_in_the_way_and_says_so_again_when_it_breaks():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    assert says(made, "host0") == []
    made.run_for(0.5)
    assert says(made, "host1") == []
    assert not any("not serving" in text for _, _, text in made.notes)
    made.crash(made.hosts["host1"])
    made.run_for(5.0)
    assert [cause for cause, _ in says(made, "host0")] == [Cause.UNREACHABLE]


def test_too_little_room_is_told_with_the_numbers():
    made = too_little_room()
    made.run_for(5.0)
    ((cause, text),) = says(made, "host0")
    assert cause is Cause.TOO_LITTLE_ROOM
    assert "the model's weights take" in text
    assert "the 2 ranks have room for" in text


def test_an_engine_that_is_gone_is_told_with_the_reason():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    made.kill_engine(made.head, back_after=100)
    made.run_for(5.0)
    cause, text = says(made, "host0")[0]
    assert cause is Cause.ENGINE_DYING
    assert text == "this node's engine has ended once: it was killed (for 5 s)"


def test_an_engine_that_ends_again_and_again_is_one_reason_at_its_node():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    made.kill_engine(made.hosts["host1"], back_after=100)
    made.run_for(5.0)
    assert [cause for cause, _ in says(made, "host1")] == [Cause.ENGINE_DYING]


def test_an_expired_roster_is_told_once_and_the_advice_needs_no_restart():
    made = expired()
    made.run_for(5.0)
    told = made.head.node.obstacles(made.now)
    assert [obstacle.cause for obstacle in told].count(Cause.ROSTER_EXPIRED) == 1
    assert "sealring roster install" in told[0].advice


def test_the_head_says_what_a_rank_that_is_not_ready_may_wait_for():
    made = Cluster(3, 4, strategy=Strategy.PIPELINE)
    made.network.closed = {("host1", "host2"), ("host2", "host1")}
    made.run_for(5.0)
    said = "rank 1 (node1) loads its layers, or waits for its link to rank 2 (node2)"
    assert any(text.startswith(said) for _, text in says(made, "host0"))
    later = obstacles(made.head.node.facts(made.now), made.now + 20.0)  # a person wonders by now
    hint = "on a GPU that compiles kernels the first time, or waits for its link to rank 2"
    assert any(hint in obstacle.what for obstacle in later)
    made.run_for(25.0)
    why = "node1 cannot reach node2 at host2:1 (no answer within 5 s), nor node2 node1"
    told = [o for o in made.head.node.obstacles(made.now) if why in o.what]
    assert [obstacle.advice for obstacle in told] == [APART_ADVICE]


@attrs.frozen
class Advised:
    """A ring, a part of what both its nodes say, and what each says is to be done."""

    make: Callable[[], Cluster]
    words: str
    advice: str


ADVISED = {
    "other hidden states": Advised(
        lambda: Ring(dtype=DType.F32),
        "hidden states in F32 between ranks, and node0 in U32",
        DTYPE_ADVICE,
    ),
    "another cluster": Advised(other_cluster, "ended the handshake without a word;", ROSTER_ADVICE),
    "another clock": Advised(
        lambda: Cluster(2, 1, clocks={"host1": 86_400.0}),
        "ended the handshake without a word;",
        CLOCK_ADVICE,
    ),
}


@pytest.mark.parametrize("row", ADVISED)
def test_the_advice_is_for_what_is_the_matter(row):
    """And not for all that may be, where one of the two knows more."""
    case = ADVISED[row]
    made = case.make()
    made.run_for(8.0)
    told = [o for host in made.hosts.values() for o in host.node.obstacles(made.now)]
    advised = [obstacle.advice for obstacle in told if case.words in obstacle.what]
    assert advised, told
    assert set(advised) == {case.advice}


def test_a_rank_that_the_one_before_it_does_not_reach_says_so():
    """It has done its part, and no step can come to it."""
    made = Cluster(3, 4, strategy=Strategy.PIPELINE)
    made.network.closed = {("host1", "host2"), ("host2", "host1")}
    made.run_for(8.0)
    assert made.hosts["host2"].node.standing().phase is Phase.SERVING
    ((cause, text),) = says(made, "host2")
    assert cause is Cause.UNREACHABLE
    assert text.startswith("rank 1 (node1) cannot be reached at host1:1: no answer within 5 s")
    made.network.closed = set()
    made.run_until(lambda: made.ready)
    made.run_for(1.0)
    assert says(made, "host2") == []


def test_a_rank_cannot_say_away_that_it_fails():
    """A node that the head leaves out shows what the head says. The head shows what a rank says."""
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    failed = Failure(1, FailureKind.LINK_LOST, f"the next hop broke: {RING_CHANGED}")
    for host, shown in ("host0", [Cause.BROKEN]), ("host1", []):
        facts = made.hosts[host].node.facts(made.now)
        standing = attrs.evolve(facts.standing, phase=Phase.FAILED, failed=failed)
        found = obstacles(attrs.evolve(facts, standing=standing), made.now)
        assert [each.cause for each in found if RING_CHANGED in each.what] == shown


def test_a_tokenizer_that_is_still_loaded_is_told_of_a_ring_that_serves():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    facts = made.head.node.facts(made.now)
    (obstacle,) = obstacles(attrs.evolve(facts, text_loading=True), made.now)
    assert obstacle.cause is Cause.TOKENIZER_LOADING
    assert obstacle.what == "this node is loading the tokenizer"
    assert not obstacle.permanent


def test_an_engine_of_the_head_that_says_nothing_is_told_of_a_ring_that_serves():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    for host, told in ("host0", [Cause.ENGINE_SILENT]), ("host1", []):
        facts = made.hosts[host].node.facts(made.now)
        quiet = attrs.evolve(facts, engine_heard=made.now - ENGINE_SECONDS)
        assert obstacles(quiet, made.now) == []
        found = obstacles(quiet, made.now + 1.0)
        assert [each.cause for each in found] == told
    (silent,) = obstacles(attrs.evolve(made.head.node.facts(made.now), engine_heard=0.0), 20.0)
    assert silent.text(20.0) == "this node's engine says nothing (for 20 s)"


def test_the_head_names_every_rank_that_fetches_and_the_other_ranks_hear_it():
    made = Ring(3, unloadable="its layers are still being fetched; 1.0 of 2.0 GB are here")
    made.hosts["host1"].node.fetched(4 * 10**9, 16 * 10**9, made.now)
    made.hosts["host2"].node.fetched(2 * 10**9, 8 * 10**9, made.now)
    made.run_for(5.0)
    told = "rank 1 (node1): 4.0 of 16.0 GB; rank 2 (node2): 2.0 of 8.0 GB"
    for _ in range(3):  # whichever rank refused last
        assert says(made, "host0") == [(Cause.FETCHING, f"layers are still being fetched; {told}")]
        assert any(
            f"the head says: layers are still being fetched; {told}" in text
            for _, text in says(made, "host2")
        )
        made.run_for(5.0)
    refusals = [text for who, text in made.warnings if who == "host0" and "cannot serve" in text]
    assert len(refusals) == 2, refusals  # once for each
    lines = [at for at, who, text in made.notes if who == "host0" and text.count(told)]
    assert [round(b - a) for a, b in pairwise(lines)] == [10]
    made.hosts["host1"].node.fetched(0, 0, made.now)
    made.run_for(1.0)
    assert "node1" not in says(made, "host0")[0][1]
    assert made.head.node.facts(made.now).progress[2].here == 2 * 10**9


def test_what_holds_fetching_up_and_numbers_that_cannot_be_are_told_all_the_same():
    made = Ring(unloadable="its layers are held up on their way: no answer; 0 of 1 GB")
    made.hosts["host1"].node.fetched(2**64 - 1, 10**9, made.now)
    made.run_for(5.0)
    assert [text.partition(" (for")[0] for _, text in says(made, "host0")] == [
        "layers are still being fetched; rank 1 (node1): 1.0 of 1.0 GB",
        "rank 1 (node1) could not serve: its layers are held up on their way: no answer; 0 of 1 GB",
    ]


def test_an_engine_does_not_say_what_its_node_fetches():
    made = Cluster(2, 1)
    made.run_for(1.0)
    made.head.node.fetched(3, 4, made.now)
    told = Progress(rows=5, fetched_bytes=1, fetch_bytes=2)
    made.head.node.engine_message(Pong(0, told), made.now)
    known = made.head.node.facts(made.now).progress[0]
    assert known == attrs.evolve(told, fetched_bytes=3, fetch_bytes=4)


def test_the_same_refusal_is_one_warning():
    made = conflict()
    made.run_for(60.0)
    refusals = [text for who, text in made.warnings if who == "host0" and "link with" in text]
    assert len(refusals) == 1, refusals


def test_an_engine_that_cannot_read_its_model_is_told_with_the_reason():
    made = Cluster(2, 1)
    made.head.node.engine_message(
        CannotServe(NO_EPOCH, FailureKind.LOAD, "config.json is no JSON"), made.now
    )
    cause, text = says(made, "host0")[0]
    assert cause is Cause.ENGINE_UNREADABLE
    assert text == "this node's engine cannot read its model: config.json is no JSON"


def test_an_engine_that_has_read_its_model_is_faulty_if_it_says_that_it_cannot():
    """It would be told of as up, once it had ended."""
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    cannot = CannotServe(NO_EPOCH, FailureKind.LOAD, "config.json is no JSON")
    with pytest.raises(RemoteProtocolError, match="that it has described"):
        made.head.node.engine_message(cannot, made.now)
    made.kill_engine(made.head, back_after=100)
    made.run_for(5.0)
    assert [cause for cause, _ in says(made, "host0")] == [Cause.ENGINE_DYING]


def test_a_collective_that_does_not_come_up_is_told():
    made = Cluster(2, 1, strategy=Strategy.TENSOR, splits=2)
    made.collectives.joins = False
    made.run_until(lambda: made.head.node.standing().phase is Phase.JOINING)
    made.run_for(15.0)
    told = says(made, "host0")
    for who in ("this node", "rank 1 (node1)"):
        text = f"{who} joins the collective of tensor parallelism (for 15 s)"
        assert (Cause.COLLECTIVE, text) in told
    assert any("not serving: rank 1 (node1) joins" in text for _, _, text in made.notes)


def test_a_collective_that_comes_up_in_time_needs_nothing_done():
    made = Cluster(2, 1, splits=2)
    made.collectives.joins = False
    made.run_until(lambda: made.head.node.standing().phase is Phase.JOINING)
    made.run_for(5.0)
    for host in made.hosts.values():
        advice = {each.advice for each in host.node.obstacles(made.now)}
        assert advice == {""}, host


def test_a_machine_that_has_just_joined_is_starting():
    """Its node begins when it has stored the roster, and refuses connections before."""
    made = Cluster(1, 1, rosters=[make_roster(1)])
    made.run_until(lambda: made.ready)
    made.head.node.bring_roster(make_roster(2, serial=2).encode(), made.now, WALL)
    made.settle(made.head)
    made.run_for(10.0)
    (told,) = made.head.node.obstacles(made.now)
    assert (told.cause, told.what) == (
        Cause.DIALING,
        "rank 1 (node1) has just joined, and is starting",
    )
    assert "terminal" in told.advice
    made.run_for(60.0)
    (told,) = made.head.node.obstacles(made.now)
    assert told.cause is Cause.UNREACHABLE
    assert "start that node" in told.advice


def test_a_rank_says_what_it_does():
    made = Ring(unloadable="no such tensor")
    rank = made.hosts["host1"].node
    assert rank.standing().phase is Phase.NO_HEAD
    made.run_until(lambda: rank.standing().phase is Phase.GATHERING)
    made.run_until(lambda: rank.standing().phase is Phase.LOADING)
    made.run_until(lambda: rank.standing().phase is Phase.FAILED)
    assert rank.standing().failed.message == "no such tensor"
    made.unloadable = ""
    made.kill_engine(made.hosts["host1"])
    made.run_until(lambda: made.ready)
    assert rank.standing().phase is Phase.SERVING
    assert rank.standing().failed is None
    made.crash(made.head)
    made.run_for(1.0)
    assert rank.standing().phase is Phase.NO_HEAD


def test_a_node_says_that_its_engine_tries_its_layers():
    made = Ring(unloadable="no such tensor")
    node = made.hosts["host1"].node
    made.run_until(lambda: node.standing().phase is Phase.LOADING)
    facts = node.facts(made.now)
    (before,) = [o for o in obstacles(facts, made.now) if o.cause is Cause.LOADING]
    facts = attrs.evolve(facts, trying=True)
    (after,) = [o for o in obstacles(facts, made.now) if o.cause is Cause.LOADING]
    assert before.what == "this node loads its layers"
    assert after.what.startswith(
        "this node has read its weights, and runs its layers for the first"
    )
    assert "a GPU compiles kernels" in after.what


def test_a_collective_that_takes_long_to_come_up_has_advice():
    made = Ring(unloadable="no such tensor")
    node = made.hosts["host1"].node
    made.run_until(lambda: node.standing().phase is Phase.LOADING)
    facts = node.facts(made.now)
    facts = attrs.evolve(facts, standing=attrs.evolve(facts.standing, phase=Phase.JOINING))
    late = obstacles(facts, made.now + 20.0)
    assert [o.advice for o in late if o.cause is Cause.COLLECTIVE] == [ADVICE[Cause.COLLECTIVE]]


def test_every_cause_has_advice_or_needs_none():
    assert ADVICE.keys() == set(Cause)
