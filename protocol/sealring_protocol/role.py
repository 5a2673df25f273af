"""The role of a node: its brain, and what outlives the brain.

A node has another brain after each change of the roster or of the ring. `NodeRole` makes it, and
keeps the requests, the counts of requests and epochs, and who is present (`Attendance`). The ring
of a head may leave ranks out: its brain then has places of the ring for ranks, and `NodeRole` says
which is which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Build, Failure, Hello, Hindrance, Reason, Waiting
from sealring_protocol.control.effects import Effect, Outside, Preference, Send, Standing
from sealring_protocol.control.election import Ballot
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.head.attendance import HANDOVER_SECONDS, Attendance
from sealring_protocol.control.head.epochs import compare
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.plan import Collectives, PlanRequest, Strategy, make_plan
from sealring_protocol.control.requests import FinishReason, RequestDone, SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import PING_TIMEOUT
from sealring_protocol.security.handshake import HandshakeConfig, TrafficSecrets
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster, SignedRoster


@attrs.frozen
class NodeConfig:
    """Who this node is, and what it may do.

    *public_key* and *coordinator* are 65-byte keys (SEC 1). *instance* is a random u64 per process.
    *build* is what this program can do: a rank that has no step version in common is refused.
    *unpinned* is the digest that the model would have without its manifest (empty if it has none).
    *layers*, if given, are the chosen layer counts by rank; only the head's count. With
    *trust_weights* a head takes ranks whose weights differ from its own, or cannot be compared.
    """

    public_key: bytes
    roster: SignedRoster
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...] = tuple(Suite)
    build: Build = attrs.field(factory=Build)
    unpinned: bytes = b""
    trust_weights: bool = False
    strategy: Strategy = Strategy.AUTO
    layers: tuple[int, ...] = ()
    collectives: Collectives = attrs.field(factory=Collectives)
    group_seconds: float = 20.0
    least: int = 0
    """How many members make a ring, at least, where not all are present and those that are have
    room for the model; 0: all of them. With chosen *layers*, and with the strategies TENSOR and
    SINGLE, a ring has all."""
    patience: float = PING_TIMEOUT
    """Least seconds of silence after which a peer is lost. What exceeds the default is also added
    to the deadlines of tensor parallelism's steps."""
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    ballot: Ballot = attrs.field(factory=Ballot)
    """The last vote that this node has stored, of *roster*; none if it has stored none, or of
    another roster."""
    stands: bool = True
    """This node could serve as head, and asks for votes when the head is gone. One that does not
    stand is head where the roster, its owner or the head before it says so."""
    listens: tuple[str, int] | None = None
    """Host and port at which peers can dial this node, which it tells them."""
    relays: bool = False
    """This node passes requests of its clients on to the head, and as the head it answers those
    that other members pass on."""
    key_log: Callable[[TrafficSecrets], None] | None = attrs.field(default=None, repr=False)
    """See `HandshakeConfig.key_log`."""


def handshake_config(config: NodeConfig) -> HandshakeConfig:
    """The settings of the node's handshakes."""
    return HandshakeConfig(
        config.public_key,
        config.roster,
        config.coordinator,
        config.instance,
        config.suites,
        config.key_log,
    )


def follower_config(config: NodeConfig, roster: Roster, rank: int) -> FollowerConfig:
    """The settings of the follower of *rank* under *roster*."""
    names = tuple(member.name for member in roster.members)
    trusted = config.collectives.trusted
    policies = roster.inner_seal, trusted, roster.tensor_parallelism
    rights = tuple(member.rights for member in roster.members)
    return FollowerConfig(rank, names, *policies, config.build, rights)


def tensor_forbidden(roster: Roster, ring: tuple[int, ...]) -> str:
    """Why *roster* forbids that the ranks of *ring* take tensor parallelism; empty if it does
    not."""
    if not roster.tensor_parallelism:
        return "the roster forbids it"
    blind = [roster.members[rank].name for rank in ring if not roster.members[rank].sees_texts]
    if not blind:
        return ""
    return f"it gives every rank the tokens, and the roster lets {_listed(blind)} see no texts"


