"""Why the ring does not serve: decided here from what the node knows, and shown everywhere else.

`obstacles` lists what is in the way as this node sees it, most important first; nothing if it
serves. Each obstacle has a cause for programs, and for people what it is, how long it has lasted,
and what to do. The log, `sealring status`, ``/health``, ``/v1/cluster``, the page and a 503 use
these texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sealring_protocol.codec.messages import FailureKind, Progress, Reason, Waiting
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.control.head.models import ONE_SIDED, OTHER_BUILD, one_sided, short
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.standing import Phase, Standing
from sealring_protocol.diagnosis.causes import (
    ADVICE,
    BY_HINDRANCE,
    DIAL_ADVICE,
    HINDRANCES,
    OWN_LOG,
    PERMANENT,
    RINGWIDE,
    Cause,
)
from sealring_protocol.errors import CloseCode
from sealring_protocol.limits import MAX_REASONS, NO_RANK
from sealring_protocol.links.logs import RefusedSource
from sealring_protocol.links.peers import NO_MEMBER, Fault, PeerState, Trouble
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster
from sealring_protocol.words import STILL_FETCHED, ago, lasting, told_here

# ---------------------------------------------------------------------- facts
# The inputs and outputs of `why`: what a node knows of itself and its peers, and the obstacles.


YOUNG_SECONDS: Final = 120.0
"""An engine that ends within this many seconds has ended young."""


@attrs.frozen
class Obstacle:
    """One obstacle to serving: *what* it is, and what to do about it (*advice*).

    It concerns the peer of *rank*, or, if None, this node. It began at *since*, and was tried
    *tries* times, last at *at* (monotonic seconds). *from_head* is True if this node knows it only
    from the head.
    """

    cause: Cause
    what: str
    rank: int | None = None
    since: float | None = None
    at: float | None = None
    tries: int = 0
    advice: str = ""
    from_head: bool = False

    @property
    def permanent(self) -> bool:
        """True if it lasts until somebody changes something: no request should wait for it."""
        return self.cause in PERMANENT

    @property
    def constant(self) -> str:
        """*what* without a time that runs, such as that until the next start of an engine. It stays
        the same while the obstacle lasts."""
        return self.what.partition(";")[0]

    def lasts(self, now: float) -> str:
        """How long the obstacle has lasted, in words; empty if unknown or below one second."""
        if self.since is None or now - self.since < 1:
            return ""
        if self.tries > 1 and self.at is not None:
            span = lasting(now - self.since)
            return f"{self.tries} times in {span}, the last time {ago(now - self.at)}"
        return f"for {lasting(now - self.since)}"

    def text(self, now: float) -> str:
        """The obstacle in one line, without its advice."""
        lasts = self.lasts(now)
        return f"{self.what} ({lasts})" if lasts else self.what

    def describe(self, now: float) -> dict[str, Any]:
        """The obstacle as a JSON object, with times in seconds."""
        return {
            "cause": self.cause.value,
            "rank": self.rank,
            "text": self.text(now),
            "what": self.what,
            "lasts": self.lasts(now),
            "for_s": None if self.since is None else round(now - self.since, 1),
            "last_s": None if self.at is None else round(now - self.at, 1),
            "tries": self.tries,
            "advice": self.advice,
            "permanent": self.permanent,
            "from_head": self.from_head,
        }


@attrs.frozen
class EngineFacts:
    """The state of this node's engine.

    It is *up* if it has described its model, and in this state since *since* (monotonic seconds).
    It was *lost* so many times in a row while young, the last time for *reason*. *unreadable* is
    True if it cannot read its model.
    """

    up: bool = False
    since: float = 0.0
    lost: int = 0
    reason: str = ""
    unreadable: bool = False

    def ended(self, reason: str, now: float, *, planned: bool) -> EngineFacts:
        """The process has ended for *reason*. A *planned* end is no fault."""
        if planned:
            return EngineFacts(since=now)
        young = not self.up or now - self.since < YOUNG_SECONDS
        if self.unreadable:
            return attrs.evolve(self, lost=self.lost + 1)
        return EngineFacts(False, now, self.lost + 1 if young else 1, reason)


@attrs.frozen
class Starved:
    """The engine of *rank* has starved for the fraction *part* of its time, since *since*
    (monotonic seconds)."""

    rank: int
    part: float
    since: float


@attrs.frozen
class Facts:
    """What a node knows.

    *wall_ms* is the time of day in milliseconds since 1970, or None if unknown. *next_start* is
    when the engine will be started again (monotonic seconds). *draining* is why the node takes no
    requests (empty if it does). *textless* is why the head can make no text of tokens (empty if it
    can), and *text_loading* whether it is still loading what does; only whoever faces its clients
    knows these. *unpinned* is `NodeConfig.unpinned`. *trying*
    is whether its engine has read its weights, and runs its layers for the first time, as only
    whoever speaks with the engine knows. *own* is what the obstacles call this node. *progress* is
    what this rank and those linked with it last reported.
    """

    rank: int
    roster: Roster
    standing: Standing
    engine: EngineFacts
    peers: Mapping[int, PeerState]
    strangers: Sequence[RefusedSource] = ()
    wall_ms: int | None = None
    next_start: float | None = None
    draining: str = ""
    textless: str = ""
    text_loading: bool = False
    unpinned: bytes = b""
    own: str = "this node"
    starved: Sequence[Starved] = ()
    progress: Mapping[int, Progress] = attrs.field(factory=dict)
    trying: bool = False

    def name(self, rank: int) -> str:
        """The name of the member of *rank*, for people."""
        name = self.roster.members[rank].name
        return f"the head ({name})" if rank == 0 and self.rank else f"rank {rank} ({name})"


# ---------------------------------------------------------------------- starved ranks
# Which engines starve now, as far as this node is told: for the log, the status and clients.


AVERAGED: Final = 5.0
"""Seconds over which starvation is averaged."""

STARVED: Final = 0.75
"""The fraction of its time from which an engine counts as starved."""

FED: Final = 0.5
"""The fraction of its time below which it no longer counts as starved."""

TELL_AGAIN: Final = 600.0
"""Least seconds between two log lines about the same engine."""


@attrs.define
class _Rank:
    began: float  # the first sample
    at: float  # the latest
    seconds: float  # the total reported then
    counted: float = 0.0
    part: float = 0.0
    since: float | None = None
    told: float | None = None


class StarvedRanks:
    """How much the engine of each rank starves. Times are monotonic seconds."""

    __slots__ = ("_process", "_ranks", "lent", "own")

    def __init__(self) -> None:
        self.own = 0.0
        """Seconds that this node's engine processes have starved, in all."""
        self.lent = 0.0
        """Seconds that tensor parallelism has waited for other ranks' starved engines."""
        self._process = 0.0  # the present process's part of `own`
        self._ranks: dict[int, _Rank] = {}

    def process(self, seconds: float) -> None:
        """This node's engine process has starved for *seconds* in all. Report 0 for a new
        process."""
        self.own += max(0.0, seconds - self._process)
        self._process = seconds

    def added_to(self, progress: Progress) -> tuple[Progress, Progress]:
        """Two copies of *progress*: one with this engine's starvation, and one for the peers, which
        adds the time spent waiting for other starved engines."""
        own, told = int(self.own * 1e6), int((self.own + self.lent) * 1e6)
        return attrs.evolve(progress, starved_us=own), attrs.evolve(progress, starved_us=told)

    def renumbered(self) -> None:
        """Forget all ranks: they are other nodes now."""
        self._ranks.clear()

    def look(self, rank: int, seconds: float | None, now: float) -> float:
        """The engine of *rank* has starved for *seconds* in all. Returns how much of that is new.

        A smaller total than before means that its node has a new process. None means that nothing
        was reported yet on a new link; the next report counts against the last one. A report beyond
        the time since the first sample is cut.
        """
        known = self._ranks.setdefault(rank, _Rank(now, now, seconds or 0.0))
        seconds = known.seconds if seconds is None else seconds
        elapsed, more = now - known.at, max(0.0, seconds - known.seconds)
        more = min(more, now - known.began - known.counted)
        known.at, known.seconds = now, seconds
        known.counted += more
        if elapsed <= 0:
            return more
        part = min(1.0, more / elapsed)
        known.part += (part - known.part) * min(1.0, elapsed / AVERAGED)
        if known.part < FED:
            known.since = None
        elif known.part >= STARVED and known.since is None:
            known.since = now
        return more

    def is_news(self, rank: int, now: float) -> bool:
        """True if the engine of *rank* starves and the log should report it now."""
        known = self._ranks[rank]
        if known.since is None or known.since == known.told:
            return False
        if known.told is not None and now - known.told < TELL_AGAIN:
            return False
        known.told = known.since
        return True

    def reset_all_but(self, ranks: set[int]) -> None:
        """Count every rank except *ranks* as not starved: nothing is reported about them for
        now."""
        for rank, known in self._ranks.items():
            if rank not in ranks:
                known.part, known.since = 0.0, None

    def of(self, *ranks: int) -> tuple[Starved, ...]:
        """The engines of *ranks* that starve now."""
        return tuple(
            Starved(rank, known.part, known.since)
            for rank in ranks
            if (known := self._ranks.get(rank)) is not None and known.since is not None
        )


