"""Elections of a few members, with everything that may happen to them, and what must hold.

The members are the ones that a node has (`Election`), and so nothing is modelled of them: the world
around them is. It has links whose directions go dead one by one, messages and disks that are held
up for as long as they like, members that restart, votes that a disk has lost, and owners who move
the head or take its place. `search` visits every state that a few such events, at any moments and
in any order, lead to; between them each message arrives, and then a second passes. `walk` goes one
way at random, for longer and with all messages in any order, and with clocks that differ.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Final

import attrs
from sealring_protocol.codec.election_messages import (
    ElectionMessage,
    Vote,
)
from sealring_protocol.control.election import (
    Ballot,
    Cast,
    Chosen,
    Election,
    ElectionEffect,
    ElectionState,
    MeetMembers,
    Tell,
)
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.mandate import Mandate
from sealring_protocol.table import Machine

ELECTION_PROPERTIES: Final = {
    "one lease": "no two elected heads lead at one moment",
    "one head": "no two members are elected in one term",
    "no coup": "nobody who sees a head obeys one that was taken",
    "a head": "somebody leads soon after all reach each other again",
}


Envelope = ElectionMessage | Mandate
Action = tuple[str, int, int]
Way = tuple[int, int]


class Broken(Exception):
    """A property does not hold."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


@attrs.frozen
class Case:
    """How many *members*, and how often each thing may happen. *seconds* pass in all. *holds* are
    of a direction of a link, or of a disk, until it is let go."""

    members: int
    seconds: int
    holds: int = 0
    cuts: int = 0
    heals: int = 0
    restarts: int = 0
    lost_votes: int = 0
    moves: int = 0
    takes: int = 0
    apart: frozenset[Way] = frozenset()
    """The members that do not reach each other: pairs, the greater one first."""

    @property
    def told(self) -> str:
        """In words: "3 members, 6 s, 2 cuts"."""
        counts = attrs.asdict(self, filter=attrs.filters.exclude("members", "seconds", "apart"))
        some = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        return ", ".join([f"{self.members} members", f"{self.seconds} s", *some])


NOTICED: Final = 2
"""Seconds of silence after which an end gives a link up."""

EVENTS: Final = 0.2
"""How often something rare happens in a step of a walk."""


def copied(election: Election) -> Election:
    """Another member in the same state."""
    other = type(election).__new__(type(election))
    other.__dict__.update(election.__dict__)
    now = other.__dict__
    machine = Machine(election._machine._table, election.state)
    now["_machine"], now["_linked"] = machine, set(election._linked)
    now["_favours"] = dict(election._favours)
    now["_heard_at"] = dict(election._heard_at)
    now["_refused_until"] = dict(election._refused_until)
    if election._proposal is not None:
        proposal = attrs.evolve(election._proposal)
        proposal.votes = dict(proposal.votes)
        now["_proposal"] = proposal
    lease = attrs.evolve(election._lease)
    lease.sent, lease.fresh = deque(lease.sent, lease.sent.maxlen), dict(lease.fresh)
    now["_lease"] = lease
    return other


def portrait(election: Election) -> tuple[object, ...]:
    """All that decides what a member does."""
    e, proposal, lease = election, election._proposal, election._lease
    asks = None
    if proposal is not None:
        votes = frozenset(proposal.votes)
        asks = proposal.ballot, proposal.taken, proposal.ends, proposal.ask_at, votes
        asks = (*asks, proposal.chosen)  # type: ignore[assignment]
    fresh = frozenset(lease.fresh.items())
    leads = (lease.due, lease.count, tuple(lease.sent), fresh, lease.given_up)
    times = (e._contact, e._ask_at, e._confirm_at, e._renewed)
    refusals = frozenset(e._refused_until.items())
    hears = (e._heard, frozenset(e._heard_at.items()), e._split, e._rival, refusals)
    casts = (e._casting, e._signed, frozenset(e._linked), frozenset(e._favours.items()))
    return (e.mandate, e.ballot, e.state, e.stands, *times, *hears, *casts, asks, *leads)


