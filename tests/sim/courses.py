"""Whole rings with clients, to which anything happens, by one seed; and what must always hold.

A seed gives 3 to 7 members with some rights, clocks that run differently, and perhaps one that lies
about elections. Then come faults of some kinds: `FAULTS`. Each method of `Course` that it names has
one happen, to anybody. In the end everything works again, and there is to be a head, soon.

What must hold: no two elected heads lead at one moment (`Ring`); nobody votes twice in a term, and
no two members are elected in one, unless a disk has lost a vote; nobody who sees a head obeys one
that was taken; and what a client has of its answer is right, whole and there once (`doors.Client`).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

import attrs
import trio
from sealring.http.keys import KEY_FILE, KeyRecord, digest, write_keys
from sealring_protocol import voting
from sealring_protocol.codec.election_messages import (
    Candidacy,
    ElectionMessage,
    NoVote,
    NoVoteReason,
    Renewed,
)
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Step, StepDone
from sealring_protocol.control.election import Election, ElectionEffect, Tell
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import CastVote, RosterInForce, StoreRoster
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Rights, SignedRoster

from tests.sim.doors import KEY, Client, Doors, VirtualClock
from tests.sim.hosts import Host
from tests.sim.ring import LAYERS
from tests.sim.rosters import WALL, make_roster

HEAD_SECONDS: Final = 60.0
"""Within how many seconds of the last fault there is a head."""

WHOLE_SECONDS: Final = 200.0
"""The same of the whole ring, and of the answers under way."""

Kind = Callable[..., Election]


class Liar(Election):
    """It keeps to the rules of votes and leases, but says anything of terms, and asks for votes."""

    def __init__(self, dice: random.Random, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._dice = dice

    def receive(self, peer: int, message: ElectionMessage, now: float) -> list[ElectionEffect]:
        found = super().receive(peer, message, now)
        if self._dice.random() < 0.3 and peer in self._linked:
            term = self.latest + self._dice.choice((0, 1, 2, 1 << 20, 1 << 60))
            head = self._dice.choice((self._own, peer, self.mandate.head))
            lies = (
                Candidacy(term, self._own),
                Candidacy(term, head),
                NoVote(term, head, term, NoVoteReason.VOTED),
                Renewed(self.mandate.term, self._dice.randrange(200), term),
            )
            found.append(Tell(peer, self._dice.choice(lies)))
        return found


def pace(message: LocalMessage) -> float:
    """Engines are slow, so that a few tokens take long."""
    return 0.03 if isinstance(message, Step | StepDone) else 0.001


class Course(Doors):
    """What happens by *seed*. Members are of that *kind*, and keep no votes if *forgets*."""

    def __init__(
        self,
        nursery: trio.Nursery,
        clock: VirtualClock,
        seed: int,
        kind: Kind = Election,
        *,
        forgets: bool = False,
    ) -> None:
        self.dice = dice = random.Random(seed)
        self.forgets = forgets
        self.serial = 1
        self.forgetful: set[str] = set()  # hosts whose disks have lost a vote
        self.voted: dict[tuple[str, bytes, int], int] = {}
        self.elected: dict[tuple[bytes, int], bytes] = {}
        self.clients: list[Client] = []
        self.happened: list[str] = []
        self._upsets = 0  # votes to come that are to be upset
        self._mended = False  # nothing happens any more
        world = dice.choice((3, 3, 3, 4, 5, 5, 5, 6, 7))
        members = range(world)
        some = (Rights.TEXT,) * 5 + (Rights(0), Rights.WITNESS)
        self.rights = {index: dice.choice(some) for index in members[1:]}
        self.rights[dice.randrange(1, world)] = Rights.TEXT
        rates = {index: dice.uniform(0.9, 1.1) for index in members} if dice.random() < 0.6 else {}
        self.liar = dice.randrange(1, world) if dice.random() < 0.12 else None
        self._kind = kind
        kinds = dice.sample(FAULTS, dice.choice((2, 3, 4, 6, len(FAULTS))))
        self.kinds = [*kinds, "upset", "heal", "restart", *dice.choice(([], ["ask"]))]
        with mock.patch.object(voting, "Election", self._member):
            super().__init__(
                *(nursery, clock, state(), world, seed),
                least=1,
                rosters=[self._roster()] * world,
                scheduler=SchedulerConfig(groups=2, rows=2, chunk=5, retries=10**6),
                delay=dice.choice((0.002, 0.002, 0.02)),
                pace=pace,
                relays=members,
                rates=rates,
            )
        self.network.sizes = (100, 100_000, 100_000)

    def _member(self, count: int, own: int, *given: Any, **named: Any) -> Election:
        if own == self.liar:
            return Liar(self.dice, count, own, *given, **named)
        return self._kind(count, own, *given, **named)

    def _roster(self, first: int = 0) -> SignedRoster:
        order = (first, *(index for index in range(len(self.rights) + 1) if index != first))
        return make_roster(len(order), self.serial, order=order, rights=self.rights)

    # ------------------------------------------------------- what must hold

    def _on(self, host: Host, event: Any) -> None:
        match event:
            case CastVote(digest, ballot) if not host.full:
                key = host.name, digest, ballot.term
                before = self.voted.setdefault(key, ballot.head)
                if before != ballot.head and host.name not in self.forgetful:
                    self.breaks(f"two votes: {key}, {before} and {ballot.head}")
                if self._upsets:
                    self._upsets -= 1
                    roster = host.node.roster.roster
                    wanted = roster.members[roster.rank_at(ballot.head)].name
                    other = self.hosts[wanted.replace("node", "host")]
                    late = self.dice.choice((0.0, 0.001, 0.01, 0.1))
                    self.after(late, lambda: self._upset_vote(host, other))
            case StoreRoster(_, data):
                self._check_taken(host, SignedRoster.decode(data))
        super()._on(host, event)
        match event:
            case CastVote() if self.forgets and not host.full:
                host.votes.pop()
            case RosterInForce():
                roster = host.node.roster.roster
                term, head = roster.mandate.term, roster.members[0].id
                if not roster.mandate.taken and not self.forgetful:
                    known = self.elected.setdefault((roster.digest, term), head)
                    if known != head:
                        self.breaks(f"two are elected in term {term}")

    def _check_taken(self, host: Host, brought: SignedRoster) -> None:
        """Nobody who sees its head obeys one that was taken."""
        node, roster = host.node, host.node.roster.roster
        mandate = brought.roster.mandate
        same = brought.roster.digest == roster.digest and node.rank
        if same and mandate.taken and brought.roster.members[0].id != roster.members[0].id:
            if brought.roster.members[0].id == roster.members[node.rank].id:
                return
            links = {rank for rank, purpose, _ in node.links() if purpose is Purpose.CONTROL}
            if 0 in links:
                self.breaks(f"a coup: {host.name} obeys {mandate}, and sees its head")

    # ------------------------------------------------------- what happens

    def some_host(self) -> Host:
        return self.hosts[f"host{self.dice.randrange(len(self.hosts))}"]

    def misfortune(self) -> None:
        """Something happens."""
        name = self.dice.choice(self.kinds)
        self.happened.append(f"{self.now:.3f} {name}")
        getattr(self, f"_{name}")()

    def _ask(self, count: int = 0) -> Client:
        prompt = tuple(self.dice.randrange(900) for _ in range(self.dice.randrange(1, 12)))
        name = f"request-{len(self.clients)}" if self.dice.random() < 0.6 else ""
        client = Client(prompt, count or self.dice.choice((3, 12, 30)), name)
        self.clients.append(client)
        self.serve(client)
        return client

    def _crash(self) -> None:
        host = self.some_host()
        if host.alive:
            self.crash(host)

    def _restart(self) -> None:
        for name, host in list(self.hosts.items()):
            if not host.alive:
                self.restart(int(name.removeprefix("host")))
                return

    def _lose(self) -> None:
        """A disk loses the last that was written there: it dies, and begins without that. Rather
        one that has just voted."""
        voters = [host for host in self.hosts.values() if len(host.votes) > 1 and host.alive]
        host = self.dice.choice(voters) if voters else self.some_host()
        if not host.alive:
            return
        self.forgetful.add(host.name)
        self.crash(host)
        if len(host.votes) > 1:
            host.votes.pop()
        elif host.stored:
            host.stored.pop()
        index = int(host.name.removeprefix("host"))
        self.after(self.dice.choice((0.01, 0.5)), lambda: self._again(index))

    def _again(self, index: int) -> None:
        if not self.hosts[f"host{index}"].alive:
            self.restart(index)

    def _upset(self) -> None:
        """The head is lost, perhaps in the middle of an answer, and the votes for the next are
        upset: elections are delicate there."""
        self._upsets = self.dice.randrange(1, 4)
        if self.dice.random() < 0.4:
            self._ask(30)
            self.after(self.dice.uniform(0.3, 2.0), self._lose_head)
        else:
            self._lose_head()

    def _lose_head(self) -> None:
        if self._mended:
            return
        if self.dice.random() < 0.5:
            self._sparse()
        for head in self.leaders():
            match self.dice.choice(("crash", "crash", "freeze", "away")):
                case "crash":
                    self.crash(head)
                case "freeze":
                    self._freeze(head)
                case "away":
                    self.cut_off(head.name)

    def _upset_vote(self, voter: Host, wanted: Host) -> None:
        """*voter* is about to vote for *wanted*, or has. One of them fails, or both."""
        if self._mended:
            return
        self.happened.append(f"{self.now:.3f} {voter.name} votes for {wanted.name}")
        if self.dice.random() < 0.6:
            self._reboot(voter)
        match self.dice.choice(("none", "crash", "freeze", "away", "hold")):
            case "crash" if wanted.alive:
                self.crash(wanted)
            case "freeze":
                self._freeze(wanted)
            case "away":
                self.cut_off(wanted.name)
            case "hold":
                self.network.dead.add((voter.name, wanted.name))

    def _reboot(self, host: Host | None = None) -> None:
        """It dies, and is started at once."""
        host = host or self.some_host()
        if host.alive:
            self.crash(host)
            self.restart(int(host.name.removeprefix("host")))

    def _freeze(self, host: Host | None = None) -> None:
        """It is stopped, or its machine sleeps, for a while or until all is mended."""
        host = host or self.some_host()
        host.frozen = True
        if self.dice.random() < 0.7:
            self.after(self.dice.choice((0.5, 1.0, 3.0, 5.0, 30.0)), lambda: self._thaw(host))

    def _thaw(self, host: Host) -> None:
        host.frozen = False
        if host.alive:
            self.settle(host)

    def _deaf(self) -> None:
        self.cut_off(self.some_host().name, is_heard=True)

    def _mute(self) -> None:
        self.cut_off(self.some_host().name, hears=True)

    def _away(self) -> None:
        self.cut_off(self.some_host().name)

    def _hold(self) -> None:
        """One direction between two is held, often of one whose term or vote counts."""
        a, b = self.dice.sample(sorted(self.hosts), 2)
        self.network.dead.add((a, b))

    def _sparse(self) -> None:
        """A third of all pairs do not reach each other."""
        for a, b in itertools.combinations(sorted(self.hosts), 2):
            if self.dice.random() < 0.35:
                self.network.dead |= {(a, b), (b, a)}

    def _split(self) -> None:
        """The ring falls into two parts."""
        names = sorted(self.hosts)
        part = set(self.dice.sample(names, self.dice.randrange(1, len(names))))
        ways = {(a, b) for a in part for b in names if b not in part}
        self.network.dead |= ways
        if self.dice.random() < 0.7:
            self.network.dead |= {(b, a) for a, b in ways}

    def _heal(self) -> None:
        ways = sorted(self.network.dead)
        if ways and self.dice.random() < 0.5:
            ways = self.dice.sample(ways, self.dice.randrange(1, len(ways) + 1))
        self.network.heal(*ways)

    def _cut(self) -> None:
        wires = list(self.some_host().wires.values())
        if wires:
            self.network.cut(self.dice.choice(wires))

    def _full(self) -> None:
        host = self.some_host()
        host.full = not host.full

    def _slow(self) -> None:
        self.some_host().storing = self.dice.choice((0.001, 0.3, 1.5))

    def _kill(self) -> None:
        host = self.some_host()
        if host.alive and not host.frozen:
            self.kill_engine(host)

    def _move(self) -> None:
        self._owner(lambda host, now: host.node.move(self.dice.randrange(len(self.hosts)), now))

    def _take(self) -> None:
        self._owner(lambda host, now: host.node.take(now))

    def _hand_over(self) -> None:
        """A head is started again: it hands over first."""
        to = self.dice.randrange(len(self.hosts))
        if host := self._owner(lambda host, now: host.node.move(to, now, stops=True)):
            self.after(self.dice.choice((0.1, 2.0)), lambda: self._stop(host))

    def _stop(self, host: Host) -> None:
        if host.alive and self.hosts[host.name] is host:
            self.crash(host)
            self._again(int(host.name.removeprefix("host")))

    def _renew(self) -> None:
        """The owner gives somebody a newer roster: other rights, perhaps another first head."""
        self.serial += 1
        changed = self.dice.randrange(1, len(self.hosts))
        if sum(rights is Rights.TEXT for rights in self.rights.values()) > 1:
            self.rights[changed] = self.dice.choice((Rights.TEXT, Rights(0), Rights.WITNESS))
        heads = [0, *(index for index, each in self.rights.items() if each is Rights.TEXT)]
        data = self._roster(self.dice.choice(heads)).encode()
        wall = WALL + int(self.now * 1000)
        self._owner(lambda host, now: host.node.bring_roster(data, now, wall))

    def _owner(self, does: Callable[[Host, float], None]) -> Host | None:
        """An owner does something at some machine; who that is, if it may be."""
        hosts = [host for host in self.hosts.values() if host.alive and not host.frozen]
        self.dice.shuffle(hosts)
        for host in hosts:
            with contextlib.suppress(LocalProtocolError):
                does(host, host.clock(self.now))
                self.settle(host)
                return host
        return None

    # ------------------------------------------------------- the whole of it

    async def run(self) -> None:
        """All that happens, and the end."""
        await self.comes(lambda: self.serves(self.head), 30, "a head at first")
        for _ in range(self.dice.choice((0, 0, 1, 3))):
            self._ask()
        for _ in range(self.dice.randrange(2, 11)):
            self.misfortune()
            await self.passes(self.dice.choice((0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)))
        self._upsets, self._mended = 0, True
        self.network.heal()
        for index, host in enumerate([*self.hosts.values()]):
            host.full, host.storing = False, 0.001
            self._thaw(host)
            self._again(index)
        self.happened.append(f"{self.now:.3f} all is mended")
        hosts = self.hosts.values
        await self.comes(lambda: any(map(self.serves, hosts())), HEAD_SECONDS, "a head")
        self.happened.append(f"{self.now:.3f} there is a head")
        await self.comes(self._is_whole, WHOLE_SECONDS, "the whole ring")
        last = [self._ask(3) for _ in range(2)]
        await self.comes(self._all_ended, WHOLE_SECONDS, "the end of all answers")
        for client in last:
            assert client.whole, f"no answer in the end: {client.why} at {client.hosts}"

    def _all_ended(self) -> bool:
        return all(client.whole or client.why for client in self.clients)

    def _is_whole(self) -> bool:
        """Whether the ring has as many members as there are layers for, and all doors its head."""
        return all(door.open for door in self.doors.values() if door.sees_texts) and any(
            self.serves(host)
            and len(host.node.ring) == min(LAYERS, len(host.node.roster.roster.workers))
            for host in self.hosts.values()
        )


FAULTS: Final = (
    "crash", "lose", "reboot", "freeze", "deaf", "mute", "away", "hold", "sparse", "split", "cut",
    "full", "slow", "kill", "move", "take", "hand_over", "renew",
)  # fmt: skip


@cache
def state() -> Path:
    """A folder with the key of the clients, until this process ends."""
    folder = Path(_state.name)
    record = KeyRecord(name="clients", created_ms=1, sha256=digest(KEY))
    write_keys(folder / KEY_FILE, [record])
    return folder


_state = tempfile.TemporaryDirectory(prefix="sealring-")


@attrs.frozen
class Seen:
    """What a seed has shown: how many answers were *whole*, how the others ended, and what is
    *broken*, with all that *happened* before."""

    seed: int
    seconds: float
    whole: int
    why: Counter[str]
    broken: str
    happened: tuple[str, ...]


def go(seed: int, kind: Kind = Election, *, forgets: bool = False) -> Seen:
    """The course of *seed*."""
    clock, made = VirtualClock(), []

    async def course() -> None:
        async with trio.open_nursery() as nursery:
            made.append(Course(nursery, clock, seed, kind, forgets=forgets))
            with mock.patch.object(voting, "Election", made[0]._member):
                await made[0].run()
            nursery.cancel_scope.cancel()

    broken = ""
    with deterministic(seed):
        try:
            trio.run(course, clock=clock)
        except* Exception as errors:  # noqa: BLE001  whatever it is, it is broken
            broken = "; ".join(f"{type(each).__name__}: {each}" for each in leaves(errors))
    (ran,) = made
    why = Counter(client.why for client in ran.clients if client.why)
    whole = sum(client.whole for client in ran.clients)
    return Seen(seed, ran.now, whole, why, broken, tuple(ran.happened))


def leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """The exceptions in *group*."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each


@contextlib.contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Tasks run in an order that *seed* gives alone."""
    run = trio._core._run
    run._r.seed(seed)
    gc.disable()  # to look at all objects over and over took a tenth of the time
    with mock.patch.object(run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True):
        try:
            yield
        finally:
            gc.enable()