__all__ = ["Cause", "EngineFacts", "Facts", "Obstacle", "Starved"]

_BY_CODE: Final[Mapping[int, Cause]] = {
    CloseCode.ROSTER_CONFLICT: Cause.ROSTER_CONFLICT,
    CloseCode.ROSTER_EXPIRED: Cause.ROSTER_EXPIRED,
    CloseCode.MODEL_MISMATCH: Cause.OTHER_MODEL,
    CloseCode.POLICY_MISMATCH: Cause.OTHER_POLICY,
    CloseCode.REPLACED: Cause.SAME_KEY,
}

_LONG_LOADING: Final = 15.0
"""Seconds after which a person is told what may take so long."""

_TRIES: Final = (
    "has read its weights, and runs its layers for the first time; a GPU compiles kernels for that"
)

_OWN: Final = {Cause.CANNOT_SERVE, Cause.LOADING, Cause.COLLECTIVE}
"""Causes that follow, for this node itself, from an engine that is not up."""

_BY_FAILURE: Final[Mapping[FailureKind, Cause]] = {
    FailureKind.GROUP: Cause.COLLECTIVE,
    FailureKind.LINK_LOST: Cause.BROKEN,
    FailureKind.UNSERVABLE: Cause.UNSERVABLE,
}


def obstacles(facts: Facts, now: float) -> list[Obstacle]:
    """What keeps the node of *facts* from serving, most important first; empty if it serves."""
    found: list[Obstacle] = []
    if facts.draining:
        found.append(_obstacle(Cause.DRAINING, facts.draining))
    if facts.textless:
        found.append(_obstacle(Cause.NO_TOKENIZER, facts.textless))
    if facts.text_loading:
        what = f"{facts.own} is loading the tokenizer"
        found.append(_obstacle(Cause.TOKENIZER_LOADING, what))
    if facts.standing.phase is Phase.SERVING:
        found += _link_before(facts, now)
    else:
        found += _roster(facts, now)
        found += [_put_out(facts, peer) for peer in facts.peers.values() if peer.put_out][:1]
        engine, ring = _engine(facts, now), _ring(facts, now)
        if any(each.cause is Cause.ROSTER_EXPIRED for each in found):
            ring = [each for each in ring if each.cause is not Cause.ROSTER_EXPIRED]
        if engine:  # without an engine, these causes only follow from it
            ring = [each for each in ring if each.rank is not None or each.cause not in _OWN]
        found += engine + _fetching(facts) + ring
        told = _told(facts)
        found += [each for each in told if each.rank != facts.rank] if found else told
        if not found:
            what = "the ring is about to begin an epoch"
            found.append(_obstacle(Cause.BEGINNING, what, since=facts.standing.since))
        found += starving(facts)
    return found


