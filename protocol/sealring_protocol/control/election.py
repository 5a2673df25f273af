"""Who is head: how a majority of the members makes another one, and how long a head may go on.

Every member has an `Election`, which `voting` runs. It takes the state of the node's CONTROL links,
what members say of elections, and time; it gives `ElectionEffect`s. It reads no clock, stores
nothing and signs nothing. Members are named by their index in the roster's own order, which no
election changes.

**A mandate** says who is head: a term and a member (`security.mandate`). Term 0 is the roster's
own first member. A majority of all members makes a mandate of a later term by votes. A member
votes once in a term, and has its vote on disk before the vote leaves. So no two members have a
majority in one term.

**A lease** says that no other head can be there yet. The head asks each follower twice a second to
renew it (`Renew`), and an answer (`Renewed`) counts for `LEASE_SECONDS` from the moment at which
the question was sent. A head answers clients (`Election.leads`) while the members without a fresh
answer are fewer than a majority.

Why no two heads have leases at once. Take a head A, and B, which a majority has elected in a later
term. The members whose answers A's lease rests on, and B's voters, have a member in common. It had
not voted for B when it answered: who has voted in a later term than the head's renews no lease. It
voted afterwards, by one of two rules. Either it had lost its link with A, and had answered A
nothing for `DESERTED_SECONDS`, which are more than A's lease lasts; they count from the member's
start, too, as it may have answered before. Or A itself had proposed B, and A ends its lease before
it proposes. So A's lease was over when B was elected. This rests on votes that are on disk, and on
clocks that run at like speeds and count a machine's sleep; not on whether a mandate was stored.

If a member's disk has lost a vote, it may vote twice in a term, and two heads may have been
elected in it. Everybody then obeys the one with the lesser index as soon as they hear of both.
Until then the last rule helps: a member renews leases of one head at a time, and the next one's no
sooner than `DESERTED_SECONDS` after the last one's.

**Candidates.** A follower that has lost its head asks for votes, in the order of `heads`, each
`TURN_SECONDS` after the one before. Asking costs nothing: a candidate gives its own vote last,
once the others' make a majority with it, so a member that is cut off raises no term. A member
refuses while it sees its head. So no single member can depose a head that the others see.

**The owner's word.** Where no majority is left, an owner makes a machine head by its own vote
alone (`Election.take`). Its head needs no lease: it was the owner who looked whether another one
answers. Others obey it where they see no head. A head that a majority follows does not: it is
elected once more, in a term later than the one taken."""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import Final

import attrs

