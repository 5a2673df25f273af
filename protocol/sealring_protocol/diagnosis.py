"""Why the ring does not serve: decided here from what the node knows, and shown everywhere else.

`obstacles` lists what is in the way as this node sees it, most important first; nothing if it
serves. Each obstacle has a cause for programs, and for people what it is, how long it has lasted,
and what to do. The log, `sealring status`, ``/health``, ``/v1/cluster``, the page and a 503 use
these texts.

Programs use a cause's value; `docs/words.py` has its meaning. A head sends the other ranks less:
one of WAITING's hindrances, which a rank turns into a cause again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import attrs

from sealring_protocol.codec.messages import FailureKind, Hindrance, Progress, Reason, Waiting
from sealring_protocol.control.deadlines import Starved
from sealring_protocol.control.effects import Level, Note, Phase, Standing
from sealring_protocol.control.head.epochs import ONE_SIDED, OTHER_DTYPE, one_sided, short
from sealring_protocol.control.plan import Strategy
from sealring_protocol.errors import CloseCode
from sealring_protocol.limits import MAX_REASONS, NO_RANK
from sealring_protocol.links.logs import RefusedSource
from sealring_protocol.links.peers import NO_MEMBER, Fault, PeerState, Trouble
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster
from sealring_protocol.voting import Leadership
from sealring_protocol.words import RING_CHANGED, STILL_FETCHED, ago, lasting, part_here

__all__ = ["Cause", "EngineFacts", "Facts", "Obstacle", "Starved"]


class Cause(enum.Enum):
    """Why a node, or its ring, does not serve."""

    hindrance: Hindrance | None
    """What a head sends the other ranks for it; None if it sends nothing."""

    DRAINING = "draining"
    NO_MAJORITY = "no_majority"
    STARVED = "engine_starved"
    ROSTER_EXPIRED = "roster_expired", Hindrance.REFUSED
    ROSTER_CONFLICT = "roster_conflict", Hindrance.REFUSED
    NOT_A_MEMBER = "not_a_member", Hindrance.REFUSED
    ENGINE_STARTING = "engine_starting", Hindrance.ENGINE
    ENGINE_SILENT = "engine_silent"
    ENGINE_DYING = "engine_dying", Hindrance.ENGINE
    ENGINE_UNREADABLE = "engine_unreadable", Hindrance.UNSERVABLE
    NO_TOKENIZER = "no_tokenizer"
    TOKENIZER_LOADING = "tokenizer_loading"
    NO_ADDRESS = "no_address", Hindrance.ABSENT
    DIALING = "dialing"
    UNREACHABLE = "unreachable", Hindrance.ABSENT
    SILENT = "silent", Hindrance.ABSENT
    ITSELF = "dialed_itself", Hindrance.ABSENT
    NO_ANSWER = "no_answer", Hindrance.ABSENT
    OTHER_MODEL = "other_model", Hindrance.MODEL
    MANIFEST = "manifest_on_one_side", Hindrance.MODEL
    OTHER_VERSION = "other_version", Hindrance.REFUSED
    OTHER_POLICY = "other_policy", Hindrance.REFUSED
    SAME_KEY = "same_key", Hindrance.REFUSED
    REFUSED = "refused", Hindrance.REFUSED
    BROKEN = "link_broken", Hindrance.LINK
    PEER_ENGINE = "peer_engine_starting", Hindrance.ENGINE
    TOO_LITTLE_ROOM = "too_little_room", Hindrance.PLAN
    NO_PLAN = "no_plan", Hindrance.UNSERVABLE
    UNSERVABLE = "model_unservable", Hindrance.UNSERVABLE
    CANNOT_SERVE = "cannot_serve", Hindrance.FAILED
    COLLECTIVE = "collective", Hindrance.COLLECTIVE
    FETCHING = "fetching", Hindrance.FAILED
    LOADING = "loading"
    NOT_HEAD = "not_head"
    NO_EPOCH = "no_epoch"
    OUTSIDE = "outside_of_the_ring", Hindrance.OUTSIDE
    BEGINNING = "beginning"

    def __new__(cls, code: str, hindrance: Hindrance | None = None) -> Self:
        """The cause that programs know by *code*."""
        made = object.__new__(cls)
        made._value_ = code
        made.hindrance = hindrance
        return made


ADVICE: Final[Mapping[Cause, str]] = {
    Cause.DRAINING: "Ask again once the node has begun again; after a change of the head, ask the "
    "new one.",
    Cause.NO_MAJORITY: "Start the machines that are missing, or see why this one does not reach "
    "them: then it goes on by itself. If they are gone, and none of them answers clients, this "
    "machine can take the head's place (sealring head take).",
    Cause.STARVED: "See what else runs on that machine, and whether its container or service has a "
    "limit of processor time or memory.",
    Cause.ROSTER_EXPIRED: "Sign it again (sealring roster renew), and give it to any one node "
    "(sealring roster install): the others take it from there.",
    Cause.ROSTER_CONFLICT: "Two rosters were signed with one serial. Sign one of them once more, "
    "which takes the next serial, and give it to any one node (sealring roster install).",
    Cause.NOT_A_MEMBER: "To bring it back, ask for an invitation on a member: sealring machines "
    "invite. Then stop the node here, and: sealring join INVITATION.",
    Cause.ENGINE_STARTING: "A large model's description takes a while to read.",
    Cause.ENGINE_SILENT: "See what else runs on this machine: it is stopped, starved, or at a long "
    "piece of a prompt. It is replaced by itself if it goes on.",
    Cause.ENGINE_DYING: "This node's log says what it died of.",
    Cause.NO_TOKENIZER: "Fetch the model again, or take another conversion of it, and start this "
    "node again.",
    Cause.TOKENIZER_LOADING: "",
    Cause.ENGINE_UNREADABLE: "Mend what this names: install what is missing, fetch the model "
    "again, or correct 'model' in the config. Then start this node again.",
    Cause.NO_ADDRESS: "Nothing to do here if that node can reach this one.",
    Cause.DIALING: "",
    Cause.UNREACHABLE: "See that it runs, and that the address in the roster is its 'listen'.",
    Cause.SILENT: "A node says nothing to whom it cannot verify. Its clock, its key, its "
    "coordinator or its cluster is another, and its log says which: compare 'date' and "
    "'sealring roster show ROSTER' on both machines.",
    Cause.ITSELF: "The roster has that node's address wrong, or the keys of two machines are "
    "swapped: compare 'sealring roster show ROSTER' with the key and the address of each machine.",
    Cause.NO_ANSWER: "Its process is stopped or hangs, its machine is overloaded, or another "
    "program listens there.",
    Cause.OTHER_MODEL: "Give both the same folder: compare what 'sealring digest MODEL' prints.",
    Cause.MANIFEST: "Copy the model folder, sealring.json included, to every machine, and start "
    "the node again whose folder has changed.",
    Cause.OTHER_VERSION: "Install the newer release on the machine that is named, and start its "
    "node again. It is taken in by itself.",
    Cause.OTHER_POLICY: "Let both configs say the same, and both nodes have the same roster.",
    Cause.SAME_KEY: "Two nodes run with one key: a machine was copied, say. Stop one of them, or "
    "give it a key of its own (sealring keygen, roster add).",
    Cause.REFUSED: "The log of the node that refused says more.",
    Cause.BROKEN: "It is dialed again.",
    Cause.PEER_ENGINE: "Its log and its 'sealring status' say more.",
    Cause.TOO_LITTLE_ROOM: "Raise 'memory' in the configs, add a machine, or take a smaller or "
    "quantized model: see 'sealring plan'.",
    Cause.NO_PLAN: "Change what this names: the backend, the strategy, the number of ranks or the "
    "layers; or take another model. 'sealring plan' tries it.",
    Cause.UNSERVABLE: "Waiting does not help: mend on that rank what this names, or take another "
    "model or strategy; then start that node again.",
    Cause.CANNOT_SERVE: "That rank's log says more. It is tried again by itself.",
    Cause.COLLECTIVE: "See that the ranks reach one another, or use strategy = 'pp'.",
    Cause.FETCHING: "Each rank goes on by itself; its log says how fast.",
    Cause.LOADING: "",
    Cause.BEGINNING: "",
    Cause.NOT_HEAD: "",
    Cause.NO_EPOCH: "'sealring status' on the head says what it waits for.",
    Cause.OUTSIDE: "The API answers meanwhile.",
}
"""What to do about each cause."""

PERMANENT: Final = frozenset(
    {
        Cause.ENGINE_UNREADABLE,
        Cause.NO_TOKENIZER,
        Cause.OTHER_MODEL,
        Cause.MANIFEST,
        Cause.OTHER_VERSION,
        Cause.TOO_LITTLE_ROOM,
        Cause.NO_PLAN,
        Cause.UNSERVABLE,
    }
)
"""Causes that last until somebody changes a model, a config or a machine. Nobody should wait for
them to go away."""

RINGWIDE: Final = frozenset({Cause.TOO_LITTLE_ROOM, Cause.NO_PLAN, Cause.FETCHING})
"""Causes that concern no rank in particular."""

OWN_LOG: Final = "This node's log says more. It is tried again by itself."
"""The advice if the rank that cannot serve is this node."""

CLOCK_ADVICE: Final = "Compare 'date' on both machines."
ROSTER_ADVICE: Final = (
    "One of the two has another roster, coordinator or key: compare 'sealring roster show ROSTER' "
    "on both machines."
)
"""The advice if a peer ends handshakes without a word, and this node refused it, too."""

APART_ADVICE: Final = (
    "Let each of the two reach the other's port: look for a firewall, or a network between them. "
    "They are dialed again by themselves."
)
"""The advice if two ranks do not reach each other."""

DTYPE_ADVICE: Final = "Then start the node again whose config was changed."
"""The advice if two nodes hold one model, and pass hidden states in two types."""

DIAL_ADVICE: Final[Sequence[tuple[str, str]]] = (
    (
        "refused",
        "Nothing listens there, or a firewall there rejects it: start that node, correct its "
        "address in the roster, or have the firewall open the port.",
    ),
    ("no answer", "Its machine is off, the address is another's, or a firewall drops it."),
    (
        "route",
        "Its machine is off, its firewall rejects it, or no way leads there: see whether it runs "
        "at that address, and check the firewall there, the routes and any VPN.",
    ),
    ("unreachable", "No way leads to that network: check the address, the routes and any VPN."),
    ("name", "The name does not resolve here: correct it in the roster, or in the name service."),
    ("nodename", "The name does not resolve here: correct it in the roster."),
)
"""The advice for a failed dial, by a word in the operating system's reason."""