def first_permanent(found: Sequence[Obstacle]) -> Obstacle | None:
    """The first of the obstacles *found* that no request should wait for; None if there is none."""
    return next((each for each in found if each.permanent), None)


def starving(facts: Facts) -> list[Obstacle]:
    """The engines that starve, and so are slow, whether or not the node of *facts* serves."""
    found = []
    for each in facts.starved:
        own = each.rank == facts.rank
        whose = f"{facts.own}'s engine" if own else f"the engine of {facts.name(each.rank)}"
        what = (
            f"{whose} starves: {round(100 * each.part)} % of its time it waits for a processor, or "
            "for memory to be read back from disk"
        )
        rank = None if own else each.rank
        found.append(_obstacle(Cause.STARVED, what, rank, since=each.since))
    return found


def waiting(facts: Facts, now: float) -> Waiting:
    """The WAITING with which the head of *facts* tells the other ranks why there is no epoch. It
    has the texts of the head's own log, except that the head names itself."""
    own = f"the head ({facts.roster.members[0].name})"
    found = [
        (HINDRANCES[each.cause], each) for each in obstacles(attrs.evolve(facts, own=own), now)
    ]
    reasons = [
        Reason(hindrance, NO_RANK if each.cause in RINGWIDE else each.rank or 0, each.what)
        for hindrance, each in found
        if hindrance is not None
    ]
    return Waiting(tuple(reasons[:MAX_REASONS]))