def head_config(
    config: NodeConfig,
    roster: Roster,
    ring: tuple[int, ...],
    first_uid: int,
    last_epoch: int,
    against: str,
) -> HeadConfig:
    """The settings of the head of *ring* (ranks, place by place) under *roster*. Request uids go on
    from *first_uid*, epochs from *last_epoch*. *against* is that of `PlanRequest`."""
    members = [roster.members[rank] for rank in ring]
    forbidden = tensor_forbidden(roster, ring)
    plan = PlanRequest(config.strategy, config.layers, config.collectives, against, forbidden)
    return HeadConfig(
        config.instance,
        tuple(member.name for member in members),
        tuple(member.host for member in members),
        plan,
        roster.inner_seal,
        config.scheduler,
        group_seconds=config.group_seconds,
        patience=config.patience,
        first_uid=first_uid,
        last_epoch=last_epoch,
        build=config.build,
        unpinned=config.unpinned,
        trust_weights=config.trust_weights,
        members=() if ring == tuple(range(len(ring))) else ring,
    )


def _listed(names: list[str]) -> str:
    """*names* as a sentence has them: "desk, shelf and den"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


class NodeRole:
    """The role of *rank* under *roster*: its brain; and across changes of the roster and of the
    ring the requests that a head has, and with which members tensor parallelism was measured and
    not worth it.

    The ring of a head may leave ranks out. Its brain then has places of the ring for ranks; this
    class and the node translate. A head takes steps only while it *leads*, which is asked with the
    time.
    """

    def __init__(
        self,
        config: NodeConfig,
        roster: Roster,
        rank: int,
        now: float,
        leads: Callable[[float], bool],
    ) -> None:
        self._config = config
        self._leads = leads
        self._requests: set[int] = set()
        self._told: dict[int, Reason] = {}  # why they are outside, by rank
        self._next_uid = 1
        self._last_epoch = 0
        self._tensor_slower: dict[frozenset[bytes], str] = {}  # why, by the ring's members' ids
        self._begin(roster, rank, now)
        self.brain = self._make_brain(now)
        """The control machine."""

    def _begin(
        self,
        roster: Roster,
        rank: int,
        now: float,
        patience: Mapping[int, float] | None = None,
    ) -> None:
        self._rank, self._roster = rank, roster
        self.members = frozenset(member.id for member in roster.members)
        self.ring = roster.workers
        """The ranks of the ring, place by place. A follower's are those of the last `NewRing`."""
        self.attendance: Attendance | None = None
        """Who is present; None where the whole roster makes the only ring."""
        self._told.clear()
        if rank == 0 and self._may_leave_out:
            self.attendance = Attendance(self.ring, self._config.least, now, patience)

    @property
    def _may_leave_out(self) -> bool:
        whole = self._config.strategy in (Strategy.TENSOR, Strategy.SINGLE)
        return self._config.least > 0 and not whole and not self._config.layers

    def _make_brain(self, now: float, before: Head | Follower | None = None) -> Head | Follower:
        """A head takes over the requests of a head that was there *before*."""
        if self._rank > 0:
            return Follower(follower_config(self._config, self._roster, self._rank), now)
        head = Head(self._head_config(self.ring), now, self._leads)
        if isinstance(before, Head):
            head.inherit(before.scheduler)
        return head

    def _ids(self, ring: tuple[int, ...]) -> frozenset[bytes]:
        return frozenset(self._roster.members[rank].id for rank in ring)

    def _head_config(self, ring: tuple[int, ...]) -> HeadConfig:
        against = self._tensor_slower.get(self._ids(ring), "")
        return head_config(
            self._config, self._roster, ring, self._next_uid, self._last_epoch, against
        )

    def change(
        self, roster: Roster, rank: int, now: float, here: Collection[bytes], *, sought: bool
    ) -> list[Effect]:
        """Have the brain retire, and make another, for *rank* under *roster*. If this node stays
        the head, its requests go on, and are prefilled again. Otherwise they end. A node that was
        elected waits only for the members *here*, by their ids, if it has *sought* them all; else
        the head before has made it head, and those of that one's ring come soon."""
        before, effects = self._retire()
        members = [self._roster.members[rank].id for rank in self.ring]
        elected = roster.digest == self._roster.digest and roster.mandate != self._roster.mandate
        ids = {each: roster.members[each].id for each in roster.workers if each}
        gone = {each: 0.0 for each in ids if ids[each] not in here}
        soon = {each: HANDOVER_SECONDS for each in ids if ids[each] in members and not sought}
        self._begin(roster, rank, now, gone | soon if elected else None)
        if self.attendance is not None and isinstance(before, Head):
            # A member that was not in the ring is not waited for.
            left = {roster.rank(each) for each in members if each in roster}
            self.ring = tuple(rank for rank in roster.workers if rank in left)
        self.brain = self._make_brain(now, before)
        if isinstance(before, Head) and rank > 0:
            name = roster.members[0].name
            text = f"roster {roster.serial} makes {name} the head; ask there"
            if roster.mandate.term:
                text = f"{name} is the head now; ask there"
            failed = FinishReason.FAILED
            effects += [RequestDone(uid, failed, text) for uid in sorted(self._requests)]
        return effects

    def change_ring(self, ring: tuple[int, ...], now: float) -> list[Effect]:
        """Have the head's brain retire, and make another, for *ring*. Its requests go on, and are
        prefilled again."""
        before, effects = self._retire()
        self.ring = ring
        self.brain = self._make_brain(now, before)
        return effects

    def _retire(self) -> tuple[Head | Follower, list[Effect]]:
        before = self.brain
        effects = before.retire()
        if isinstance(before, Head):
            self._last_epoch = before.epochs.membership.epoch.counter
            if before.epochs.tensor_slower:
                self._tensor_slower[self._ids(self.ring)] = before.epochs.tensor_slower
        return before, effects

    # ---------------------------------------------------------- ranks and places

    @property
    def places(self) -> tuple[int, ...] | None:
        """The rank of each place, if the brain has places for ranks; else None."""
        whole = self._rank > 0 or len(self.ring) == len(self._roster.members)
        return None if whole else self.ring

    def place(self, rank: int) -> int | None:
        """What the brain calls *rank*; None if the ring leaves it out."""
        if (places := self.places) is None:
            return rank
        return places.index(rank) if rank in places else None

    def link_lost(self, rank: int, now: float) -> None:
        """The control link with *rank* is gone."""
        self._told.pop(rank, None)
        if self.attendance is not None:
            self.attendance.lost(rank, now)

    def epoch_over(self, failed: Failure | None, broke: Failure | None, now: float) -> None:
        """The head's epoch is over; *failed* and *broke* (`EpochOver`) name places."""
        if self.attendance is None:
            return
        self.attendance.epoch_over(self._of_rank(failed), now)
        if broke is not None:
            self.broke(broke, now)

    def broke(self, failed: Failure, now: float) -> None:
        """The place that *failed* ended an epoch."""
        end = self._of_rank(failed)
        if self.attendance is not None and end is not None:
            self.attendance.broke(end, now)

    def _of_rank(self, failed: Failure | None) -> Failure | None:
        """*failed*, which names a place, with the rank that people know."""
        if failed is None or self.places is None:
            return failed
        return attrs.evolve(failed, rank=self.places[failed.rank])

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* starved for *seconds* more."""
        if (place := self.place(rank)) is not None:
            self.brain.starved(place, seconds, now)

    def standing(self) -> Standing:
        """That of the brain, with the ranks that people know."""
        standing, places = self.brain.standing(), self.places
        if self._rank:
            return standing
        outside, needs_all = self.outside(), self.needs_all
        standing = attrs.evolve(standing, ring=self.ring, outside=outside, needs_all=needs_all)
        if self.attendance is not None:
            hellos = dict(sorted(self.attendance.hellos.items()))
            standing = attrs.evolve(
                standing,
                preference=self.attendance.preference,
                present=hellos.keys(),
                builds={rank: hello.build for rank, hello in hellos.items()},
                rooms={rank: hello.room for rank, hello in hellos.items()},
            )
        if places is None:
            return standing
        return attrs.evolve(
            standing,
            missing=tuple(places[place] for place in standing.missing),
            failed=self._of_rank(standing.failed),
            unreadable={places[place]: why for place, why in standing.unreadable.items()},
            ready={places[place]: ready for place, ready in standing.ready.items()},
        )

    # -------------------------------------------------------------- who is there

    def wanted_ring(self, info: EngineInfo | None, now: float) -> tuple[int, ...]:
        """The ring that there should be, by who is present; *info* describes the head's model."""
        if self.attendance is None or info is None:
            return self.ring
        hellos = self.attendance.hellos
        if self.brain.serving:
            self.attendance.serves(self.ring)

        def fits(ring: tuple[int, ...]) -> bool:
            rooms = [hellos[rank].room for rank in ring]
            try:
                make_plan(self._head_config(ring).plan_request, info, rooms)
            except LocalProtocolError:
                return False
            return True

        return self.attendance.ring(self.ring, now, fits, self._idle_from)

    def prefer(self, preference: Preference | None) -> None:
        """See `Node.prefer`."""
        if self.attendance is None:
            raise LocalProtocolError("this node cannot make a ring of some members")
        self.attendance.prefer(preference, self.ring)

    @property
    def _idle_from(self) -> float:
        return self.brain.idle_from if isinstance(self.brain, Head) else math.inf

    def ring_due(self, now: float) -> float | None:
        """When to ask for the `wanted_ring` again, if nobody comes or goes; None: not at all."""
        if self.attendance is None:
            return None
        return self.attendance.deadline(self.ring, now, self._idle_from)

    def outside(self) -> dict[int, Outside]:
        """Why each rank is outside of the ring, but for witnesses."""
        if self.attendance is None:
            return {}
        ranks = (rank for rank in self._roster.workers if rank not in self.ring)
        return {rank: self.attendance.why_outside(rank) for rank in ranks}

    @property
    def needs_all(self) -> str:
        """`Standing.needs_all`."""
        config, attendance = self._config, self.attendance
        if attendance is None:
            what = (
                "the chosen layers need"
                if config.layers
                else f"strategy {config.strategy.value} needs"
            )
            return f"{what} every machine" if config.least and not self._rank else ""
        if not attendance.stuck or 0 not in attendance.hellos:
            return ""
        here = [self._roster.members[rank].name for rank in sorted(attendance.hellos)]
        if len(here) < config.least:
            return f"min_ranks in {here[0]}'s config asks for {config.least} machines"
        return f"the model does not fit on {_listed(here)} alone"

    def readdress(self, roster: Roster) -> None:
        """*roster* is in force, whose members have other addresses."""
        self._roster = roster
        if isinstance(self.brain, Head):
            self.brain.readdress(tuple(roster.members[rank].host for rank in self.ring))

    def notices(self) -> list[Send]:
        """The WAITINGs to the ranks that are present, and that the ring goes on without: why."""
        if self.attendance is None:
            return []
        due = {
            rank: Reason(
                Hindrance.OUTSIDE, rank, f"the ring goes on without this machine: {outside.why}"
            )
            for rank, outside in self.outside().items()
            if rank in self.attendance.hellos
        }
        news = {rank: each for rank, each in due.items() if self._told.get(rank) != each}
        self._told = due
        return [Send(rank, Purpose.CONTROL, Waiting((each,))) for rank, each in news.items()]

    def outsider(self, rank: int, hello: Hello, info: EngineInfo | None) -> list[Effect]:
        """*rank*, which the ring leaves out, said *hello*: end its link if it can never be taken
        in."""
        known = {} if self.attendance is None else self.attendance.hellos
        whole = self._head_config(tuple(range(len(self._roster.members))))  # names by rank
        answer = compare(whole, info, rank, hello, known)
        return [] if answer is None else [answer]

    def head(self) -> Head:
        """The brain, of a head. Raises `LocalProtocolError` on any other rank."""
        if isinstance(self.brain, Head):
            return self.brain
        text = f"this node is rank {self._rank}, which takes no requests; ask the head, "
        raise LocalProtocolError(text + self._roster.members[0].name)

    def submitted(self, uid: int) -> None:
        """The head has queued request *uid*."""
        self._requests.add(uid)
        self._next_uid = uid + 1

    def request_done(self, uid: int) -> None:
        """Request *uid* is over."""
        self._requests.discard(uid)
