"""Members that do not keep a rule of elections, each found out by a search or a walk.

Each variant breaks what the rule is there for, so a search that finds nothing in the members that
keep all rules says something.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
from sealring_protocol.codec.election_messages import (
    ElectionMessage,
    Renewed,
)
from sealring_protocol.control.election import (
    Ballot,
    Election,
    ElectionEffect,
)
from sealring_protocol.security.mandate import Mandate

from spec.formal.elections import Case, Seen, search, walk


class VotesTwice(Election):
    """It votes for whoever asks first after its last vote, in one term, too."""

    def _has_voted(self, wanted: Ballot) -> bool:
        return False


class SeesNoHead(Election):
    """It votes for another while it sees its head."""

    def _deserted(self, now: float) -> bool:
        return True


class RenewsAfterVote(Election):
    """It renews its head's lease though it has voted for another."""

    def _renew(self, peer: int, term: int, count: int, now: float) -> list[ElectionEffect]:
        kept, self.ballot = self.ballot, Ballot()
        found = super()._renew(peer, term, count, now)
        self.ballot = kept
        return found


class LongLease(Election):
    """Its lease lasts as long as its patience and 2 s."""

    LONGER = 1.5

    @property
    def leads_until(self) -> float:
        return super().leads_until + self.LONGER


class FromArrival(Election):
    """Its lease counts from the answer on, not from the question."""

    def receive(self, peer: int, message: ElectionMessage, now: float) -> list[ElectionEffect]:
        found = super().receive(peer, message, now)
        if isinstance(message, Renewed) and not message.promised and peer in self._lease.fresh:
            self._lease.fresh[peer] = now
        return found


class MovesAndLeads(Election):
    """A head that proposes another goes on."""

    def move(self, head: int, now: float) -> list[ElectionEffect]:
        found = super().move(head, now)
        self._lease.given_up = False
        return found


class HalfIsEnough(Election):
    """Half of the votes make a head."""

    @property
    def majority(self) -> int:
        return max(1, self._members // 2)


class ForgetsAnswers(Election):
    """A member that has just started votes at once."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._contact = -math.inf
        self._ask_at = 0.0


class TwoAtOnce(Election):
    """It renews the lease of the next head at once."""

    def _renew(self, peer: int, term: int, count: int, now: float) -> list[ElectionEffect]:
        self._renewed = None
        return super()._renew(peer, term, count, now)


class ObeysTakers(Election):
    """It obeys whoever takes the head's place."""

    def obeys(self, mandate: Mandate, now: float) -> bool:
        return mandate.beats(self.mandate)


ALONE: Final = frozenset({(1, 0)})
HEADLESS: Final = frozenset({(1, 0), (2, 0), (3, 0), (4, 0), (2, 1)})
"""The head of five is gone, and the two next do not reach each other."""


@attrs.frozen
class Variant:
    """A member that does not keep a rule, where that is looked for, and the property that it must
    be seen to break: by a search, or where there are *seeds*, by that many walks."""

    about: str
    kind: type[Election]
    case: Case
    owed: str
    seeds: range = range(0)


ELECTION_WEAK: Final = {
    "votes-twice": Variant(
        "a member votes twice in a term",
        VotesTwice,
        Case(5, 6, holds=1, apart=HEADLESS),
        "one head",
    ),
    "sees-no-head": Variant(
        "a member votes for another while it sees its head",
        SeesNoHead,
        Case(4, 7, cuts=1, apart=ALONE),
        "one lease",
    ),
    "renews-after-vote": Variant(
        "a member renews a lease after its vote",
        RenewsAfterVote,
        Case(4, 6, cuts=2, heals=1, apart=ALONE),
        "one lease",
    ),
    "two-at-once": Variant(
        "disks lose votes, and leases of two heads are renewed at once",
        TwoAtOnce,
        Case(3, 15, holds=2, cuts=4, heals=4, lost_votes=2),
        "one lease",
        range(2000, 6000),
    ),
    "long-lease": Variant("a lease lasts for 3.5 s", LongLease, Case(3, 6, cuts=2), "one lease"),
    "from-arrival": Variant(
        "a lease counts from the answer", FromArrival, Case(3, 5, holds=1, cuts=2), "one lease"
    ),
    "moves-and-leads": Variant(
        "a head that proposes another goes on",
        MovesAndLeads,
        Case(3, 6, holds=1, cuts=1, moves=1),
        "one lease",
    ),
    "half-is-enough": Variant(
        "half of the votes make a head",
        HalfIsEnough,
        Case(5, 6, apart=HEADLESS | {(4, 1), (3, 2), (4, 3)}),
        "one head",
    ),
    "forgets-answers": Variant(
        "a member that has just started votes at once",
        ForgetsAnswers,
        Case(3, 6, cuts=2, restarts=1),
        "one lease",
    ),
    "obeys-takers": Variant(
        "whoever takes the head's place is obeyed",
        ObeysTakers,
        Case(3, 5, cuts=2, heals=1, takes=1),
        "no coup",
    ),
}

ELECTION_CASES: Final = (
    Case(3, 6, cuts=2),
    Case(3, 5, cuts=1, restarts=1),
    Case(3, 5, cuts=1, moves=1),
    Case(3, 5, cuts=1, takes=1),
    Case(4, 7, cuts=1, apart=ALONE),
    Case(5, 6, holds=1, apart=HEADLESS),
)
"""What is searched whole."""


def election_broken(name: str) -> Seen:
    """What breaks a variant's property first, if anything does."""
    variant = ELECTION_WEAK[name]
    if not variant.seeds:
        return search(variant.case, variant.kind, owed=variant.owed)
    for seed in variant.seeds:
        seen = walk(variant.case, seed, variant.kind, drift=0.1)
        if seen.broken is not None and seen.broken.name == variant.owed:
            return attrs.evolve(seen, states=seed)
    return Seen(len(variant.seeds))