def _told(facts: Facts) -> list[Obstacle]:
    """The obstacles that the head has reported."""
    return [
        Obstacle(
            (cause := BY_HINDRANCE[reason.hindrance]),
            f"the head says: {reason.text}",
            None if reason.rank == NO_RANK else reason.rank,
            since,
            advice=ADVICE[cause],
            from_head=True,
        )
        for reason, since in facts.standing.head_reasons.items()
    ]


def _obstacle(
    cause: Cause,
    what: str,
    rank: int | None = None,
    since: float | None = None,
    at: float | None = None,
    tries: int = 0,
    advice: str = "",
) -> Obstacle:
    return Obstacle(cause, what, rank, since, at, tries, advice or ADVICE[cause])


def _roster(facts: Facts, now: float) -> list[Obstacle]:
    if facts.wall_ms is None or not facts.roster.expired(facts.wall_ms):
        return []
    past = now - (facts.wall_ms - facts.roster.expires_ms) / 1000
    what = f"roster {facts.roster.serial}, which {facts.own} has, has expired"
    return [_obstacle(Cause.ROSTER_EXPIRED, what, since=past)]


def _put_out(facts: Facts, peer: PeerState) -> Obstacle:
    what = (
        f"{facts.name(peer.rank)} has a newer roster than {facts.own}'s ({facts.roster.serial}), "
        f"in which {facts.own} is no member"
    )
    return _obstacle(Cause.NOT_A_MEMBER, what, peer.rank)


def _engine(facts: Facts, now: float) -> list[Obstacle]:
    engine = facts.engine
    if engine.up:
        return []
    if engine.unreadable:
        what = f"{facts.own}'s engine cannot read its model: {engine.reason}"
        return [_obstacle(Cause.ENGINE_UNREADABLE, what, since=engine.since)]
    if not engine.lost:
        what = f"{facts.own}'s engine is starting, and has not said yet what its model is"
        return [_obstacle(Cause.ENGINE_STARTING, what, since=engine.since)]
    times = "once" if engine.lost == 1 else f"{engine.lost} times in a row"
    what = f"{facts.own}'s engine has ended {times}: {engine.reason}"
    if facts.next_start is not None and facts.next_start > now:
        what += f"; another is started in {lasting(facts.next_start - now + 1)}"
    return [_obstacle(Cause.ENGINE_DYING, what, since=engine.since)]


def _fetching(facts: Facts) -> list[Obstacle]:
    told = "; ".join(
        f"{facts.name(rank)}: {told_here(each.here, each.fetch_bytes)}"
        for rank, each in sorted(facts.progress.items())
        if _fetches(facts, rank)
    )
    return [_obstacle(Cause.FETCHING, f"{STILL_FETCHED}; {told}")] if told else []