JOINED_SECONDS: Final = 30.0
"""Seconds for which a member that is new and refuses connections is taken to start."""

JOINED_ADVICE: Final = "Its own terminal says how far it is, or what keeps it from starting."
"""The advice for a member that is taken to start."""

BY_HINDRANCE: Final[Mapping[Hindrance, Cause]] = {
    Hindrance.ABSENT: Cause.UNREACHABLE,
    Hindrance.REFUSED: Cause.REFUSED,
    Hindrance.MODEL: Cause.OTHER_MODEL,
    Hindrance.ENGINE: Cause.PEER_ENGINE,
    Hindrance.PLAN: Cause.TOO_LITTLE_ROOM,
    Hindrance.FAILED: Cause.CANNOT_SERVE,
    Hindrance.UNSERVABLE: Cause.UNSERVABLE,
    Hindrance.COLLECTIVE: Cause.COLLECTIVE,
    Hindrance.LINK: Cause.BROKEN,
    Hindrance.OUTSIDE: Cause.OUTSIDE,
}
"""The cause that a rank derives from each hindrance."""


ENGINE_SECONDS: Final = 15.0
"""The head's own engine must have said something within this; a chunk of prefill may come first."""

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
class Facts:
    """What a node knows.

    *wall_ms* is the time of day in milliseconds since 1970, or None if unknown. *next_start* is
    when the engine will be started again (monotonic seconds). *draining* is why the node takes no
    requests (empty if it does). *textless* is why the head can make no text of tokens (empty if it
    can), and *text_loading* whether it is still loading what does; only whoever faces its clients
    knows these. *unpinned* is `NodeConfig.unpinned`. *trying*
    is whether its engine has read its weights, and runs its layers for the first time, as only
    whoever speaks with the engine knows. *own* is what the obstacles call this node. *progress* is
    what this rank and those linked with it last reported. *engine_heard* is when its engine last
    said something (monotonic seconds), or None if unknown. *joined* has, by node id, the members
    that came with a later roster than the first, and since when that is in force (the same).
    *leadership* is who is head, as this node sees it, or None if unknown.
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
    engine_heard: float | None = None
    joined: Mapping[bytes, float] = attrs.field(factory=dict)
    leadership: Leadership | None = None

    def name(self, rank: int) -> str:
        """The name of the member of *rank*, for people."""
        name = self.roster.members[rank].name
        return f"the head ({name})" if rank == 0 and self.rank else f"rank {rank} ({name})"


_BY_CODE: Final[Mapping[int, Cause]] = {
    CloseCode.ROSTER_CONFLICT: Cause.ROSTER_CONFLICT,
    CloseCode.ROSTER_EXPIRED: Cause.ROSTER_EXPIRED,
    CloseCode.MODEL_MISMATCH: Cause.OTHER_MODEL,
    CloseCode.POLICY_MISMATCH: Cause.OTHER_POLICY,
    CloseCode.REPLACED: Cause.SAME_KEY,
    CloseCode.VERSION_MISMATCH: Cause.OTHER_VERSION,
}

_LONG_LOADING: Final = 15.0
"""Seconds after which the text says what may take so long."""

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
    if facts.standing.phase in (Phase.SERVING, Phase.WITNESS):
        found += _unled(facts) + _silent(facts, now) + _link_before(facts, now)
    else:
        found += _roster(facts, now)
        found += [_put_out(facts, peer) for peer in facts.peers.values() if peer.put_out][:1]
        engine, ring = _engine(facts, now), _ring(facts, now)
        if any(each.cause is Cause.ROSTER_EXPIRED for each in found):
            ring = [each for each in ring if each.cause is not Cause.ROSTER_EXPIRED]
        if engine:  # without an engine, these causes only follow from it
            ring = [each for each in ring if each.rank is not None or each.cause not in _OWN]
        found += engine + _fetching(facts) + ring
        reported = _from_head(facts)
        found += [each for each in reported if each.rank != facts.rank] if found else reported
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
    """The WAITING with which the head of *facts* reports to the other ranks why there is no epoch.
    It has the texts of the head's own log, except that the head names itself."""
    own = f"the head ({facts.roster.members[0].name})"
    reasons = [
        Reason(hindrance, NO_RANK if each.cause in RINGWIDE else each.rank or 0, each.what)
        for each in obstacles(attrs.evolve(facts, own=own), now)
        if (hindrance := each.cause.hindrance) is not None
    ]
    return Waiting(tuple(reasons[:MAX_REASONS]))


