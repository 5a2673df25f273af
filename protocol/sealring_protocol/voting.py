"""The elections of one node: its `Election`, with links, ranks and signatures.

`control.election` decides, and names members by their index. Here are the messages of CONTROL
links, whose ends are ranks; the votes that the caller stores and signs (`CastVote`); and the roster
that an election makes, which is stored and spreads as any newer one.

Followers have no CONTROL links with each other. While a node asks for votes it wants one with each
member, and lets go those that it dialed once there is a head. These links carry elections alone:
neither head nor follower (`control.head`, `control.epoch.follower`) hears of them.

Each newer roster that the coordinator has signed begins with an `Election` of its own. One vote is
asked for at a time, even across rosters: the caller has one place to store it. Where such a roster
has another head, a follower of the one before neither leads nor renews a lease for
`DESERTED_SECONDS`: it may just have renewed the other's.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from sealring_protocol.codec.election_messages import (
    Candidacy,
    ElectionMessage,
    NoVote,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.control.deadlines import earliest
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.control.election import (
    DESERTED_SECONDS,
    FIRST_SECONDS,
    LEASE_SECONDS,
    MAX_TERM_LEAP,
    Ballot,
    Cast,
    Chosen,
    Election,
    ElectionEffect,
    ElectionState,
    MeetMembers,
    Tell,
)
from sealring_protocol.errors import LimitExceeded
from sealring_protocol.events import CastVote
from sealring_protocol.limits import ELECTION_MESSAGES_PER_SECOND
from sealring_protocol.links.link_manager import LinkManager
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.identity import verify
from sealring_protocol.security.mandate import Certificate, Mandate, vote_payload
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster

__all__ = ["Leadership"]

OF_ELECTIONS: Final = frozenset({Candidacy, Vote, NoVote, Renew, Renewed})
"""The classes of message that are for `Voting`."""

UNLED_SECONDS: Final = 5.0
"""Seconds without a lease from which a head takes no requests. Until then they wait, for a lease is
lost and back in a moment where a machine stalls."""

_CUT_OFF_SECONDS: Final = DESERTED_SECONDS - LEASE_SECONDS
"""Seconds without a lease after which those that renewed the last one may vote for another head.
A follower that asks for votes has as long to meet the others."""

_FIRST_LEASE_SECONDS: Final = 3.0
"""Seconds that a head has for its first lease. It imports what only a head needs meanwhile."""

_SEEKS: Final = {ElectionState.LOST, ElectionState.ASKING}


@attrs.frozen
class Leadership:
    """Who is head, as one node sees it: rank 0, since *term*. Without term, the roster says so. An
    owner has *taken* the place for it, or a majority has voted.

    *state* is that of the node in its elections. It *leads* if it is head and may answer; it is
    *followed* if a majority has renewed its lease; it *seeks* a head if it has lost its own for so
    long that it asks for votes. It takes *majority* of the *members* to elect a
    head, of whom the ranks *heads* may be it. The ranks *absent* do not answer this node.
    """

    term: int
    taken: bool
    state: ElectionState
    leads: bool
    followed: bool
    seeks: bool
    majority: int
    members: int
    heads: tuple[int, ...]
    absent: tuple[int, ...]

    @property
    def may_take(self) -> bool:
        """True if nobody leads as far as this node sees, and no majority answers it."""
        return self._headless and self.members - len(self.absent) < self.majority

    @property
    def others_may(self) -> bool:
        """True if nobody leads as far as this node sees, and those that do not answer it are enough
        to have another head."""
        return self._headless and len(self.absent) >= self.majority

    @property
    def _headless(self) -> bool:
        return self.seeks or (self.state is ElectionState.LEADING and not self.leads)


class Voting:
    """The elections of the node with *links*, which has cast *ballot* last, in the roster that is
    in force. *stands* is that of `NodeConfig`. Times are monotonic seconds."""

    def __init__(self, links: LinkManager, ballot: Ballot, now: float, *, stands: bool) -> None:
        self._links = links
        self._stands = stands
        self._unanswered: CastVote | None = None  # what the caller was asked to cast
        self._waiting: CastVote | None = None  # it is asked for next
        self._led = now  # when this node last led, or began
        self._sought = now  # since when it asks for votes, if it does
        self.quiet = now
        """Until when this node neither leads nor renews a lease. To be read only, as the next."""
        self._begin(ballot, now, FIRST_SECONDS)
        links.obeys = self.obeys

    def _begin(self, ballot: Ballot, now: float, first: float = DESERTED_SECONDS) -> None:
        self._roster = roster = self._links.config.roster.roster
        self._budgets: dict[int, TokenBucket] = {}
        own = roster.index(self._links.rank)
        place = len(roster.members), own, roster.head_indices
        self._election = Election(
            *place, now, roster.mandate, ballot, stands=self._stands, first=first
        )
        self.leads_until = self._election.leads_until
        """See `Election.leads_until`."""
        self.due = self._election.next_timeout()
        """When to call `handle_timeout`; None: not at all. To be read only."""

    # ------------------------------------------------------------ looking in

    def unled(self, now: float) -> float:
        """Seconds for which this node has not led: since it last did, or began."""
        return now - max(self._led, min(now, self.leads_until))

    def cut_off(self, now: float) -> bool:
        """See `Node.cut_off`."""
        without = now - self._sought if self._links.meeting else self.unled(now)
        new = self._is_head and self.leads_until == -math.inf
        enough = without > (_FIRST_LEASE_SECONDS if new else _CUT_OFF_SECONDS)
        return enough and self.leadership(now, leads=False).others_may

    def leadership(self, now: float, *, leads: bool) -> Leadership:
        """Who is head, as this node sees it, which *leads* or does not."""
        election, roster = self._election, self._roster
        return Leadership(
            election.mandate.term,
            election.mandate.taken,
            election.state,
            leads,
            election.followed(now),
            self._links.meeting,
            election.majority,
            len(roster.members),
            roster.heads,
            tuple(sorted(map(roster.rank_at, election.absent(now)))),
        )

    def obeys(self, roster: Roster, now: float) -> bool:
        """True if this node takes the mandate of *roster*, which is newer than its own. See
        `Election.obeys`; that of another roster counts like one of this."""
        mandate = roster.mandate
        if roster.digest == self._roster.digest:
            return self._election.obeys(mandate, now)
        near = mandate.term <= MAX_TERM_LEAP  # in a newer one no term is known
        return not mandate.taken or (near and self._election.sees_no_head(now))

    # ---------------------------------------------------------------- inputs

    def stand(self, on: bool, now: float) -> None:
        """See `Node.stand`."""
        self._stands = self._election.stands = on
        self._carry_out([], now)

    def link_up(self, rank: int, now: float) -> None:
        """The CONTROL link with *rank* is up."""
        index = self._roster.index(rank)
        self._budgets[index] = TokenBucket(ELECTION_MESSAGES_PER_SECOND, now)
        self._carry_out(self._election.link_up(index, now), now)

    def link_down(self, rank: int, now: float) -> None:
        """The CONTROL link with *rank* is gone."""
        self._lost(self._roster.index(rank), now)
        self._carry_out([], now)

    def _lost(self, index: int, now: float) -> None:
        if self._budgets.pop(index, None) is not None:
            self._election.link_down(index, now)

    def receive(self, rank: int, message: ElectionMessage, now: float) -> None:
        """*rank* sent *message*. Raises `LimitExceeded` beyond its budget, and
        `AuthenticationFailed` for a vote that is not its own."""
        index = self._roster.index(rank)
        budget = self._budgets.get(index)
        if budget is None:
            return  # its link was up under an older roster
        if not budget.take(now):
            raise LimitExceeded("too many messages of elections")
        if isinstance(message, Vote):
            payload = vote_payload(self._roster.digest, message.term, message.head)
            verify(self._roster.members[rank].public_key, message.signature, payload)
        if isinstance(message, Renew) and now < self.quiet:
            return
        self._carry_out(self._election.receive(index, message, now), now)

    def adopted(self, now: float) -> None:
        """Another roster, or another mandate, is in force. If it has changed who decides what, the
        caller has ended all links."""
        before, after = self._roster, self._links.config.roster.roster
        linked = {rank for rank, purpose, _ in self._links.links() if purpose is Purpose.CONTROL}
        for index in list(self._budgets):
            if before.digest != after.digest or after.rank_at(index) not in linked:
                self._lost(index, now)
        self._led = now
        if before.digest != after.digest:
            if not self._is_head and before.members[0].id != after.members[0].id:
                self.quiet = now + DESERTED_SECONDS
            self._begin(Ballot(), now)
            for rank in sorted(linked):
                self.link_up(rank, now)
            return
        self._roster = after
        effects = self._election.obey(after.mandate, now)
        how = "its owner has taken the place" if after.mandate.taken else "elected by a majority"
        head, term = after.members[0].name, after.mandate.term
        self._say(Level.INFO, f"{head} is the head from now on: {how} (term {term})")
        self._carry_out(effects, now)

    @property
    def _is_head(self) -> bool:
        """True if this node is head, with a lease or without."""
        return self._election.state in (ElectionState.LEADING, ElectionState.PROPOSING)

    def rival(self, mandate: Mandate, now: float) -> None:
        """There is *mandate*, which this node does not obey."""
        self._carry_out(self._election.rival(mandate, now), now)

    def vote_cast(self, signature: bytes, now: float) -> None:
        """The answer to `CastVote`: it is stored, and this is its *signature*."""
        if self._is_of_this_roster(self._unanswered):
            self._carry_out(self._election.cast(signature, now), now)
        self._answered()

    def vote_not_cast(self, now: float) -> None:
        """The answer to `CastVote` where it could not be stored or signed."""
        if self._is_of_this_roster(self._unanswered):
            self._election.not_cast()
        self._say(Level.WARNING, "a vote for a head could not be stored: this node casts none")
        self._answered()
        self._carry_out([], now)

    def _is_of_this_roster(self, asked: CastVote | None) -> bool:
        return asked is not None and asked.digest == self._roster.digest

    def _answered(self) -> None:
        self._unanswered, waiting, self._waiting = None, self._waiting, None
        if waiting is not None:
            self._ask(waiting)

    def _ask(self, vote: CastVote) -> None:
        """Have the caller cast *vote*, once it has cast the one before."""
        if self._unanswered is not None:
            self._waiting = vote
            return
        self._unanswered = vote
        self._links.events.append(vote)

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        self._carry_out(self._election.handle_timeout(now), now)

    def take(self, now: float) -> None:
        """See `Election.take`."""
        self._carry_out(self._election.take(now), now)

    def move(self, rank: int, now: float) -> None:
        """See `Election.move`."""
        self._carry_out(self._election.move(self._roster.index(rank), now), now)

    # ------------------------------------------------------------- internals

    def _carry_out(self, effects: list[ElectionEffect], now: float) -> None:
        for effect in effects:
            match effect:
                case Tell(to, message):
                    self._links.send(self._roster.rank_at(to), Purpose.CONTROL, message, now)
                case Cast(ballot):
                    digest = self._roster.digest
                    payload = vote_payload(digest, ballot.term, ballot.head)
                    self._ask(CastVote(digest, ballot, payload))
                case Chosen(mandate, votes):
                    made = Certificate(mandate.term, mandate.head, votes)
                    self._links.elected(made, now)
                case MeetMembers():
                    if not self._links.meeting:
                        head = self._roster.members[0].name
                        text = f"the head, {head}, is gone: this node asks for votes"
                        self._say(Level.INFO, text)
                        self._sought = now
                    self._links.meet(now)
        if self._links.meeting and self._election.state not in _SEEKS:
            self._links.part(now)
        self._led = max(self._led, min(now, self.leads_until))
        self.leads_until = self._election.leads_until
        quiet = self.quiet if now < self.quiet else None
        self.due = earliest(self._election.next_timeout(), quiet)

    def _say(self, level: Level, text: str) -> None:
        self._links.events.append(Note(level, text, "election"))