def _fetches(facts: Facts, rank: int) -> bool:
    """Whether the head has heard that *rank* fetches."""
    return not facts.rank and facts.progress.get(rank, Progress()).fetch_bytes > 0


def _ring(facts: Facts, now: float) -> list[Obstacle]:
    standing = facts.standing
    match standing.phase:
        case Phase.NO_HEAD:
            return _absent(facts, 0, now)
        case Phase.LINKING:
            rank = standing.missing[0]
            link = _link(facts, rank, Purpose.STEP, now)
            return [link] if link is not None else []
        case Phase.FAILED:
            return _failed(facts)
        case Phase.LOADING | Phase.PREPARED | Phase.JOINING:
            return [*_failed(facts), *_loading(facts, now)]
        case _ if facts.standing.head_reasons:
            return _failed(facts)
        case _ if facts.rank:
            what = f"{facts.name(0)} has begun no epoch yet"
            return [*_failed(facts), _obstacle(Cause.NO_EPOCH, what, 0, since=standing.since)]
        case _:
            return _gathering(facts, now)


def _gathering(facts: Facts, now: float) -> list[Obstacle]:
    standing = facts.standing
    absent = [o for rank in standing.missing if rank for o in _absent(facts, rank, now)]
    if standing.missing:
        return absent
    if (failed := standing.unplanned) is not None:
        little = failed.kind is FailureKind.MEMORY
        cause = Cause.TOO_LITTLE_ROOM if little else Cause.NO_PLAN
        return [_obstacle(cause, failed.message, since=standing.since)]
    return _failed(facts)


def _absent(facts: Facts, rank: int, now: float) -> list[Obstacle]:
    """Why the node of *rank* is absent."""
    peer = facts.peers.get(rank)
    if peer is not None and peer.put_out:
        return []  # reported once, not for each peer
    link = _link(facts, rank, Purpose.CONTROL, now)
    if link is not None:
        return [link]
    if (failed := facts.standing.unreadable.get(rank)) is not None:
        what = f"the engine of {facts.name(rank)} cannot read its model: {failed.message}"
        return [_obstacle(Cause.UNSERVABLE, what, rank, since=facts.standing.since)]
    since = None if peer is None else peer.up.get(Purpose.CONTROL)
    what = f"{facts.name(rank)} is connected, and its engine has not said yet what its model is"
    return [_obstacle(Cause.PEER_ENGINE, what, rank, since=since)]


def _link_before(facts: Facts, now: float) -> list[Obstacle]:
    """What keeps the steps of the rank before from coming to a rank that has done its part."""
    plan = facts.standing.plan
    if not facts.rank or plan is None or plan.strategy is Strategy.TENSOR:
        return []
    link = _link(facts, facts.rank - 1, Purpose.STEP, now)
    up = Purpose.STEP in facts.peers[facts.rank - 1].up
    return [link] if link is not None and not up else []


def _loading(facts: Facts, now: float) -> list[Obstacle]:
    standing, since = facts.standing, facts.standing.since
    cause, does = Cause.LOADING, "loads its layers"
    if now - since > _LONG_LOADING:
        does = "loads its layers, and tries them; on a GPU that compiles kernels the first time"
    if standing.phase is Phase.JOINING:
        cause, does = Cause.COLLECTIVE, "joins the collective of tensor parallelism"
    elif standing.phase is Phase.PREPARED:
        does = "has loaded its share, and waits for the other ranks to load theirs"
    own = _TRIES if facts.trying and standing.phase is Phase.LOADING else does
    if facts.rank:
        return [_obstacle(cause, f"this node {own}", since=since)]
    found = []
    for rank in standing.missing:
        if _fetches(facts, rank):
            continue
        link = _link(facts, 1, Purpose.STEP, now) if rank == 0 else None
        who = f"this node {own}" if rank == 0 else f"{facts.name(rank)} {does}"
        what = f"{who}{_or_link(facts, rank)}"
        found.append(link or _obstacle(cause, what, rank or None, since=since))
    return found