class World:
    """The members, each with its clock, its disk, its links, and what is under way to it."""

    def __init__(
        self, case: Case, kind: type[Election] = Election, rates: tuple[float, ...] = ()
    ) -> None:
        self.case, self._kind = case, kind
        self.now = 0.0
        self._rates = rates or (1.0,) * case.members
        every = range(case.members)
        self._heads = tuple(every)
        self.members = [kind(case.members, own, self._heads, 0.0) for own in every]
        self._portraits: list[tuple[object, ...] | None] = [None] * case.members
        self._disks = [(Mandate(), Ballot()) for _ in every]
        self._before = [Ballot() for _ in every]  # the vote before the last
        self.up: set[Way] = set()
        self._dead: set[Way] = set()
        self._held: set[Way] = set()  # a member's way to itself is its disk
        self._tried: set[Way] = set()  # where no link comes up now: their mandates differ
        self._silent: dict[Way, float] = {}  # since when an end hears nothing
        self._queues: dict[Way, tuple[Envelope, ...]] = {}
        self._elected: dict[int, int] = {}
        counted = attrs.filters.exclude("members", "apart")
        self.left = attrs.asdict(case, filter=counted)
        while usual := self.usual():
            self.do(usual[0])

    def clock(self, own: int) -> float:
        """The time by the clock of *own*."""
        return self.now * self._rates[own]

    def copy(self) -> World:
        """A world in the same state; members are shared until one of them changes."""
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        for name in ("members", "_portraits", "_disks", "_before"):
            other.__dict__[name] = list(self.__dict__[name])
        for name in ("up", "_dead", "_held", "_tried"):
            other.__dict__[name] = set(self.__dict__[name])
        for name in ("_queues", "_elected", "_silent", "left"):
            other.__dict__[name] = dict(self.__dict__[name])
        return other

    def key(self) -> object:
        """What distinguishes this state from others."""
        for own, known in enumerate(self._portraits):
            if known is None:
                self._portraits[own] = portrait(self.members[own])
        waiting = frozenset((way, queue) for way, queue in self._queues.items() if queue)
        links = frozenset(self.up), frozenset(self._dead), frozenset(self._held), waiting
        links = (*links, frozenset(self._tried))
        disks = tuple(self._disks), tuple(self._before), tuple(self._elected.items())
        silent = frozenset(self._silent.items())
        left = tuple(self.left.values())
        return hash((*self._portraits, *links, *disks, silent, self.now, left))

    # ---------------------------------------------------------------- what may happen

    def usual(self) -> list[Action]:
        """What happens by itself: messages that arrive, votes that reach the disk, and links that
        come up."""
        found: list[Action] = [
            ("deliver", *way)
            for way, queue in sorted(self._queues.items())
            if queue and way not in self._held
        ]
        for own, member in enumerate(self.members):
            if member._casting is not None and (own, own) not in self._held:
                found.append(("cast", own, own))
        for one in range(self.case.members):
            for other in range(one):
                ways = {(one, other), (other, one)}
                known = self.up | self._dead | self._tried | self.case.apart
                if not ways & known:
                    found.append(("dial", one, other))
        return found

    def actions(self) -> Iterator[Action]:
        """What happens next, if nothing else does, and all else that may happen."""
        usual = self.usual()
        if usual:
            yield usual[0]
        elif self.left["seconds"]:
            yield "tick", 0, 0
        yield from self.events()

    def events(self) -> Iterator[Action]:
        """All that may happen but rarely."""
        left, every = self.left, range(self.case.members)
        if left["holds"]:
            usual = (each for each in self.usual() if each[0] != "dial")
            yield from (("hold", one, other) for _, one, other in usual)
        yield from (("release", *way) for way in self._held)
        for one in every:
            for other in every:
                if one == other:
                    continue
                if left["cuts"] and (one, other) in self.up and (one, other) not in self._dead:
                    yield "cut", one, other
                if left["heals"] and one > other and {(one, other), (other, one)} & self._dead:
                    yield "heal", one, other
                if left["moves"] and self.members[one].state is ElectionState.LEADING:
                    yield "move", one, other
            if left["restarts"]:
                yield "restart", one, 0
            if left["lost_votes"] and self._disks[one][1] != self._before[one]:
                yield "lose", one, 0
            if left["takes"]:
                yield "take", one, 0

    def do(self, action: Action) -> bool:
        """Have *action* happen. False if it is none here. Raises `Broken`."""
        name, one, other = action
        match name:
            case "deliver":
                first, *rest = self._queues[one, other]
                self._queues[one, other] = tuple(rest)
                self._deliver(one, other, first)
            case "cast":
                own = self._member(one)
                assert own._casting is not None
                self._before[one] = self._disks[one][1]
                self._disks[one] = self._disks[one][0], own._casting[0]
                self._carry_out(one, own.cast(b"", self.clock(one)))
            case "dial":
                self._dial(one, other)
            case "hold":
                self._held.add((one, other))
            case "release":
                self._held.discard((one, other))
            case "tick":
                self.wait(1.0)
            case "cut":
                self._dead.add((one, other))
                self._queues.pop((one, other), None)
            case "heal":
                self._dead -= {(one, other), (other, one)}
            case "restart" | "lose":
                if name == "lose":
                    self._disks[one] = self._disks[one][0], self._before[one]
                self._restart(one)
            case _:
                try:
                    member = self._member(one)
                    now = self.clock(one)
                    self._carry_out(
                        one, member.move(other, now) if name == "move" else member.take(now)
                    )
                except LocalProtocolError:
                    return False
        count = {"tick": "seconds", "lose": "lost_votes"}.get(name, f"{name}s")
        if count in self.left:
            self.left[count] -= 1
        self._check()
        return True

    def wait(self, seconds: float) -> None:
        """*seconds* pass. Raises `Broken`."""
        self.now += seconds
        for own, peer in sorted(self.up):
            heard = (peer, own) in self.up and (peer, own) not in self._dead
            if not heard and self.now >= self._silent.setdefault((own, peer), self.now) + NOTICED:
                self._drop(own, peer)
        self._tried.clear()
        for own in range(self.case.members):
            due = self.members[own].next_timeout()
            if due is not None and self.clock(own) >= due:
                self._carry_out(own, self._member(own).handle_timeout(self.clock(own)))
        self._check()

    def _member(self, own: int) -> Election:
        """*own*, which is about to change."""
        self.members[own] = copied(self.members[own])
        self._portraits[own] = None
        return self.members[own]

    def _dial(self, one: int, other: int) -> None:
        """A link comes up, if the two hold one mandate or come to."""
        mandates = self.members[one].mandate, self.members[other].mandate
        if mandates[0].beats(mandates[1]):
            self._hear(other, mandates[0])
        elif mandates[1].beats(mandates[0]):
            self._hear(one, mandates[1])
        if self.members[one].mandate != self.members[other].mandate:
            self._tried.add((one, other))
            return
        self.up |= {(one, other), (other, one)}
        for own, peer in ((one, other), (other, one)):
            self._carry_out(own, self._member(own).link_up(peer, self.clock(own)))

    def _drop(self, own: int, peer: int) -> None:
        self.up.discard((own, peer))
        self._queues.pop((peer, own), None)
        self._silent.pop((own, peer), None)
        self._held.discard((peer, own))
        self._member(own).link_down(peer, self.clock(own))

    def _close(self, own: int, peer: int) -> None:
        """*own* ends its link with *peer*, which hears of it if that way works."""
        for end, other in ((own, peer), (peer, own)):
            if (end, other) in self.up and (end == own or (own, peer) not in self._dead):
                self._drop(end, other)

    def _restart(self, own: int) -> None:
        for peer in range(self.case.members):
            self._close(own, peer)
        for way in [way for way in self._queues if own in way]:
            del self._queues[way]
        self._held = {way for way in self._held if own not in way}
        mandate, ballot = self._disks[own]
        count = self.case.members
        self.members[own] = self._kind(count, own, self._heads, self.clock(own), mandate, ballot)
        self._portraits[own] = None

    def _send(self, own: int, peer: int, message: Envelope) -> None:
        # A later message takes the place of one of its kind that waits: it says no less.
        if {(own, peer), (peer, own)} <= self.up and (own, peer) not in self._dead:
            kind = type(message)
            waiting = [
                each
                for each in self._queues.get((own, peer), ())
                if type(each) is not kind or isinstance(each, Vote)
            ]
            self._queues[own, peer] = (*waiting, message)

    def _deliver(self, sender: int, own: int, message: Envelope) -> None:
        if isinstance(message, Mandate):
            self._hear(own, message)
        else:
            self._carry_out(own, self._member(own).receive(sender, message, self.clock(own)))

    def _hear(self, own: int, mandate: Mandate) -> None:
        """*own* hears of *mandate*."""
        member, now = self.members[own], self.clock(own)
        if member.obeys(mandate, now):
            seen = member.mandate.head in member._linked
            if mandate.taken and seen and member.mandate.head not in (own, mandate.head):
                raise Broken("no coup", f"{own} obeys {mandate}, and sees {member.mandate.head}")
            self._obey(own, mandate)
        elif mandate.beats(member.mandate):
            self._carry_out(own, self._member(own).rival(mandate, now))

    def _obey(self, own: int, mandate: Mandate) -> None:
        changed = mandate.head != self.members[own].mandate.head
        self._disks[own] = mandate, self._disks[own][1]
        self._carry_out(own, self._member(own).obey(mandate, self.clock(own)))
        for peer in range(self.case.members):
            if changed:
                self._close(own, peer)
            self._send(own, peer, mandate)

    def _carry_out(self, own: int, effects: list[ElectionEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell(peer, message):
                    self._send(own, peer, message)
                case Chosen(mandate):
                    if not mandate.taken:
                        head = self._elected.setdefault(mandate.term, mandate.head)
                        if head != mandate.head:
                            detail = f"{head} and {mandate.head} in term {mandate.term}"
                            raise Broken("one head", detail)
                    if self.members[own].obeys(mandate, self.clock(own)) or mandate.taken:
                        self._obey(own, mandate)
                case Cast() | MeetMembers():
                    pass  # the cast is an action of its own; links heal by themselves

    def say(self, sender: int, peer: int, message: ElectionMessage) -> None:
        """*sender* says *message* to *peer*, whatever its own state."""
        self._send(sender, peer, message)

    def settle(self, seconds: float, step: float = 0.25) -> bool:
        """Everything works from now on, for so many *seconds*: true if somebody leads then.
        Raises `Broken`."""
        self._held.clear()
        self._dead.clear()
        end = self.now + seconds
        while self.now < end:
            while usual := self.usual():
                self.do(usual[0])
            self.wait(step)
        heads = {member.mandate for member in self.members}
        return len(heads) == 1 and any(
            member.leads(self.clock(own)) for own, member in enumerate(self.members)
        )

    def leaders(self) -> list[int]:
        """Who leads at this moment, elected."""
        return [
            own
            for own, member in enumerate(self.members)
            if not member.mandate.taken and member.leads(self.clock(own))
        ]

    def _check(self) -> None:
        if len(leaders := self.leaders()) > 1:
            told = ", ".join(f"{own} by {self.members[own].mandate}" for own in leaders)
            raise Broken("one lease", told)


# ---------------------------------------------------------------------- going through them


@attrs.frozen
class Seen:
    """What a search or a walk has seen: how many *states*, and what is *broken* first."""

    states: int
    broken: Broken | None = None
    trace: tuple[Action, ...] = ()


def search(case: Case, kind: type[Election] = Election, owed: str = "") -> Seen:
    """Every state that *case* leads to, or until a property breaks: the one that is *owed*, if
    any is."""
    seen: set[object] = set()
    todo: list[tuple[World, tuple[Action, ...]]] = [(World(case, kind), ())]
    while todo:
        world, trace = todo.pop()
        for action in world.actions():
            after = world.copy()
            try:
                if not after.do(action):
                    continue
            except Broken as error:
                if owed in ("", error.name):
                    return Seen(len(seen), error, (*trace, action))
                continue
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append((after, (*trace, action)))
    return Seen(len(seen))


def walk(
    case: Case,
    seed: int,
    kind: type[Election] = Election,
    *,
    drift: float = 0.0,
    step: float = 0.25,
    settles: float = 0.0,
) -> Seen:
    """One way through *case*, by *seed*, with clocks that are off by up to *drift* of time, in
    steps of *step* seconds. If it *settles*, somebody leads so many seconds after the last
    fault."""
    chance = random.Random(seed)
    rates = tuple(chance.uniform(1 - drift, 1 + drift) for _ in range(case.members))
    world = World(case, kind, rates)
    trace: list[Action] = []
    hurry = chance.choice((0.4, 0.8, 0.98))
    while world.now < case.seconds:
        try:
            events = sorted(world.events())
            if events and chance.random() < EVENTS:
                name = chance.choice(sorted({name for name, _, _ in events}))
                action = chance.choice([each for each in events if each[0] == name])
                trace.append(action)
                world.do(action)
            while chance.random() < hurry and (usual := world.usual()):
                action = chance.choice(usual)
                trace.append(action)
                world.do(action)
            trace.append(("tick", 0, 0))
            world.wait(step)
        except Broken as error:
            return Seen(len(trace), error, tuple(trace))
    try:
        settled = not settles or world.settle(settles)
    except Broken as error:
        return Seen(len(trace), error, tuple(trace))
    broken = None if settled else Broken("a head", "nobody leads, though all reach each other")
    return Seen(len(trace), broken, tuple(trace))