def _from_head(facts: Facts) -> list[Obstacle]:
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
    if engine.up or facts.roster.members[facts.rank].is_witness:  # which needs none
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
    ranks = "; ".join(
        f"{facts.name(rank)}: {part_here(each.here, each.fetch_bytes)}"
        for rank, each in sorted(facts.progress.items())
        if _fetches(facts, rank)
    )
    return [_obstacle(Cause.FETCHING, f"{STILL_FETCHED}; {ranks}")] if ranks else []


def _fetches(facts: Facts, rank: int) -> bool:
    """Whether the head has heard that *rank*, which may be in the ring, fetches."""
    if facts.rank or facts.roster.members[rank].is_witness:
        return False
    return facts.progress.get(rank, Progress()).fetch_bytes > 0


def _ring(facts: Facts, now: float) -> list[Obstacle]:
    standing = facts.standing
    match standing.phase:
        case Phase.NO_HEAD:
            return _absent(facts, 0, now) + _unled(facts)
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
        if standing.needs_all and absent:
            last = absent.pop()
            absent.append(attrs.evolve(last, what=f"{last.what}; {standing.needs_all}"))
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


def _unled(facts: Facts) -> list[Obstacle]:
    """Why a head does not lead, though its ring could serve; or why a node that may be head cannot
    be elected."""
    led, is_out = facts.leadership, any(peer.put_out for peer in facts.peers.values())
    if led is None or is_out:
        return []
    here = led.members - len(led.absent)
    away = ", ".join(facts.roster.members[rank].name for rank in led.absent)
    count = f"{here} of {led.members} machines here, and it takes {led.majority}; missing: {away}"
    if facts.rank == 0 and not led.leads:
        what = f"{facts.own} is the head, and does not answer while another may be: {count}"
        if not led.absent:
            what = f"{facts.own} is the head, and has another machine elected in its place"
    elif facts.rank in led.heads and led.may_take:
        what = f"there is no head, and no majority to elect one: {count}"
    else:
        return []
    return [_obstacle(Cause.NO_MAJORITY, what)]