def _or_link(facts: Facts, rank: int) -> str:
    """Text for what else *rank* may wait for: it may be linking without reporting it yet."""
    world = len(facts.roster.members)
    if facts.standing.phase is not Phase.LOADING or rank == 0 or world < 3:
        return ""
    return f", or waits for its link to {facts.name((rank + 1) % world)}: its status says which"


def _failed(facts: Facts) -> list[Obstacle]:
    failed = facts.standing.failed
    if failed is None or failed.rank >= len(facts.roster.members):
        return []
    if _fetches(facts, failed.rank) and STILL_FETCHED in failed.message.partition(";")[0]:
        return []
    cause = _BY_FAILURE.get(failed.kind, Cause.CANNOT_SERVE)
    own = failed.rank == facts.rank
    who = facts.own if own else facts.name(failed.rank)
    engine = "its engine is gone: " if failed.kind is FailureKind.ENGINE_LOST else ""
    could = "cannot serve this model" if cause is Cause.UNSERVABLE else "could not serve"
    what = f"{who} {could}: {engine}{failed.message}"
    advice = OWN_LOG if own and cause is Cause.CANNOT_SERVE else ""
    rank = None if own else failed.rank
    return [_obstacle(cause, what, rank, since=facts.standing.since, advice=advice)]


def _link(facts: Facts, rank: int, purpose: Purpose, now: float) -> Obstacle | None:
    """What keeps the link with *purpose* to *rank* down; None if it is up."""
    peer = facts.peers.get(rank)
    if peer is None:
        return None
    trouble = peer.trouble(purpose, now)
    if trouble is not None:
        return link_trouble(facts, peer, trouble)
    if purpose in peer.up or (purpose is not Purpose.CONTROL and purpose not in peer.dialing):
        return None
    who, address = facts.name(rank), peer.dialing.get(purpose, "")
    if not peer.addresses:
        what = f"{who} has no address in the roster, so that it has to dial {facts.own}"
        return _obstacle(Cause.NO_ADDRESS, what, rank)
    return _obstacle(
        Cause.DIALING, f"{who} is being dialed at {address or peer.addresses[0]}", rank
    )


def link_trouble(facts: Facts, peer: PeerState, trouble: Trouble) -> Obstacle:
    """The obstacle that describes *trouble* with *peer*."""
    who, advice = facts.name(peer.rank), ""
    at = f" at {trouble.address}" if trouble.address else ""
    cause = _BY_CODE.get(trouble.code or 0, Cause.REFUSED)
    match trouble.fault:
        case Fault.UNREACHABLE:
            cause, what = Cause.UNREACHABLE, f"{who} cannot be reached{at}: {trouble.reason}"
            reason = trouble.reason.lower()
            advice = next((text for word, text in DIAL_ADVICE if word in reason), "")
        case Fault.SILENT:
            cause, what = Cause.SILENT, f"{who}{at} ended the handshake without a word"
            what += _hint(facts, peer)
        case Fault.ITSELF:
            cause, what = Cause.ITSELF, f"{who} is not{at}: {trouble.reason}"
        case Fault.MUTE:
            cause = Cause.NO_ANSWER
            what = f"{who}{at} takes connections and does not answer"
        case Fault.REFUSED_US:
            reason = trouble.reason
            if cause is Cause.OTHER_MODEL and facts.unpinned and short(facts.unpinned) in reason:
                reason = one_sided(facts.roster.members[facts.rank].name, peer.name)
            cause = Cause.MANIFEST if reason.startswith(ONE_SIDED) else cause
            cause = Cause.OTHER_BUILD if reason.startswith(OTHER_BUILD) else cause
            cause = Cause.NOT_A_MEMBER if reason == NO_MEMBER else cause
            what = f"{who} refused {facts.own}: {reason}"
        case Fault.REFUSED:
            cause = Cause.MANIFEST if trouble.reason.startswith(ONE_SIDED) else cause
            cause = Cause.OTHER_BUILD if trouble.reason.startswith(OTHER_BUILD) else cause
            what = f"{facts.own} refused {who}: {trouble.reason}"
        case Fault.BROKEN:
            cause, what = Cause.BROKEN, f"the link with {who} broke: {trouble.reason}"
    return _obstacle(cause, what, peer.rank, trouble.since, trouble.at, trouble.count, advice)


