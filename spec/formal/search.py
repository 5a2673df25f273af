"""Every way in which an intruder can drive a few runs of the handshake, and what must hold in all.

The intruder is the network: it sees every message, and a run gets what the intruder can make and
nothing else. A state is the runs as they stand; what the intruder knows follows from them. The
search visits every state that can be reached, and in each holds what the ends believe against what
is so. It looks at an end at the moment at which that end comes to believe something, since an
agreement must be with what has been, and at secrets where the intruder can learn no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from spec.formal.roles import End, LinkWorld, Run, World, key_of
from spec.formal.terms import Knowledge, Term, kem_key, secret, share

INTRUDER: Final = tuple(secret(f"{kind} of intruder") for kind in "xkr")

PROPERTIES: Final = {
    "agreement": "an end that takes its peer for verified has one, which saw the same transcript, "
    "offer, suite and rosters, and believes in the same two names",
    "injectivity": "no two runs agree with one and the same run of the peer",
    "binding": "whoever is named as the peer has the keys",
    "secrecy": "the keys of two honest ends are theirs alone",
    "forward secrecy": "they stay so when every node's key is stolen afterwards",
    "hybrid secrecy": "they stay so when X25519 falls afterwards, or ML-KEM-768 does",
    "hiding": "the name of a node that dials an honest one shows nowhere",
}


@attrs.frozen
class Scenario:
    """Which runs there are, and who works for the intruder."""

    name: str
    runs: tuple[tuple[str, str, Any], ...]
    """Role, node, and for an initiator whom it dials."""
    members: tuple[str, ...] = ("A", "B", "E")
    leaked: frozenset[str] = frozenset("E")
    hides: str = ""
    """The node whose name must not show."""


@attrs.frozen
class Attack:
    """A property that does not hold, and how it comes to that."""

    scenario: str
    property: str
    detail: str
    trace: tuple[str, ...]


@attrs.define
class Found:
    """What a search has seen."""

    states: int = 0
    completed: int = 0
    attacks: dict[str, Attack] = attrs.Factory(dict)
    """The first for each property."""


R = TypeVar("R", bound=End[Any])


class Exploration(Generic[R]):
    """The visit of every state of one *scenario*; or of as many as it takes to break the properties
    in *until*."""

    def __init__(self, scenario: Scenario, world: World, until: frozenset[str]) -> None:
        self._scenario = scenario
        self._world = world
        self._until = until
        self.found = Found()
        self._seen: set[tuple[R, ...]] = set()

    def run(self) -> Found:
        """Visit every state."""
        known = [*INTRUDER, share(INTRUDER[0]), kem_key(INTRUDER[1]), *self._read()]
        known += map(key_of, sorted(self._scenario.leaked))
        runs, sent = [], []
        for number, (role, owner, about) in enumerate(self._scenario.runs):
            run = self._start(role, owner, number, about)
            if run.role != run.ANSWERS:
                run, init = run.dial()
                sent.append(init)
            runs.append(run)
        self._visit(tuple(runs), Knowledge([*known, *sent]), tuple(sent), ())
        return self.found

    def _visit(
        self,
        runs: tuple[R, ...],
        intruder: Knowledge,
        wire: tuple[Term, ...],
        trace: tuple[str, ...],
    ) -> None:
        if runs in self._seen or (self._until and self._until <= self.found.attacks.keys()):
            return
        self._seen.add(runs)
        self.found.states += 1
        leaf = True
        for index, run in enumerate(runs):
            for message, after, sent in run.expect(intruder):
                if not intruder.can(message) or self._refused(after, runs):
                    continue
                leaf = False
                step = (*trace, f"{run.label} takes {_short(message)}")
                following = (*runs[:index], after, *runs[index + 1 :])
                self._check_beliefs(after, following, intruder, step)
                self._visit(following, intruder.with_(sent), (*wire, *sent), step)
        if leaf:
            self._check_secrets(runs, intruder, wire, trace)

    def _attack(self, name: str, detail: str, trace: tuple[str, ...]) -> None:
        self.found.attacks.setdefault(name, Attack(self._scenario.name, name, detail, trace))

    def _honest(self, node: str) -> bool:
        return node not in self._scenario.leaked

    def _thieves(
        self, runs: Sequence[R], intruder: Knowledge, kept: Iterable[Term]
    ) -> list[tuple[str, Knowledge]]:
        """Who must not have the keys of honest ends, and the property that says so: the intruder as
        it is, with all that is *kept* stolen afterwards, and when a kind of exchange has fallen."""
        stolen = intruder.with_(kept)
        if self._world.weak == "static-share":  # what is kept with the key is stolen with it
            stolen.add(secret(f"x of {node}") for node in self._world.members)
        thieves = [("secrecy", intruder), ("forward secrecy", stolen)]
        for kinds in ("x", "kr"):
            drawn = (run.private(kind) for run in runs for kind in kinds)
            thieves.append(("hybrid secrecy", intruder.with_(drawn)))
        return thieves

    def _check_keys(
        self, run: R, thieves: Iterable[tuple[str, Knowledge]], trace: tuple[str, ...]
    ) -> None:
        for name, thief in thieves:
            if any(map(thief.can, run.secrets())):
                self._attack(name, f"the keys of {run.owner} and {run.peer}", trace)

    def _check_hiding(
        self, intruder: Knowledge, wire: tuple[Term, ...], trace: tuple[str, ...]
    ) -> None:
        hidden = self._scenario.hides
        if hidden and any(hidden in intruder.visible(message) for message in wire):
            self._attack("hiding", f"{hidden} shows", trace)

    def _read(self) -> Iterable[Term]:
        """What the intruder knows beside its own numbers and the keys that have leaked."""
        return ()

    def _start(self, role: str, owner: str, number: int, about: Any) -> R:
        """The run that begins with *about*."""
        raise NotImplementedError

    def _refused(self, after: R, runs: Sequence[R]) -> bool:
        """What *runs* hold keeps one of them from becoming *after*."""
        raise NotImplementedError

    def _check_beliefs(
        self, run: R, runs: Sequence[R], intruder: Knowledge, trace: tuple[str, ...]
    ) -> None:
        raise NotImplementedError

    def _check_secrets(
        self, runs: Sequence[R], intruder: Knowledge, wire: tuple[Term, ...], trace: tuple[str, ...]
    ) -> None:
        raise NotImplementedError


class Search(Exploration[Run]):
    """The whole of one scenario, with one weakness or none; or as much of it as it takes to break
    the properties in *until*."""

    def __init__(
        self, scenario: Scenario, weak: str = "", until: frozenset[str] = frozenset()
    ) -> None:
        rosters = {node: "new" if node == "B" else "old" for node in scenario.members}
        self._world: LinkWorld = LinkWorld(scenario.members, weak, rosters)
        super().__init__(scenario, self._world, until)

    def _start(self, role: str, owner: str, number: int, about: str) -> Run:
        return Run(self._world, role, owner, number, peer=about)

    def _refused(self, after: Run, runs: Sequence[Run]) -> bool:
        """[HS-04]: a node takes an INIT once."""
        return (
            after.role == "R"
            and after.stage == 1
            and self._world.weak != "stale-responder"
            and any(r.init is after.init for r in runs if r.role == "R" and r.owner == after.owner)
        )

    # ---------------------------------------------------------- properties

    def _check_beliefs(
        self, run: Run, runs: Sequence[Run], intruder: Knowledge, trace: tuple[str, ...]
    ) -> None:
        self.found.completed += run.complete
        verified = run.complete or (run.role == "I" and run.stage == 2)
        if not verified or not self._honest(run.peer):
            return
        partners = [other for other in runs if _agree(run, other)]
        who = f"{run.owner} takes {run.peer} for its peer"
        if not partners:
            self._attack("agreement", f"{who}, which had no such run", trace)
        elif run.complete and any(_agree(r, p) for p in partners for r in runs if r is not run):
            self._attack("injectivity", f"{who}, which had one such run for two", trace)

    def _check_secrets(
        self,
        runs: Sequence[Run],
        intruder: Knowledge,
        wire: tuple[Term, ...],
        trace: tuple[str, ...],
    ) -> None:
        thieves = self._thieves(runs, intruder, map(key_of, self._world.members))
        for run in runs:
            if not run.complete:
                continue
            if not self._honest(run.peer):
                there = any(_agree(run, other) for other in runs)
                if not there and not all(map(intruder.can, run.secrets())):
                    detail = f"{run.owner} names {run.peer}, which lacks the keys"
                    self._attack("binding", detail, trace)
                continue
            self._check_keys(run, thieves, trace)
        self._check_hiding(intruder, wire, trace)


def _agree(run: Run, other: Run) -> bool:
    """*other* is the run of the peer that *run* takes itself to talk with."""
    if other.role == run.role or other.owner != run.peer or other.stage == 0:
        return False
    same = other.offer == run.offer and other.suite == run.suite
    if not run.complete:  # RESP has come: I knows R, and R does not know I yet
        return (
            same
            and other.transcripts[:3] == run.transcripts[:3]
            and other.rosters[0] == run.rosters[0]
        )
    return (
        same
        and other.peer == run.owner
        and other.transcripts == run.transcripts
        and other.rosters == run.rosters
    )


def _short(message: Term) -> str:
    text = repr(message)
    return text if len(text) < 160 else text[:157] + "..."


def explored(
    kind: Callable[[Any, str, frozenset[str]], Exploration[Any]],
    scenarios: Iterable[Scenario],
    weak: str,
    until: frozenset[str],
) -> Found:
    """All of *scenarios*, each in an exploration of that *kind*, with one weakness or none; no
    further than it takes to break *until*."""
    total = Found()
    for scenario in scenarios:
        if until and until <= total.attacks.keys():
            break
        found = kind(scenario, weak, until - total.attacks.keys()).run()
        total.states += found.states
        total.completed += found.completed
        for name, attack in found.attacks.items():
            total.attacks.setdefault(name, attack)
    return total