def _silent(facts: Facts, now: float) -> list[Obstacle]:
    """The engine of a head that serves, if it says nothing: it is asked once a second."""
    heard = facts.engine_heard
    if facts.rank or heard is None or now - heard <= ENGINE_SECONDS:
        return []
    what = f"{facts.own}'s engine says nothing"
    return [_obstacle(Cause.ENGINE_SILENT, what, since=heard)]


def _link_before(facts: Facts, now: float) -> list[Obstacle]:
    """What keeps the steps of the rank before from coming to a rank that has done its part."""
    plan = facts.standing.plan
    if not facts.rank or plan is None or plan.strategy is Strategy.TENSOR:
        return []
    ring = facts.standing.ring
    before = ring[ring.index(facts.rank) - 1]
    link = _link(facts, before, Purpose.STEP, now)
    up = Purpose.STEP in facts.peers[before].up
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
        return [_unless_late(_obstacle(cause, f"this node {own}", since=since), now)]
    found, after = list[Obstacle](), len(standing.ring) - 1
    for rank in standing.missing:
        if _fetches(facts, rank):
            continue
        link = _link(facts, standing.ring[1], Purpose.STEP, now) if rank == 0 < after else None
        who = f"this node {own}" if rank == 0 else f"{facts.name(rank)} {does}"
        what = f"{who}{_or_link(facts, rank)}"
        joins = _unless_late(_obstacle(cause, what, rank or None, since=since), now)
        found.append(link or joins)
    return found