def _hint(facts: Facts, peer: PeerState) -> str:
    """Text about a connection that this node refused from an address of *peer*, which may be that
    peer."""
    hosts = {address.rpartition(":")[0].strip("[]") for address in peer.addresses}
    known = next((s for s in facts.strangers if s.source in hosts), None)
    if known is None:
        return ""
    return f"; {facts.own} refused a connection from {known.source}, too: {known.reason}"


# ---------------------------------------------------------------------- obstacle log
# Logs why a node does not serve: a new obstacle at once, a lasting one each minute.
#
# An obstacle reported by the head is logged only when it is new, because the head's own log
# repeats it each minute. What belongs to every start (reading the model, loading layers) is
# logged only if it lasts.


TELL_SECONDS: Final = 60.0
"""Seconds between two lines about the same obstacle."""

FETCHING_SECONDS: Final = 10.0
"""Seconds between two lines about ranks that fetch: people want to see how far they are."""

PASSING_SECONDS: Final = 10.0
"""Seconds that a normal stage of a start may last before it is logged."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the obstacles while the node does not serve."""

MAX_TOLD: Final = 64
"""Obstacles remembered. Memory: about 500 bytes each, 32 KiB."""

_PASSING: Final = {
    Cause.DIALING,
    Cause.TOKENIZER_LOADING,
    Cause.ENGINE_STARTING,
    Cause.PEER_ENGINE,
    Cause.LOADING,
    Cause.COLLECTIVE,
    Cause.BEGINNING,
    Cause.NO_EPOCH,
}

_TOLD_ONCE: Final = {Cause.NOT_A_MEMBER, Cause.STARVED}
"""Causes that are logged where they are detected, and not again here."""


@attrs.frozen
class _Told:
    """When the obstacle is logged next, and whether it has been logged before."""

    due: float
    before: bool = False


class ObstacleLog:
    """The obstacles logged so far. Times are monotonic seconds."""

    __slots__ = ("_told", "due")

    def __init__(self) -> None:
        self._told: dict[tuple[Cause, int | None, str], _Told] = {}
        self.due: float | None = None
        """When to call `look`; None while the node serves."""

    def look(self, found: Sequence[Obstacle], now: float) -> list[Note]:
        """The notes to log about the obstacles *found*."""
        self.due = now + LOOK_SECONDS
        notes = []
        for obstacle in found:
            if obstacle.cause in _TOLD_ONCE:
                continue
            key = (obstacle.cause, obstacle.rank, obstacle.constant)
            wait = PASSING_SECONDS if obstacle.cause in _PASSING else 0.0
            told = self._told.pop(key, _Told(now + wait))
            if now >= told.due:
                advice = f". {obstacle.advice}" if obstacle.advice and not told.before else ""
                text = f"not serving: {obstacle.text(now)}{advice}"
                kind = f"{obstacle.cause.value} {obstacle.rank}"
                if obstacle.from_head:
                    kind = "the head's reasons"  # one kind for all: the head chooses these texts
                notes.append(Note(Level.INFO, text, kind))
                fetching = obstacle.cause is Cause.FETCHING
                told = _Told(now + (FETCHING_SECONDS if fetching else TELL_SECONDS), True)
            elif told.before and obstacle.from_head:  # the head's log has it each minute
                told = _Told(now + TELL_SECONDS, True)
            self._told[key] = told
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        return notes

    def turn(self, now: float, *, serving: bool) -> None:
        """Say whether the node is *serving*. If so, every obstacle is forgotten, and a later one is
        new."""
        if not serving:
            if self.due is None:
                self.due = now + LOOK_SECONDS
        elif self.due is not None:
            self.due = None
            self._told.clear()