from sealring_protocol.codec.election_messages import (
    Candidacy,
    ElectionMessage,
    NoVote,
    NoVoteReason,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.control.deadlines import earliest, is_due
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.mandate import Mandate
from sealring_protocol.table import Machine, Table

LEASE_SECONDS: Final = 2.0
"""Seconds from a question to the end of what its answer renews."""

DESERTED_SECONDS: Final = 3.0
"""Seconds after its last answer to a head from which a member may vote for another. They exceed
`LEASE_SECONDS` by what two clocks may differ within that time, with room."""

FIRST_SECONDS: Final = 20.0
"""Seconds after its start from which a node asks for votes that has seen no head since. Machines
that are switched on together are not ready together, and the roster's head is to be the first."""

RENEW_SECONDS: Final = 0.5
"""Seconds between a head's questions, and between a candidate's."""

TURN_SECONDS: Final = 1.0
"""Seconds between the first tries of two candidates that follow one another in the order of
heads."""

ASK_SECONDS: Final = 2.0
"""Seconds for which a member asks for votes, before it makes room for others."""

AGAIN_SECONDS: Final = 5.0
"""Seconds between two elections in which a head confirms itself. A member that lies about its votes
costs one each time."""

MAX_TERM_LEAP: Final = 1 << 24
"""How much later than the latest term that a member knows another may be, where one member's word
is all there is for it: twice a second for each who says so. 64 members that lie would need a
century to use all terms up."""

MAX_FAVOURS: Final = 3
"""Votes in new terms that a member gives one candidate within `FAVOUR_SECONDS`. It makes room only
for the first of them, and gives no other while it asks for votes itself. So a candidate that takes
votes and never comes to be head cannot keep the others from it."""

FAVOUR_SECONDS: Final = 10.0
"""See `MAX_FAVOURS`."""

_ROUNDS: Final = 8  # of questions whose answers count: more than a lease lasts


@attrs.frozen
class Ballot:
    """The last vote of this node: for the member *head*, in *term*. Term 0: none."""

    term: int = 0
    head: int = 0


# ---------------------------------------------------------------------- effects


@attrs.frozen
class MeetMembers:
    """Dial every member: this node asks for votes."""


@attrs.frozen
class Tell:
    """Send *message* to the member *to*, which is linked."""

    to: int
    message: ElectionMessage


@attrs.frozen
class Cast:
    """Store *ballot* durably, then sign it. Answer by `Election.cast`. One is asked for at a
    time."""

    ballot: Ballot


@attrs.frozen
class Chosen:
    """*mandate* has been voted for, with the signature of each voter. Store it, put it in force
    (`Election.obey`), and bring it to all members."""

    mandate: Mandate
    votes: tuple[tuple[int, bytes], ...]


ElectionEffect = MeetMembers | Tell | Cast | Chosen


# ---------------------------------------------------------------------- the machine


class ElectionState(enum.Enum):
    """FOLLOWING: another is head, and linked. LOST: it is not linked. ASKING: this node asks for
    votes. LEADING: this node is head, with a lease or without. PROPOSING: as head, it asks for
    votes for another, or once more for itself."""

    FOLLOWING = "following"
    LOST = "lost"
    ASKING = "asking"
    LEADING = "leading"
    PROPOSING = "proposing"


class ElectionEvent(enum.Enum):
    """What changes the state. CHOSEN: a mandate of this node is in force. OBEY: another's is."""

    HEAD_FOUND = "head_found"
    HEAD_LOST = "head_lost"
    ASK = "ask"
    GIVE_UP = "give_up"
    CHOSEN = "chosen"
    OBEY = "obey"


ELECTION_TABLE: Final[Table[ElectionState, ElectionEvent]] = {
    (ElectionState.FOLLOWING, ElectionEvent.HEAD_LOST): ElectionState.LOST,
    (ElectionState.FOLLOWING, ElectionEvent.CHOSEN): ElectionState.LEADING,
    (ElectionState.FOLLOWING, ElectionEvent.OBEY): ElectionState.LOST,
    (ElectionState.LOST, ElectionEvent.HEAD_FOUND): ElectionState.FOLLOWING,
    (ElectionState.LOST, ElectionEvent.ASK): ElectionState.ASKING,
    (ElectionState.LOST, ElectionEvent.CHOSEN): ElectionState.LEADING,
    (ElectionState.LOST, ElectionEvent.OBEY): ElectionState.LOST,
    (ElectionState.ASKING, ElectionEvent.HEAD_FOUND): ElectionState.FOLLOWING,
    (ElectionState.ASKING, ElectionEvent.GIVE_UP): ElectionState.LOST,
    (ElectionState.ASKING, ElectionEvent.CHOSEN): ElectionState.LEADING,
    (ElectionState.ASKING, ElectionEvent.OBEY): ElectionState.LOST,
    (ElectionState.LEADING, ElectionEvent.ASK): ElectionState.PROPOSING,
    (ElectionState.LEADING, ElectionEvent.CHOSEN): ElectionState.LEADING,
    (ElectionState.LEADING, ElectionEvent.OBEY): ElectionState.LOST,
    (ElectionState.PROPOSING, ElectionEvent.GIVE_UP): ElectionState.LEADING,
    (ElectionState.PROPOSING, ElectionEvent.CHOSEN): ElectionState.LEADING,
    (ElectionState.PROPOSING, ElectionEvent.OBEY): ElectionState.LOST,
}


@attrs.define
class _Proposal:
    ballot: Ballot
    taken: bool
    ends: float
    ask_at: float
    votes: dict[int, bytes] = attrs.field(factory=dict)
    chosen: bool = False


@attrs.define
class _Lease:
    """What a head has of its followers since its mandate is in force."""

    due: float  # when to ask again
    count: int = 0
    sent: deque[float] = attrs.field(factory=lambda: deque(maxlen=_ROUNDS))
    fresh: dict[int, float] = attrs.field(factory=dict)  # when the question was sent
    given_up: bool = False  # it has proposed another

    def ask(self, now: float) -> int:
        """The number of the question that is sent now."""
        self.count += 1
        self.sent.append(now)
        self.due = now + RENEW_SECONDS
        return self.count

    def answered(self, peer: int, count: int) -> None:
        """*peer* has answered question number *count*, which may be forgotten, or never was."""
        age = self.count - count
        if 0 <= age < len(self.sent):
            asked = self.sent[-1 - age]
            self.fresh[peer] = max(asked, self.fresh.get(peer, asked))


class Election:
    """The elections of one member, *own*, of a roster with *members* members, of whom *heads* may
    be head, in their order. *mandate* and *ballot* are those that were stored last. One that does
    not *stand* could not serve as head: it asks for no votes by itself. Nor does one before it has
    waited *first* seconds for a head to see. Times are monotonic seconds, and go on while the
    machine sleeps."""

    def __init__(
        self,
        members: int,
        own: int,
        heads: tuple[int, ...],
        now: float,
        mandate: Mandate | None = None,
        ballot: Ballot | None = None,
        *,
        stands: bool = True,
        first: float = DESERTED_SECONDS,
    ) -> None:
        self._members, self._own, self._heads = members, own, heads
        self.stands = stands
        """Whether it could serve as head. To be set by its owner."""
        self.mandate = Mandate(0, heads[0]) if mandate is None else mandate
        """Who is head. To be read only."""
        self.ballot = Ballot() if ballot is None else ballot
        """The last vote that is stored. To be read only."""
        leads = self.mandate.head == own
        self._machine = Machine(
            ELECTION_TABLE, ElectionState.LEADING if leads else ElectionState.LOST
        )
        self._linked: set[int] = set()
        self._contact = now  # when it last may have answered the head
        self._ask_at = now + first + self._turn
        self._confirm_at = now
        self._proposal: _Proposal | None = None
        self._casting: tuple[Ballot, int] | None = None  # and for whom: own, or who has asked
        self._signed: tuple[Ballot, bytes] | None = None  # the last vote of this process
        self._heard = 0  # a later term that somebody says it knows
        self._heard_at: dict[int, float] = {}  # when each last said so
        self._split = 0  # the last term in which somebody voted otherwise than this node asked
        self._refused_until: dict[int, float] = {}  # until when each one's refusal splits no term
        self._rival = 0  # the term of a mandate that this head does not obey
        self._renewed: tuple[int, float] | None = None  # whose lease it renewed, and when
        self._favours: dict[int, tuple[float, ...]] = {}  # when it last voted for each, of late
        # It may have proposed the one that it voted for, and ended its lease.
        self._lease = _Lease(now, given_up=leads and self._promised > 0)

    # ------------------------------------------------------------ looking in

    @property
    def state(self) -> ElectionState:
        """Where this member is in its elections."""
        return self._machine.state

    @property
    def majority(self) -> int:
        """How many votes make a head."""
        return self._members // 2 + 1

    def leads(self, now: float) -> bool:
        """True if this node is head, and no other can be: it may answer."""
        return now < self.leads_until

    @property
    def leads_until(self) -> float:
        """When this node leads no more if nobody renews its lease; infinity if it needs none, and
        minus infinity if it does not lead."""
        if self.mandate.head != self._own or self._lease.given_up:
            return -math.inf
        needed = self._members - self.majority  # answers, so that the others make no majority
        if not self._needs_lease or self.mandate.taken or not needed:
            return math.inf
        asked = sorted(self._lease.fresh.values(), reverse=True)
        return asked[needed - 1] + LEASE_SECONDS if len(asked) >= needed else -math.inf

    @property
    def _needs_lease(self) -> bool:
        """True if this node is head, and another may be."""
        return self.mandate.head == self._own and self._heads != (self._own,)

    def followed(self, now: float) -> bool:
        """True if this node is head, and a majority of the members, itself included, has renewed
        its lease."""
        if self.mandate.head != self._own or self._lease.given_up:
            return False
        return self._proven(now) >= self.majority

    def _proven(self, now: float) -> int:
        """How many members are known not to have made another head: this one, which votes for
        another only if it gives its lease up, and those with a fresh answer."""
        return 1 + sum(now < sent + LEASE_SECONDS for sent in self._lease.fresh.values())

    def absent(self, now: float) -> list[int]:
        """The other members that do not answer this node: to its questions for a lease if it asks
        for one, else those with which it has no CONTROL link."""
        here = self._linked
        if self._needs_lease:
            here = {peer for peer, sent in self._lease.fresh.items() if now < sent + LEASE_SECONDS}
        return [peer for peer in range(self._members) if peer not in here and peer != self._own]

    @property
    def latest(self) -> int:
        """The latest term that this node knows of."""
        return max(self.mandate.term, self._promised, self._heard)

    @property
    def _promised(self) -> int:
        """The term in which this node has voted since the present mandate, or is about to; 0 if
        there is none. It does not matter for whom: it may have voted for others before."""
        casting = 0 if self._casting is None else self._casting[0].term
        voted = max(self.ballot.term, casting)
        return voted if voted > self.mandate.term else 0

    @property
    def _turn(self) -> float:
        """How long after the first candidate this one asks."""
        others = [head for head in self._heads if head != self.mandate.head]
        return TURN_SECONDS * (others.index(self._own) if self._own in others else len(others))

    @property
    def _may_ask(self) -> bool:
        """True if it asks for votes by itself."""
        return self.stands and self._own in self._heads

    def _deserted(self, now: float) -> bool:
        """True if this node has lost its head, and that head's lease by this node's answers is
        over."""
        unseen = self.mandate.head not in self._linked
        return unseen and now >= self._contact + DESERTED_SECONDS

    def obeys(self, mandate: Mandate, now: float) -> bool:
        """True if this node takes *mandate*, whose votes the caller has verified, in place of the
        one in force. One that was taken counts only where this node sees no head."""
        if not mandate.beats(self.mandate):
            return False
        if not mandate.taken:
            return True
        if mandate.term > self.latest + MAX_TERM_LEAP:
            return False
        return mandate.head == self.mandate.head or self.sees_no_head(now)

    def sees_no_head(self, now: float) -> bool:
        """True if this node has lost its head, or is head and no majority follows it."""
        if self.mandate.head == self._own:
            return not self.followed(now)
        return self._deserted(now)

    # ---------------------------------------------------------------- inputs

    def link_up(self, peer: int, now: float) -> list[ElectionEffect]:
        """The CONTROL link with the member *peer* is up, and both ends hold one mandate."""
        self._linked.add(peer)
        if peer == self.mandate.head:
            self._contact = now
            if self.state in (ElectionState.LOST, ElectionState.ASKING):
                self._machine.fire(ElectionEvent.HEAD_FOUND)
                self._proposal = None
        found: list[ElectionEffect] = []
        if self._proposal is not None and not self._proposal.taken:
            found.append(Tell(peer, self._question(self._proposal)))
        if self.mandate.head == self._own and self._lease.count:
            found.append(Tell(peer, Renew(self.mandate.term, self._lease.count)))
        return found

    def link_down(self, peer: int, now: float) -> None:
        """The CONTROL link with the member *peer* is gone."""
        self._linked.discard(peer)
        if peer == self.mandate.head and self.state is ElectionState.FOLLOWING:
            self._machine.fire(ElectionEvent.HEAD_LOST)
            self._ask_at = max(self._contact + DESERTED_SECONDS, now) + self._turn

    def receive(self, peer: int, message: ElectionMessage, now: float) -> list[ElectionEffect]:
        """The member *peer*, which is linked, sent *message*; the caller has verified a vote's
        signature."""
        match message:
            case Candidacy(term, head):
                return self._asked(peer, Ballot(term, head), now)
            case Vote(term, head, signature):
                return self._voted(peer, Ballot(term, head), signature)
            case NoVote(term, head, latest, reason):
                if reason in (NoVoteReason.VOTED, NoVoteReason.STALE):
                    self._hear(peer, latest, now)
                    self._refused(peer, Ballot(term, head), latest, now)
                return []
            case Renew(term, count):
                return self._renew(peer, term, count, now)
            case Renewed(term, count, promised):
                if self.mandate.head != self._own or term != self.mandate.term:
                    return []
                if promised <= term:
                    self._lease.answered(peer, count)
                    return []
                self._hear(peer, promised, now)
                return self.confirm(now)

    def cast(self, signature: bytes, now: float) -> list[ElectionEffect]:
        """The answer to `Cast`: the vote is on disk, and this is its *signature*."""
        if self._casting is None:
            raise LocalProtocolError("no vote was to be cast")
        (ballot, voter), self._casting = self._casting, None
        self.ballot, self._signed = ballot, (ballot, signature)
        if voter != self._own:
            vote = Vote(ballot.term, ballot.head, signature)
            return [Tell(voter, vote)] if voter in self._linked else []
        proposal = self._proposal_of(ballot)
        if proposal is None:
            return []  # it has been given up meanwhile
        proposal.votes[self._own] = signature
        return self._count(proposal)

    def not_cast(self) -> None:
        """The answer to `Cast` where the vote could not be stored or signed: nothing was
        promised."""
        self._casting = None

    def obey(self, mandate: Mandate, now: float) -> list[ElectionEffect]:
        """*mandate* is stored, and in force from now on."""
        before, self.mandate = self.mandate.head, mandate
        self._proposal = None
        self._contact, self._ask_at = now, now + DESERTED_SECONDS + self._turn
        # A head that is confirmed keeps what its followers answered: nothing else was elected.
        kept = self._lease.fresh if mandate.head == before else {}
        self._lease = _Lease(now, fresh=kept)
        if mandate.head == self._own:
            self._machine.fire(ElectionEvent.CHOSEN)
            return self._ask_for_lease(now)
        self._machine.fire(ElectionEvent.OBEY)
        return self.link_up(mandate.head, now) if mandate.head in self._linked else []

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        asking = None if self._proposal is None else min(self._proposal.ends, self._proposal.ask_at)
        asks = self.state is ElectionState.LOST and self._may_ask
        lease = self._lease.due if self._needs_lease else None
        return earliest(asking, self._ask_at if asks else None, lease)

    def handle_timeout(self, now: float) -> list[ElectionEffect]:
        """Act on the deadlines that have passed."""
        found: list[ElectionEffect] = []
        if self._needs_lease and is_due(self._lease.due, now):
            found += self._ask_for_lease(now)
            if max(self._promised, self._rival) > self.mandate.term:
                found += self.confirm(now)
        proposal = self._proposal
        if proposal is not None and now >= proposal.ends:
            return found + self._give_up(now)
        if proposal is not None and now >= proposal.ask_at:
            return found + self._ask(proposal, now)
        if self.state is ElectionState.LOST and self._may_ask and now >= self._ask_at:
            found += [MeetMembers(), *self._propose(self._own, now)]
        return found

    # ---------------------------------------------------------- what people want

    def take(self, now: float) -> list[ElectionEffect]:
        """The owner makes this node head, by its own vote alone.

        Raises `LocalProtocolError` if it may not be head, or sees one.
        """
        if self._own not in self._heads:
            raise LocalProtocolError("the roster does not let this machine be head")
        if self._casting is not None:
            raise LocalProtocolError("this machine stores a vote; try again")
        if self.mandate.head == self._own:
            if self.leads(now):
                raise LocalProtocolError("this machine is the head, and answers")
        elif not self._deserted(now):
            raise LocalProtocolError("this machine sees the head, or did a moment ago")
        return self._propose(self._own, now, taken=True)

    def move(self, head: int, now: float) -> list[ElectionEffect]:
        """This node, the head, has another elected. From now on it does not lead, until somebody is
        elected: that one, or after `ASK_SECONDS` in vain this node once more.

        Raises `LocalProtocolError` if it does not lead, or that member may not be head or is not
        there.
        """
        if not self.leads(now):
            raise LocalProtocolError("only the head moves its place, while it answers")
        if head == self._own:
            raise LocalProtocolError("that machine is the head already")
        if head not in self._heads:
            raise LocalProtocolError("the roster does not let that machine be head")
        if head not in self._linked:
            raise LocalProtocolError("that machine is not there")
        self._lease.given_up = True
        return self._propose(head, now)

    def rival(self, mandate: Mandate, now: float) -> list[ElectionEffect]:
        """There is *mandate*, which this node does not obey. If it is head, it is elected once
        more, in a later term."""
        self._hear(mandate.head, mandate.term, now)
        self._rival = min(mandate.term, self.latest)
        return self.confirm(now) if self._rival > self.mandate.term else []

    def confirm(self, now: float) -> list[ElectionEffect]:
        """If this node is head, have it elected once more, unless that was tried a moment ago: some
        members have voted for another, and renew its lease no more."""
        if self.state is not ElectionState.LEADING or now < self._confirm_at:
            return []
        return self._propose(self._own, now)

    # ---------------------------------------------------------------- a voter

    def _asked(self, peer: int, wanted: Ballot, now: float) -> list[ElectionEffect]:
        if self._signed is not None and self._signed[0] == wanted:
            return [Tell(peer, Vote(wanted.term, wanted.head, self._signed[1]))]
        if self._casting == (wanted, peer):
            return []  # the vote is under way
        reason = self._refusal(peer, wanted, now)
        if reason is not None:
            return [Tell(peer, NoVote(wanted.term, wanted.head, self.latest, reason))]
        lately = self._lately(wanted.head, now)
        if not lately:
            self._yield(now)
        self._favours[wanted.head] = (*lately, now)[-MAX_FAVOURS:]
        if peer == self.mandate.head != wanted.head:
            self._renewed = None  # that head has ended its lease
        self._casting = wanted, peer
        return [Cast(wanted)]

    def _refusal(self, peer: int, wanted: Ballot, now: float) -> NoVoteReason | None:
        """Why this node does not vote as *peer* wants; None if it does."""
        by_head = peer == self.mandate.head
        if wanted.head not in self._heads or not (by_head or peer == wanted.head):
            return NoVoteReason.NO_HEAD
        if wanted.term > self.latest + MAX_TERM_LEAP:
            self._hear(peer, wanted.term, now)  # and so it comes nearer, if they ask again
            return NoVoteReason.STALE
        if wanted.term <= self.mandate.term:
            return NoVoteReason.STALE
        if self._casting is not None:
            return NoVoteReason.BUSY
        if self._has_voted(wanted):
            return NoVoteReason.VOTED
        if by_head:
            return None
        if self.mandate.head == self._own or not self._deserted(now):
            return NoVoteReason.HEAD_SEEN
        asks = self.state is ElectionState.ASKING
        if asks and self._heads.index(self._own) < self._heads.index(wanted.head):
            return NoVoteReason.ASKING
        if len(self._lately(wanted.head, now)) >= (1 if asks else MAX_FAVOURS):
            return NoVoteReason.TOO_OFTEN
        return None

    def _lately(self, head: int, now: float) -> tuple[float, ...]:
        """When this node has voted for *head* in new terms, of late."""
        return tuple(at for at in self._favours.get(head, ()) if now < at + FAVOUR_SECONDS)

    def _has_voted(self, wanted: Ballot) -> bool:
        """True if this node has voted otherwise in the term of *wanted*, or in a later one."""
        return self.ballot.term >= wanted.term and self.ballot != wanted

    def _yield(self, now: float) -> None:
        """This node votes for another: leave it time."""
        after = now + ASK_SECONDS + self._turn
        self._confirm_at, self._ask_at = max(self._confirm_at, after), max(self._ask_at, after)
        if self.state is ElectionState.ASKING:
            self._machine.fire(ElectionEvent.GIVE_UP)
            self._proposal = None

    def _renew(self, peer: int, term: int, count: int, now: float) -> list[ElectionEffect]:
        if peer != self.mandate.head or term != self.mandate.term or peer not in self._linked:
            return []
        if self._promised:
            return [Tell(peer, Renewed(term, count, self._promised))]
        if self._renewed is not None:
            before, at = self._renewed
            if before != peer and now < at + DESERTED_SECONDS:
                return []
        self._contact, self._renewed = now, (peer, now)
        return [Tell(peer, Renewed(term, count))]

    # ------------------------------------------------------------- a candidate

    def _hear(self, peer: int, term: int, now: float) -> None:
        """*peer* says that it knows of *term*, without proof."""
        if term > self.latest and now >= self._heard_at.get(peer, -math.inf) + RENEW_SECONDS:
            self._heard_at[peer] = now
            self._heard = min(term, self.latest + MAX_TERM_LEAP)

    def _propose(self, head: int, now: float, *, taken: bool = False) -> list[ElectionEffect]:
        """Ask for votes for *head*, in a term in which this node can vote for it, too."""
        if self._proposal is None:
            self._machine.fire(ElectionEvent.ASK)
        self._confirm_at = now + AGAIN_SECONDS
        used = max(self.mandate.term, self._split)
        again = self.ballot.head == head and self.ballot.term == self.latest > used
        term = self.latest if again else self.latest + 1
        self._proposal = _Proposal(Ballot(term, head), taken, now + ASK_SECONDS, now)
        return self._ask(self._proposal, now)

    def _ask(self, proposal: _Proposal, now: float) -> list[ElectionEffect]:
        """Ask whoever has not voted yet; in a later term, if somebody has voted in this one."""
        proposal.ask_at = now + RENEW_SECONDS
        split = self._split >= proposal.ballot.term or self._has_voted(proposal.ballot)
        if split and not proposal.taken and not proposal.chosen:
            later = max(self._split, self.latest) + 1
            proposal.ballot = Ballot(later, proposal.ballot.head)
            proposal.votes.clear()
        if proposal.taken:
            return self._count(proposal)
        left = sorted(self._linked - proposal.votes.keys())
        asked: list[ElectionEffect] = [Tell(peer, self._question(proposal)) for peer in left]
        return asked + self._count(proposal)

    def _refused(self, peer: int, ballot: Ballot, latest: int, now: float) -> None:
        """*peer* says that it has voted otherwise in the term of *ballot*, or knows of *latest*. A
        liar may say so of each term, and others need time for their votes: it counts once in
        `FAVOUR_SECONDS`."""
        proposal = self._proposal_of(ballot)
        if proposal is None or latest < ballot.term or now < self._refused_until.get(peer, now):
            return
        self._refused_until[peer] = now + FAVOUR_SECONDS
        self._split = ballot.term

    @staticmethod
    def _question(proposal: _Proposal) -> Candidacy:
        return Candidacy(proposal.ballot.term, proposal.ballot.head)

    def _voted(self, peer: int, ballot: Ballot, signature: bytes) -> list[ElectionEffect]:
        proposal = self._proposal_of(ballot)
        if proposal is None:
            return []  # it was given up
        proposal.votes[peer] = signature
        return self._count(proposal)

    def _proposal_of(self, ballot: Ballot) -> _Proposal | None:
        """The proposal of *ballot*, unless there is none, or another."""
        proposal = self._proposal
        return proposal if proposal is not None and proposal.ballot == ballot else None

    def _count(self, proposal: _Proposal) -> list[ElectionEffect]:
        """Give the own vote once it decides, or say who is chosen."""
        if proposal.chosen:
            return []
        needed = 1 if proposal.taken else self.majority
        if len(proposal.votes) >= needed:
            proposal.chosen = True
            term, head = proposal.ballot.term, proposal.ballot.head
            votes = tuple(sorted(proposal.votes.items()))
            return [Chosen(Mandate(term, head, needed < self.majority), votes)]
        free = self._casting is None and not self._has_voted(proposal.ballot)
        if len(proposal.votes) + 1 < needed or not free:
            return []
        self._casting = proposal.ballot, self._own
        return [Cast(proposal.ballot)]

    def _give_up(self, now: float) -> list[ElectionEffect]:
        """The time for a proposal is over."""
        self._machine.fire(ElectionEvent.GIVE_UP)
        self._proposal = None
        if self.mandate.head == self._own:
            # Whoever voted for the one that this head proposed renews its lease no more.
            return self._propose(self._own, now) if self._lease.given_up else []
        self._ask_at = now + TURN_SECONDS * len(self._heads) + self._turn
        return []

    def _ask_for_lease(self, now: float) -> list[ElectionEffect]:
        if not self._needs_lease:
            return []
        question = Renew(self.mandate.term, self._lease.ask(now))
        return [Tell(peer, question) for peer in sorted(self._linked)]