def _unless_late(obstacle: Obstacle, now: float) -> Obstacle:
    """*obstacle*, a stage of a start: nothing is to be done about it before it takes long."""
    late = now - (obstacle.since or now) > _LONG_LOADING
    return obstacle if late else attrs.evolve(obstacle, advice="")


def _or_link(facts: Facts, rank: int) -> str:
    """Text for what else *rank* may wait for: it may be linking without reporting it yet."""
    ring = facts.standing.ring
    if facts.standing.phase is not Phase.LOADING or rank == 0 or len(ring) < 3:
        return ""
    after = ring[(ring.index(rank) + 1) % len(ring)]
    return f", or waits for its link to {facts.name(after)}: its status says which"


def _failed(facts: Facts) -> list[Obstacle]:
    failed = facts.standing.failed
    if failed is None or failed.rank >= len(facts.roster.members):
        return []
    own = failed.rank == facts.rank
    if own and RING_CHANGED in failed.message:
        return []  # the head says why
    if _fetches(facts, failed.rank) and STILL_FETCHED in failed.message.partition(";")[0]:
        return []
    cause = _BY_FAILURE.get(failed.kind, Cause.CANNOT_SERVE)
    who = facts.own if own else facts.name(failed.rank)
    engine = "its engine is gone: " if failed.kind is FailureKind.ENGINE_LOST else ""
    could = "cannot serve this model" if cause is Cause.UNSERVABLE else "could not serve"
    what = f"{who} {could}: {engine}{failed.message}"
    advice = OWN_LOG if own and cause is Cause.CANNOT_SERVE else ""
    if failed.kind is FailureKind.LINK_LOST and " cannot reach " in failed.message:
        advice = APART_ADVICE
    rank = None if own else failed.rank
    return [_obstacle(cause, what, rank, since=facts.standing.since, advice=advice)]


def away(facts: Facts, rank: int, now: float) -> Obstacle | None:
    """Why the head of *facts* has no link with *rank*; None if it has one."""
    return _link(facts, rank, Purpose.CONTROL, now)


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
            joined = facts.joined.get(facts.roster.members[peer.rank].id, -math.inf)
            if "refused" in reason and trouble.at - joined < JOINED_SECONDS:
                cause, advice = Cause.DIALING, JOINED_ADVICE
                what = f"{who} has just joined, and is starting"  # for how long is told beside it
        case Fault.SILENT:
            cause, what = Cause.SILENT, f"{who}{at} ended the handshake without a word"
            hint = _hint(facts, peer)
            if hint is not None:
                what += f"; {facts.own} refused a connection from {hint.source}, too: {hint.reason}"
                advice = CLOCK_ADVICE if "clock" in hint.reason else ROSTER_ADVICE
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
            cause = Cause.NOT_A_MEMBER if reason == NO_MEMBER else cause
            what, advice = f"{who} refused {facts.own}: {reason}", _refused_advice(reason)
        case Fault.REFUSED:
            cause = Cause.MANIFEST if trouble.reason.startswith(ONE_SIDED) else cause
            what = f"{facts.own} refused {who}: {trouble.reason}"
            advice = _refused_advice(trouble.reason)
        case Fault.BROKEN:
            cause, what = Cause.BROKEN, f"the link with {who} broke: {trouble.reason}"
    return _obstacle(cause, what, peer.rank, trouble.since, trouble.at, trouble.count, advice)


