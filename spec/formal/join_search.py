"""Every way in which an intruder can drive a few joins, what must hold, and what must break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from spec.formal.joining import FORGER, JoinRun, JoinWorld, secret_of, signed_roster
from spec.formal.roles import key_of
from spec.formal.search import Exploration, Found, Scenario, explored
from spec.formal.terms import Knowledge, Term

JOIN_PROPERTIES: Final = {
    "agreement": "an end that takes an honest one for proved has such a peer, which saw the same "
    "transcript and believes in the same two names",
    "injectivity": "no two runs agree with one and the same run of the peer",
    "membership": "whom a joiner takes for the inviter is a member of the coordinator's roster",
    "invitation": "whoever is taken for proved, by either end, has the invitation's secret",
    "binding": "whoever is named as the peer has the keys",
    "one machine": "with one invitation one machine is let in",
    "roster": "what a joiner stores is the coordinator's, and has both ends",
    "secrecy": "the keys of two honest ends are theirs alone",
    "forward secrecy": "they stay so when every key and every invitation is stolen afterwards",
    "hybrid secrecy": "they stay so when X25519 falls afterwards, or ML-KEM-768 does",
    "hiding": "a joiner's name shows to nobody but a member that has the invitation",
}


@attrs.frozen
class JoinScenario(Scenario):
    """The same of joins: a run has the invitation of a joiner, or those that an inviter gave."""

    members: tuple[str, ...] = ("A", "B")
    hides: str = "D"
    read: tuple[str, ...] = ()
    """The invitations that the intruder has read."""


_D: Final = ("J", "D", ("one",))
_A: Final = ("H", "A", ("one",))

JOIN_SCENARIOS: Final = (
    JoinScenario("D joins A", (_D, _A)),
    JoinScenario("D joins A, E has the invitation", (_D, _A), read=("one",)),
    JoinScenario("D joins A, E is a member", (_D, _A), members=("A", "E")),
    JoinScenario(
        "D joins A, the member E has the invitation",
        (_D, _A),
        members=("A", "E"),
        read=("one",),
        hides="",
    ),
    JoinScenario("D joins A, A's key is stolen", (_D, _A), leaked=frozenset("AE")),
    JoinScenario("D joins A, D's key is stolen", (_D, _A), leaked=frozenset("DE")),
    JoinScenario("D and F with one invitation", (_D, ("J", "F", ("one",)), _A, _A)),
    JoinScenario("D joins A, who is asked twice, E has it", (_D, _A, _A), read=("one",)),
    JoinScenario(
        "A gave D one invitation and E another",
        (_D, ("H", "A", ("one", "two"))),
        read=("two",),
    ),
)

JOIN_WEAK: Final[dict[str, tuple[str, set[str]]]] = {
    "unsigned-resp": ("J does not look at sH", {"agreement", "hiding"}),
    "no-secret": (
        "nothing is made with the secret",
        {"agreement", "invitation", "binding", "hiding"},
    ),
    "any-coordinator": ("the coordinator's hash is not compared", {"membership", "hiding"}),
    "unsigned-roster": ("J does not look at the roster's signature", {"membership", "hiding"}),
    "no-roster": ("J takes any signer for a member", {"membership", "hiding"}),
    "unsigned-fin": ("H does not look at sJ", {"agreement"}),
    "open-fin": ("FIN is not sealed", {"hiding"}),
    "unsigned-admit": ("J does not look at the new roster's signature", {"roster"}),
    "used-again": ("an invitation stays good when it was used", {"one machine"}),
    "stale-inviter": ("H uses its shares again, and has no replay cache", {"injectivity"}),
    "secret-alone": ("PRK is made from the secret alone", {"secrecy", "forward secrecy"}),
    "static-share": ("H's X25519 key is kept, there is no ML-KEM", {"forward secrecy"}),
    "x25519-alone": ("PRK is made without ML-KEM", {"hybrid secrecy"}),
    "ml-kem-alone": ("PRK is made without X25519", {"hybrid secrecy"}),
}
"""Each variant, and the properties that it must be seen to break."""

JOIN_REDUNDANT: Final = {
    "no-mac": "both ends ignore the MAC",
    "fin-names-no-inviter": "JOIN_FIN leaves out id_H",
    "one-context": "JOIN_RESP and JOIN_FIN are signed in one context",
}
"""Variants in which another part does the work too, in this model."""


class JoinSearch(Exploration[JoinRun]):
    """The whole of one scenario, with one weakness or none; or as much of it as it takes to break
    the properties in *until*."""

    def __init__(
        self, scenario: JoinScenario, weak: str = "", until: frozenset[str] = frozenset()
    ) -> None:
        self._scenario: JoinScenario = scenario
        strangers = {owner for role, owner, _ in scenario.runs if role == "J"}
        strangers |= set() if "E" in scenario.members else {"E"}
        self._world: JoinWorld = JoinWorld(scenario.members, weak, tuple(sorted(strangers)))
        super().__init__(scenario, self._world, until)

    def _read(self) -> Iterable[Term]:
        secrets = map(secret_of, self._scenario.read)
        return key_of(FORGER), *secrets, signed_roster(self._world.members)

    def _start(self, role: str, owner: str, number: int, about: tuple[str, ...]) -> JoinRun:
        return JoinRun(self._world, role, owner, number, invitations=about)

    def _refused(self, after: JoinRun, runs: Sequence[JoinRun]) -> bool:
        """An inviter takes a JOIN_INIT once, and lets one machine in with an invitation."""
        if after.role == "J":
            return False
        others = [r for r in runs if r.role == "H" and r.number != after.number]
        if after.stage == 1 and self._world.weak != "stale-inviter":
            return any(r.init is after.init for r in others)
        if after.stage != 2 or self._world.weak == "used-again":
            return False
        return any(self._same_use(after, other) for other in others)

    # ---------------------------------------------------------- properties

    def _check_beliefs(
        self,
        run: JoinRun,
        runs: Sequence[JoinRun],
        intruder: Knowledge,
        trace: tuple[str, ...],
    ) -> None:
        self.found.completed += run.complete
        if not run.proved:
            return
        who = f"{run.owner} takes {run.peer} for proved"
        partners = [other for other in runs if _agree(run, other)]
        if self._honest(run.peer) and not partners:
            self._attack("agreement", f"{who}, which had no such run", trace)
        elif run.complete and any(_agree(r, p) for p in partners for r in runs if r is not run):
            self._attack("injectivity", f"{who}, which had one such run for two", trace)
        if not partners and not intruder.can(secret_of(run.invitation)):
            self._attack("invitation", f"{who}, and nobody there has the invitation", trace)
        if run.role == "J":
            self._check_joiner(run, who, trace)
        elif any(self._same_use(run, other) for other in runs):
            self._attack("one machine", f"{who}, and another with one invitation", trace)

    def _check_joiner(self, run: JoinRun, who: str, trace: tuple[str, ...]) -> None:
        members = self._world.members
        if run.peer not in members:
            self._attack("membership", f"{who}, which is no member", trace)
        if run.roster not in (None, signed_roster((*members, run.owner))):
            self._attack("roster", f"{run.owner} stores {run.roster}", trace)

    def _same_use(self, run: JoinRun, other: JoinRun) -> bool:
        return (
            other.role == "H"
            and other.proved
            and other.invitations == run.invitations
            and other.peer != run.peer
        )

    def _check_secrets(
        self,
        runs: Sequence[JoinRun],
        intruder: Knowledge,
        wire: tuple[Term, ...],
        trace: tuple[str, ...],
    ) -> None:
        kept = [key_of(n) for n in (*self._world.members, *self._world.strangers)]
        kept += [secret_of(name) for run in runs for name in run.invitations]
        thieves = self._thieves(runs, intruder, kept)
        for run in runs:
            if not run.proved:
                continue
            there = any(_agree(run, other) for other in runs)
            if not there and not all(map(intruder.can, run.secrets())):
                self._attack("binding", f"{run.owner} names {run.peer}, without keys", trace)
            if there and run.complete and self._honest(run.peer):
                self._check_keys(run, thieves, trace)
        self._check_hiding(intruder, wire, trace)


def _agree(run: JoinRun, other: JoinRun) -> bool:
    """*other* is the run of the peer that *run* takes itself to talk with."""
    if other.role == run.role or other.owner != run.peer or other.stage == 0:
        return False
    same = other.invitations == run.invitations
    if run.role == "J" and not run.complete:  # H does not know J yet
        return same and other.transcripts[:3] == run.transcripts[:3]
    return same and other.peer == run.owner and other.transcripts == run.transcripts


def join_search(
    weak: str = "",
    scenarios: tuple[JoinScenario, ...] = JOIN_SCENARIOS,
    until: frozenset[str] = frozenset(),
) -> Found:
    """All of *scenarios* with one weakness, or none; no further than it takes to break *until*."""
    return explored(JoinSearch, scenarios, weak, until)


def join_broken(weak: str) -> Found:
    """A variant of `JOIN_WEAK`, until it is seen to break what it must."""
    return join_search(weak, until=frozenset(JOIN_WEAK[weak][1]))