def _refused_advice(reason: str) -> str:
    """The advice that *reason*, why a node was refused, has besides its cause's; or empty."""
    return DTYPE_ADVICE if reason.endswith(OTHER_DTYPE) else ""


def _hint(facts: Facts, peer: PeerState) -> RefusedSource | None:
    """A connection that this node refused from an address of *peer*, which may be that peer."""
    hosts = {address.rpartition(":")[0].strip("[]") for address in peer.addresses}
    return next((stranger for stranger in facts.strangers if stranger.source in hosts), None)


TELL_SECONDS: Final = 60.0
"""Seconds between two lines about the same obstacle."""

FETCHING_SECONDS: Final = 10.0
"""Seconds between two lines about ranks that fetch: people want to see how far they are."""

PASSING_SECONDS: Final = 10.0
"""Seconds that a normal stage of a start may last before it is logged."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the obstacles while the node does not serve."""

MAX_LOGGED: Final = 64
"""Obstacles remembered. Memory: about 500 bytes each, 32 KiB."""

_PASSING: Final = {
    Cause.NO_MAJORITY,
    Cause.DIALING,
    Cause.TOKENIZER_LOADING,
    Cause.ENGINE_STARTING,
    Cause.PEER_ENGINE,
    Cause.LOADING,
    Cause.COLLECTIVE,
    Cause.BEGINNING,
    Cause.NO_EPOCH,
}

_LOGGED_ELSEWHERE: Final = {Cause.NOT_A_MEMBER, Cause.STARVED}
"""Causes that are logged where they are detected, and not again here."""


@attrs.frozen
class _Logged:
    """When the obstacle is logged next, and whether it has been logged before."""

    due: float
    before: bool = False


class ObstacleLog:
    """Logs why a node does not serve: a new obstacle at once, a lasting one each minute. Times are
    monotonic seconds.

    An obstacle reported by the head is logged only when it is new, because the head's own log
    repeats it each minute. What belongs to every start (reading the model, loading layers) is
    logged only if it lasts.
    """

    __slots__ = ("_logged", "due")

    def __init__(self) -> None:
        self._logged: dict[tuple[Cause, int | None, str], _Logged] = {}
        self.due: float | None = None
        """When to call `look`; None while the node serves."""

    def look(self, found: Sequence[Obstacle], now: float) -> list[Note]:
        """The notes to log about the obstacles *found*."""
        self.due = now + LOOK_SECONDS
        notes = []
        for obstacle in found:
            if obstacle.cause in _LOGGED_ELSEWHERE:
                continue
            key = (obstacle.cause, obstacle.rank, obstacle.constant)
            wait = PASSING_SECONDS if obstacle.cause in _PASSING else 0.0
            known = self._logged.pop(key, _Logged(now + wait))
            if now >= known.due:
                advice = f". {obstacle.advice}" if obstacle.advice and not known.before else ""
                text = f"not serving: {obstacle.text(now)}{advice}"
                kind = f"{obstacle.cause.value} {obstacle.rank}"
                if obstacle.from_head:
                    kind = "the head's reasons"  # one kind for all: the head chooses these texts
                notes.append(Note(Level.INFO, text, kind))
                fetching = obstacle.cause is Cause.FETCHING
                known = _Logged(now + (FETCHING_SECONDS if fetching else TELL_SECONDS), True)
            elif known.before and obstacle.from_head:  # the head's log has it each minute
                known = _Logged(now + TELL_SECONDS, True)
            self._logged[key] = known
        while len(self._logged) > MAX_LOGGED:
            del self._logged[next(iter(self._logged))]
        return notes

    def turn(self, now: float, *, serving: bool) -> None:
        """Say whether the node is *serving*. If so, every obstacle is forgotten, and a later one is
        new."""
        if not serving:
            if self.due is None:
                self.due = now + LOOK_SECONDS
        elif self.due is not None:
            self.due = None
            self._logged.clear()
