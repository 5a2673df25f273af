"""One rank, sans-IO: bytes of links, engine messages and requests in; bytes, orders and tokens out.

The node connects the link manager, which has the links, with the control machine of its role
(`control.head` or `control.epoch.follower`), which decides. The caller owns sockets, the engine
process, time, entropy and files. After each input it carries out what `next_event` gives until that
is None and `plan_steps` gives False; then it sends what `links_to_flush` and `data_to_send` give.

*now* is always monotonic seconds. *wall_ms*, in milliseconds since 1970, is taken only where the
wire needs the time of day.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import attrs

from sealring_protocol.codec.election_messages import ElectionMessage
from sealring_protocol.codec.local_messages import EngineInfo, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    CannotServe,
    Epoch,
    FailureKind,
    Hello,
    Message,
    Piece,
    Ping,
    Pong,
    Progress,
)
from sealring_protocol.control.deadlines import StarvedRanks, earliest, is_due
from sealring_protocol.control.effects import (
    Effect,
    EpochExplained,
    EpochOver,
    Level,
    NewRing,
    Note,
    Preference,
    Send,
    Shut,
    Standing,
    StepTiming,
    ToEngine,
    Want,
)
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.head.attendance import GRACE_SECONDS, Attendance
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.membership import hello
from sealring_protocol.control.requests import (
    NoMajority,
    NotServed,
    Request,
    RequestDone,
)
from sealring_protocol.diagnosis import (
    Cause,
    EngineFacts,
    Facts,
    Obstacle,
    ObstacleLog,
    away,
    first_permanent,
    obstacles,
    starving,
    waiting,
)
from sealring_protocol.errors import (
    LimitExceeded,
    RemoteProtocolError,
    SealringError,
)
from sealring_protocol.events import NodeEvent, RosterInForce
from sealring_protocol.limits import PRESENTATIONS_PER_SECOND
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.links.link_manager import (
    CameUp,
    LinkDown,
    LinkManager,
    MessageReceived,
    News,
    OfLink,
    RivalMandate,
    Unreachable,
    hop_keys,
)
from sealring_protocol.links.peers import ROSTER_CHANGED, PeerState
from sealring_protocol.links.questions import RelayLinks, WeightRequests
from sealring_protocol.relay import Relay
from sealring_protocol.role import NodeConfig, NodeRole, handshake_config
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.voting import OF_ELECTIONS, UNLED_SECONDS, Leadership, Voting
from sealring_protocol.words import RING_CHANGED

_PING_SECONDS: Final = 1.0
"""Seconds between two requests for the engine's counters."""


class NodeReport:
    """The facts of the node with *links*. *unpinned* is `NodeConfig.unpinned`. Where an answer
    needs the brain's *standing*, the caller gives it. *now* is in monotonic seconds."""

    def __init__(self, links: LinkManager, unpinned: bytes, now: float) -> None:
        self._links = links
        self._unpinned = unpinned
        self._engine = EngineFacts(since=now)
        self._starved_ranks = StarvedRanks()
        self._wall: float | None = None  # the time of day minus the monotonic clock, seconds
        self.obstacle_log = ObstacleLog()
        """What was logged of the obstacles."""
        self.rank = links.rank
        """This node's rank. Set it by `renumber`."""
        self.info: EngineInfo | None = None
        """The engine's description of its model; None while no engine is up."""
        self.ping_due: float | None = None
        """When to ask the engine for its counters; None while no engine is up."""
        self.progress = Progress()
        """The engine's counters, and how far this node's fetching is."""
        self.joined: dict[bytes, float] = {}
        """`Facts.joined`."""
        self._away: dict[int, Cause] = {}  # why each rank is away, as it was last said

    def renumber(self, rank: int) -> None:
        """A newer roster gives this node *rank*, and the others new ranks, too."""
        self.rank = rank
        self._away.clear()
        self._starved_ranks.renumbered()

    def set_clock(self, wall_ms: int, now: float) -> None:
        """The time of day is *wall_ms*, in milliseconds since 1970."""
        self._wall = wall_ms / 1000 - now

    def facts(self, standing: Standing, now: float) -> Facts:
        """The facts that `obstacles` judges by."""
        roster = self._links.config.roster.roster
        ranks = roster.workers if self.rank == 0 else (self.rank,)
        return Facts(
            self.rank,
            roster,
            standing,
            self._engine,
            {peer.rank: peer for peer in self._links.peers()},
            self._links.refusals.latest,
            None if self._wall is None else int((now + self._wall) * 1000),
            unpinned=self._unpinned,
            starved=self._starved_ranks.of(*ranks),
            progress=self._heard() | {self.rank: self.progress},
            joined=self.joined,
        )

    def _heard(self) -> dict[int, Progress]:
        """What the linked ranks last reported."""
        return {
            rank: link.keepalive.peer_progress
            for rank, purpose, link in self._links.links()
            if purpose is Purpose.CONTROL
        }

    def why_away(self, rank: int, facts: Facts, now: float) -> list[Note]:
        """Say why *rank* does not come to the ring, which serves: once for each cause."""
        why = away(facts, rank, now)
        if why is None or why.cause is self._away.get(rank):
            return []
        self._away[rank] = why.cause
        advice = f". {why.advice}" if why.advice else ""
        return [Note(Level.WARNING, f"not in the ring: {why.text(now)}{advice}")]

    def is_there(self, rank: int) -> None:
        """*rank* has come: if it goes again, the cause is news."""
        self._away.pop(rank, None)

    # ---------------------------------------------------------------- engine

    def engine_up(self, info: EngineInfo, now: float) -> None:
        """The engine describes its model. Raises `RemoteProtocolError` the second time."""
        if self.info is not None:
            raise RemoteProtocolError("the engine describes its model a second time")
        self.info = info
        self.ping_due = now + _PING_SECONDS
        self._links.accept_steps = True
        self._engine = EngineFacts(True, now, self._engine.lost, self._engine.reason)

    def engine_unreadable(self, reason: str) -> list[Note]:
        """The engine cannot read its model. Raises `RemoteProtocolError` if it has described it."""
        if self.info is not None:
            raise RemoteProtocolError("the engine cannot read a model that it has described")
        self._engine = attrs.evolve(self._engine, reason=reason, unreadable=True)
        return [Note(Level.ERROR, f"the engine cannot read its model: {reason}")]

    def engine_down(self) -> None:
        """The engine process is gone, or is being replaced."""
        self.info = self.ping_due = None
        self._links.accept_steps = False

    def ping_is_due(self, now: float) -> bool:
        """True, once a second, if the engine is to be asked for its counters."""
        if not is_due(self.ping_due, now):
            return False
        self.ping_due = now + _PING_SECONDS
        return True

    def engine_ended(self, reason: str, now: float, *, planned: bool) -> None:
        """The engine process is gone for *reason*. A *planned* end is no fault."""
        self._starved_ranks.process(0.0)
        self._engine = self._engine.ended(reason, now, planned=planned)

    def report(self, progress: Progress) -> None:
        """Record the engine's *progress*, and report it to the peers."""
        known = self.progress
        progress = attrs.evolve(
            progress, fetched_bytes=known.fetched_bytes, fetch_bytes=known.fetch_bytes
        )
        self._report(progress)

    def fetched(self, here: int, size: int) -> None:
        """Report that *here* of the *size* bytes of this rank's tensors are here."""
        self._report(attrs.evolve(self.progress, fetched_bytes=here, fetch_bytes=size))

    def _report(self, progress: Progress) -> None:
        self.progress, sent = self._starved_ranks.added_to(progress)
        self._links.set_progress(sent)

    # ------------------------------------------------------------ starvation

    def hear_own_starvation(self, seconds: float, role: NodeRole, now: float) -> list[Note]:
        """The present engine process has starved for *seconds* in all. Passes it to *role*, and
        returns the notes to log."""
        self._starved_ranks.process(seconds)
        more = self._starved_ranks.look(self.rank, self._starved_ranks.own, now)
        notes = self._starved({self.rank: more}, role, now)
        self.report(self.progress)
        return notes

    def hear_starvation(self, role: NodeRole, now: float) -> list[Note]:
        """Read the starvation that linked ranks last reported. Passes it to *role*, and returns the
        notes to log."""
        heard = {
            rank: self._starved_ranks.look(rank, link.keepalive.peer_starved, now)
            for rank, purpose, link in self._links.links()
            if purpose is Purpose.CONTROL
        }
        ring = {rank: more for rank, more in heard.items() if role.place(rank) is not None}
        notes = self._starved(ring, role, now)
        self._starved_ranks.reset_all_but(set(heard) | {self.rank})
        if isinstance(role.brain, Head) and role.brain.parallel:  # it waited for the slowest
            self._starved_ranks.lent += max(ring.values(), default=0.0)
            self.report(self.progress)
        return notes

    def _starved(self, heard: Mapping[int, float], role: NodeRole, now: float) -> list[Note]:
        """The engines of some ranks have starved for so many more seconds."""
        for rank, more in heard.items():
            if more > 0:
                role.starved(rank, more, now)
        # On a follower, the head's report includes other ranks: it extends deadlines, and is not
        # logged.
        news = [r for r in heard if self.rank in (0, r) and self._starved_ranks.is_news(r, now)]
        if not news:
            return []
        facts = attrs.evolve(
            self.facts(role.standing(), now), starved=self._starved_ranks.of(*news)
        )
        return [Note(Level.INFO, each.what) for each in starving(facts)]


__all__ = ["Node", "NodeConfig"]

SHUTS_DOWN: Final = "the node shuts down"
"""The reason sent to members when this node stops."""

_LATE_SECONDS: Final = 1.0
"""Seconds of delay in calling `handle_timeout` from which the node was asleep, not merely slow."""


def _at_most(level: Level, effect: Effect) -> Effect:
    """*effect* of a link that is gone: a warning has *level* instead."""
    if isinstance(effect, Note) and effect.level is Level.WARNING:
        return attrs.evolve(effect, level=level)
    return effect


class Node:
    """A member of the ring, without its outside world."""

    def __init__(self, config: NodeConfig, now: float) -> None:
        """Raises `LocalProtocolError` if the key is not in the roster, and `AuthenticationFailed`
        if the roster is not signed by the coordinator."""
        self._links = LinkManager(
            handshake_config(config), now, config.patience, config.listens, relays=config.relays
        )
        self._relays = RelayLinks(self._links)
        self._events: deque[NodeEvent] = self._links.events
        self._voting = Voting(self._links, config.ballot, now, stands=config.stands)
        self._build = config.build
        self._ring_due: float | None = None  # when to look at who is in the ring
        self._needs_all = ""  # why it waits for all, as it was last logged
        self._served: float | None = None  # when the ring last did
        self._presentations: dict[int, TokenBucket] = {}  # of ranks outside of the ring
        self._report = NodeReport(self._links, config.unpinned, now)
        self.loaded: Loaded | None = None  # what the engine last loaded
        self._stops = False  # once another is head
        self._replaced = False  # the end of the engine process, which an old brain wanted, is due
        self._role = NodeRole(config, self.roster.roster, self._links.rank, now, self.leads)
        self._take_brain()
        self._take_place()

    def _take_brain(self) -> None:
        """Take the role's present brain and places, which every step asks for."""
        self._brain, self._places = self._role.brain, self._role.places

    def _take_place(self) -> None:
        """Take the place that the roster in force gives this node."""
        self.rank = self._links.rank
        self.world = len(self.roster.roster.members)
        self._report.renumber(self.rank)
        self._presentations.clear()
        self._weights = WeightRequests(self._links)

    # ------------------------------------------------------------ looking in

    @property
    def ring(self) -> tuple[int, ...]:
        """The ranks of the ring, in their order. A follower has it from the head's last order."""
        return self._role.ring

    @property
    def roster(self) -> SignedRoster:
        """The roster in force."""
        return self._links.config.roster

    def standing(self) -> Standing:
        """How far this rank has come towards serving, and its part in the ring."""
        return self._role.standing()

    @property
    def serving(self) -> bool:
        """True if the ring takes steps, and this rank does its part."""
        return self._brain.serving

    def goes_on(self, now: float) -> bool:
        """True if the ring serves, or did until a moment ago and goes on with whoever is there: a
        new request may wait with those under way."""
        if self._brain.serving:
            return True
        changes = self._role.attendance is not None and not self._role.needs_all
        return changes and self._served is not None and now - self._served < GRACE_SECONDS

    def leads(self, now: float) -> bool:
        """True if this node is head, and no other can be: it may answer clients."""
        return self._voting.quiet <= now < self._voting.leads_until

    def why_unled(self, now: float) -> str:
        """Why this head takes no requests: another may be. Empty if it leads, or did a moment ago,
        and on other ranks."""
        if self.rank or self._voting.unled(now) <= UNLED_SECONDS:
            return ""
        why = (each.what for each in self.obstacles(now) if each.cause is Cause.NO_MAJORITY)
        return next(why, "this node is the head, and another may be")

    def election(self, now: float) -> Leadership:
        """Who is head, since when, and how sure of it this node is."""
        return self._voting.leadership(now, leads=self.leads(now))

    def cut_off(self, now: float) -> bool:
        """True if this node has been without a head for a while, and those that it does not hear
        may have one: whoever can should ask them."""
        return self._voting.cut_off(now)

    @property
    def engine_info(self) -> EngineInfo | None:
        """The engine's description of its model; None while no engine is up."""
        return self._report.info

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """Every established link: the peer's rank, the purpose, and the link."""
        return self._links.links()

    def peers(self) -> list[PeerState]:
        """The state of every other member, by rank."""
        return self._links.peers()

    def facts(self, now: float) -> Facts:
        """The facts that `obstacles` judges by."""
        return attrs.evolve(self._report.facts(self.standing(), now), leadership=self.election(now))

    def obstacles(self, now: float) -> list[Obstacle]:
        """What keeps this node from serving, as far as it can know; empty if it serves."""
        return obstacles(self.facts(now), now)

    def next_event(self) -> NodeEvent | None:
        """The next event for the caller to handle; None if there is none."""
        return self._events.popleft() if self._events else None

    def links_to_flush(self) -> set[int]:
        """The connections that have new data to send since the last call."""
        links, self._links.to_flush = self._links.to_flush, set()
        return links

    def data_to_send(self, link: int) -> bytes | bytearray:
        """Take all bytes that wait to be sent on connection *link*."""
        return self._links.data_to_send(link)

    # ------------------------------------------------------------------ life

    def start(self, now: float) -> None:
        """Begin to dial. Call it once."""
        self._want_control_links(now)
        self._look_at_ring(now)
        self._deliver_news(now)

    def _want_control_links(self, now: float) -> None:
        for rank in range(1, self.world) if self.rank == 0 else [0]:
            self._links.want(rank, Purpose.CONTROL, now)
        self._links.greet(now)

    def stop(self, now: float) -> None:
        """Close every link with SHUTDOWN; `Hangup` follows for each."""
        self._links.close(SHUTS_DOWN, now)
        self._events.extend(self._relays.end_all(SHUTS_DOWN))

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        links, brain = self._links.next_timeout(), self._brain.next_timeout()
        report = self._report
        log, voting = report.obstacle_log.due, self._voting.due
        return earliest(links, brain, report.ping_due, log, self._ring_due, voting)

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        asked = self.next_timeout()
        self._links.handle_timeout(now)
        if asked is not None and now - asked > _LATE_SECONDS:
            # The node slept: answers may have come, but were not read.
            for rank in range(self.world):
                self._role.starved(rank, now - asked, now)
        if is_due(self._voting.due, now):
            self._voting.handle_timeout(now)
        if is_due(self._brain.next_timeout(), now):  # starvation heard now may put it off
            self._say(self._report.hear_starvation(self._role, now), now)
        if is_due(self._brain.next_timeout(), now):
            self._carry_out(self._brain.handle_timeout(now), now)
        if is_due(self._ring_due, now):
            self._look_at_ring(now)
        if self._report.ping_is_due(now):
            self._events.append(ToEngine(Ping(0, Progress())))
            self._say(self._report.hear_starvation(self._role, now), now)
        if is_due(self._report.obstacle_log.due, now):
            found = self.obstacles(now)
            self._say(self._report.obstacle_log.look(found, now), now)
            if isinstance(self._brain, Head):
                self._carry_out(self._brain.explain(waiting(self.facts(now), now), now), now)
                if (obstacle := first_permanent(found)) is not None:
                    self._carry_out(self._brain.end_requests(obstacle.what, now), now)
        self._deliver_news(now)

    # -------------------------------------------------------------- requests

    def plan_steps(self, now: float) -> bool:
        """Plan steps if there may be room for some. True if it did. Call it each time that
        `next_event` has given None, until it gives False: a step that came back then reaches the
        engine before the head plans. A head that does not lead plans none."""
        brain = self._brain
        if not isinstance(brain, Head) or not brain.may_plan or not self.leads(now):
            return False
        self._act(brain.plan_steps(now), now)
        return True

    def submit(self, request: Request, now: float) -> int:
        """Queue *request*; returns its uid. Raises `LocalProtocolError` on any rank but the head,
        if it can never be served, or if the queue is full; `NotServed` if the ring serves none
        until somebody changes that; and `NoMajority` if this head does not lead."""
        head = self._role.head()
        if why := self.why_unled(now):
            raise NoMajority(why)
        if not head.serving and (found := first_permanent(self.obstacles(now))) is not None:
            raise NotServed(found.what)
        uid, effects = head.submit(request, now)
        self._role.submitted(uid)
        self._act(effects, now)
        return uid

    def cancel(self, uid: int, now: float) -> None:
        """Cancel request *uid*, if it is not over."""
        self._act(self._role.head().cancel(uid, now), now)

    def finish(self, uid: int, now: float) -> None:
        """End request *uid* as complete (a stop string was reached)."""
        self._act(self._role.head().finish(uid, now), now)

    def guess(self, uid: int, position: int, tokens: Sequence[int], now: float) -> None:
        """Request *uid* is likely to go on with *tokens* from absolute *position* on."""
        self._act(self._role.head().guess(uid, position, tokens, now), now)

    def check(self, on: bool, now: float) -> None:
        """Begin a checked epoch, or end it: every rank sends fingerprints (`StepChecked`). Raises
        `LocalProtocolError` on any rank but the head."""
        self._act(self._role.head().check(on, now), now)

    def prefer(self, preference: Preference | None, now: float) -> None:
        """The head prefers a smaller ring than the present one, because it is faster; None: no
        more. The ring becomes that one at a moment when it is idle. See `control.head.attendance`
        for how a preference ends. `Standing.preference` is the present one.

        Raises `LocalProtocolError` on any rank but the head; where the ring always has all members;
        and for what is no smaller ring, or is one of fewer than `NodeConfig.least`.
        """
        self._role.head()
        self._role.prefer(preference)
        self._ring_due = now
        self._deliver_news(now)

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> None:
        """Handle *message* from the engine process. Raises `RemoteProtocolError` if it may not send
        it."""
        match message:
            case Pong():
                self._report.report(message.progress)
                return
            case Loaded():
                self.loaded = message
            case EngineInfo():
                self._report.engine_up(message, now)
            case CannotServe() if message.epoch == NO_EPOCH:
                self._say(self._report.engine_unreadable(message.reason), now)
        self._act(self._brain.engine_message(message, now), now)
        if isinstance(message, EngineInfo):
            self._present_own(now)

    def engine_starved(self, seconds: float, now: float) -> None:
        """The present engine process has starved for *seconds* in all (`Starvation`)."""
        self._say(self._report.hear_own_starvation(seconds, self._role, now), now)
        self._deliver_news(now)

    def fetched(self, here: int, size: int, now: float) -> None:
        """*here* of the *size* bytes of this rank's tensors are here; 0 of 0: none is to come."""
        self._report.fetched(here, size)
        if not size and isinstance(self._brain, Follower):
            self._act(self._brain.fetched(), now)

    def engine_lost(self, reason: str, now: float, *, out_of_memory: bool = False) -> None:
        """The engine process is gone, and the caller starts another. *out_of_memory*: the system
        killed it."""
        self._report.engine_down()
        kind = FailureKind.MEMORY if out_of_memory else FailureKind.ENGINE_LOST
        planned = self._brain.replacing or self._replaced
        self._replaced = False
        lost = self._brain.engine_lost(reason, now, kind)
        self._carry_out([_at_most(Level.INFO, effect) for effect in lost] if planned else lost, now)
        self._report.engine_ended(reason, now, planned=planned)
        # Only that process had the activation secrets. New links bring new ones; the brain wants
        # the links again when the next engine is up.
        self._links.unwant(Purpose.STEP)
        self._links.shut_all({Purpose.STEP}, "the engine is being replaced", now)
        if self._role.attendance is not None:
            self._role.attendance.lost(0, now)
            self._look_at_ring(now)
        self._deliver_news(now)

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> None:
        """The successful answer to `PrepareCollective`: the engine will listen on *port* and, over
        sealed links, connect to *relay* on this machine (0: none)."""
        self._act(self._brain.collective_prepared(epoch, port, relay, now), now)

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> None:
        """The failed answer to `PrepareCollective`: no port or no relay is available."""
        self._act(self._brain.collective_failed(epoch, reason, now), now)

    def give_piece(self, link: int, piece: Piece, now: float) -> None:
        """Answer the oldest `WeightsAsked` of connection *link*, unless that is gone."""
        self._carry_out(self._weights.answer(link, piece), now, in_ranks=True)
        self._deliver_news(now)

    # ------------------------------------------------------------- relaying

    def relay(self, rank: int) -> Relay | None:
        """This node's end of the API link with *rank*: of a follower with 0, of a head with any
        other. None while there is none: between `RelayDown` and `RelayUp`. Its events come as
        `RelayEventCame`. Call `relay_flush` after each of its methods that may have sent
        something."""
        return self._relays.relay(rank)

    def relay_flush(self, rank: int, now: float) -> None:
        """Send what the relay of *rank* has to send, if there is one."""
        self._relays.flush(rank, now)
        self._deliver_news(now)

    # ----------------------------------------------------------- connections

    def address_heard(self, node_id: bytes, host: str, port: int, now: float) -> None:
        """The member *node_id* may be at *host*, an IP address, and *port*: nobody has to have
        proved that. It is dialed beside the roster's addresses, and forgotten when the process
        ends. Ignored are strangers, this node itself, and what is no address of another machine.

        Of each member a few such addresses are kept. Each further one takes the place of another
        that does not answer, at most once a minute.
        """
        self._links.address_heard(node_id, host, port, now)

    def accepted(self, source: str, entropy: bytes, now: float, wall_ms: int) -> int:
        """A connection came in from the address *source* (a host, without port). Returns its
        number.

        *entropy* is 32 random bytes. If too many handshakes are open, another connection is closed,
        and its `Hangup` follows.
        """
        self._report.set_clock(wall_ms, now)
        return self._links.accepted(source, entropy, now, wall_ms)

    def connected(self, link: int, entropy: bytes, now: float, wall_ms: int) -> None:
        """The connection of a `Dial` is open; *entropy* is 96 random bytes."""
        self._report.set_clock(wall_ms, now)
        self._links.connected(link, entropy, now, wall_ms)
        self._deliver_news(now)

    def dial_failed(self, link: int, reason: str, now: float) -> None:
        """The connection of a `Dial` could not be opened."""
        self._links.dial_failed(link, reason, now)
        self._deliver_news(now)

    def receive_data(self, link: int, data: bytes, now: float) -> None:
        """*data* came in on connection *link*."""
        self._links.receive_data(link, data, now)
        self._deliver_news(now)

    def receive_eof(self, link: int, now: float) -> None:
        """The stream of connection *link* ended."""
        self._links.receive_eof(link, now)
        self._deliver_news(now)

    def link_over(self, link: int, end: SealringError | LinkClosed, now: float) -> None:
        """The caller's session of connection *link* raised *end*, or gave it as an event."""
        self._links.link_over(link, end, now)
        self._deliver_news(now)

    def provide_signature(self, link: int, signature: bytes, now: float) -> None:
        """The answer to `SignatureRequested`: 64 bytes r || s, low s."""
        self._links.provide_signature(link, signature, now)
        self._deliver_news(now)

    def provide_encapsulation(
        self, link: int, ciphertext: bytes, secret: bytes, now: float
    ) -> None:
        """The answer to `EncapsulationRequested`."""
        self._links.provide_encapsulation(link, ciphertext, secret, now)
        self._deliver_news(now)

    def bring_roster(self, data: bytes, now: float, wall_ms: int) -> None:
        """The owner brings *data*, a newer signed roster: `StoreRoster` follows, with link 0. An
        election in it counts as one that a peer brings.

        Raises `LocalProtocolError` with the reason if it may not replace the one in force, and
        `HeadFirst` if that is for the head to do.
        """
        self._links.bring_roster(data, now, wall_ms)

    def roster_stored(self, link: int, now: float) -> None:
        """The successful answer to `StoreRoster`: the new roster is in force."""
        self._links.roster_stored(link, now)
        self._deliver_news(now)

    def roster_not_stored(self, link: int, now: float) -> None:
        """The failed answer to `StoreRoster`: the new roster is dropped."""
        self._links.roster_not_stored(link, now)
        self._deliver_news(now)

    # ------------------------------------------------------------- elections

    def stand(self, on: bool, now: float) -> None:
        """This node could serve as head from now on, or could not: `NodeConfig.stands`."""
        self._voting.stand(on, now)

    def vote_cast(self, signature: bytes, now: float) -> None:
        """The successful answer to `CastVote`: the vote is stored, and *signature* (64 bytes) is
        that of its payload."""
        self._voting.vote_cast(signature, now)
        self._deliver_news(now)

    def vote_not_cast(self, now: float) -> None:
        """The failed answer to `CastVote`: the vote is not cast."""
        self._voting.vote_not_cast(now)
        self._deliver_news(now)

    def take(self, now: float) -> None:
        """The owner makes this node head, by its own vote alone: no other head answers. It is head
        once its vote and its roster are stored.

        Raises `LocalProtocolError` with the reason if it may not be head, or sees one.
        """
        self._voting.take(now)
        self._deliver_news(now)

    def move(self, rank: int, now: float, *, stops: bool = False) -> None:
        """This node, the head, has *rank* elected in its place, and takes no steps meanwhile. If
        that fails, it has itself elected once more. A node that *stops* then takes no part in the
        ring of the next head, so that the others load their layers once.

        Raises `LocalProtocolError` with the reason if it does not lead, or *rank* may not be head
        or is not there.
        """
        self._voting.move(rank, now)
        self._stops = stops
        self._deliver_news(now)

    # ------------------------------------------------------------- internals

    def _say(self, notes: Iterable[Note], now: float) -> None:
        """Log *notes*, at a lower level if they repeat too often."""
        self._events.extend(self._links.notes.limited(note, now) for note in notes)

    def _deliver_news(self, now: float) -> None:
        """Give the link manager's news to the brain."""
        while self._links.news:
            self._hear(self._links.news.popleft(), now)
        if self._ring_due is not None and now >= self._ring_due:
            self._look_at_ring(now)
            self._deliver_news(now)
            return
        serving, log = self._brain.serving, self._report.obstacle_log
        serving = serving and (self.rank > 0 or self.leads(now))
        if serving:
            self._served = now
        if not serving or log.due is not None:
            log.turn(now, serving=serving or self._links.closed)

    def _hear(self, news: News, now: float) -> None:  # noqa: PLR0912  one branch for each kind
        match news:
            case OfLink(_, Purpose.WEIGHTS):
                self._events.extend(self._weights.hear(news, now))
            case OfLink(_, Purpose.API):
                self._events.extend(self._relays.hear(news, now))
            case MessageReceived(rank, purpose, message):
                try:
                    effects = self._message(rank, purpose, message, now)
                except RemoteProtocolError as error:
                    self._links.fail(rank, purpose, error, now)
                else:
                    self._carry_out(effects, now)
            case CameUp(rank, Purpose.CONTROL) if self.rank and rank:
                self._voting.link_up(rank, now)
            case LinkDown(rank, Purpose.CONTROL) if self.rank and rank:
                self._voting.link_down(rank, now)
            case CameUp(rank, purpose, event):
                self._report.is_there(rank)
                roster = self.roster.roster
                if purpose is Purpose.STEP and roster.inner_seal:
                    keys = hop_keys(news, self.rank, self.ring, roster.cluster)
                    self._events.extend(map(ToEngine, keys))
                self._events.append(event)
                if purpose is Purpose.CONTROL:
                    self._relays.control_up(rank, now)
                    self._voting.link_up(rank, now)
                if (place := self._role.place(rank)) is not None:
                    self._carry_out(self._brain.link_up(place, purpose, now), now)
                self._say(self._report.hear_starvation(self._role, now), now)  # its baseline
            case LinkDown(rank, purpose, reason, level):
                if purpose is Purpose.CONTROL:
                    self._relays.control_down(rank)
                    self._voting.link_down(rank, now)
                self._link_down(rank, purpose, reason, level, now)
            case Unreachable(rank, purpose, why):
                if isinstance(self._brain, Follower):
                    self._brain.unreached(rank, purpose, why)
                elif self._awaits(rank, purpose):
                    self._say(self._report.why_away(rank, self.facts(now), now), now)
            case RivalMandate(mandate):
                self._voting.rival(mandate, now)
            case RosterInForce(changed=changed):
                if changed:
                    self._begin_anew(now)
                else:
                    self._role.readdress(self.roster.roster)
                self._voting.adopted(now)
                self._events.append(news)

    def _awaits(self, rank: int, purpose: Purpose) -> bool:
        """Whether the ring serves without *rank*, which could be in it if its link came up."""
        could = not self._links.member(rank).is_witness
        return self._brain.serving and purpose is Purpose.CONTROL and could

    def _begin_anew(self, now: float) -> None:
        """The ranks have changed: start with a new brain. If this node stays the head, its requests
        go on, and are prefilled again."""
        roster = self.roster.roster
        here = {
            self._links.member(rank).id
            for rank, purpose, _ in self._links.links()
            if purpose is Purpose.CONTROL
        }
        self._links.unwant(*Purpose)
        self._links.shut_all(set(Purpose), ROSTER_CHANGED, now)
        self._links.news.clear()  # it was for the old brain
        self._events.extend(self._relays.end_all(ROSTER_CHANGED))
        before = self._brain
        members = self._role.members
        sought = self._links.meeting
        effects = self._role.change(roster, self._links.rank, now, here, sought=sought)
        self._report.joined = {
            member: self._report.joined.get(member, now)
            for member in self._role.members
            if member not in members or member in self._report.joined
        }
        self._succeeds(before)
        self._take_place()
        self._carry_out(effects, now)
        self._want_control_links(now)
        if self.engine_info is not None and not self._stops:
            self._carry_out(self._brain.engine_message(self.engine_info, now), now)
        self._present_own(now)

    def _succeeds(self, before: Head | Follower) -> None:
        """Another brain has taken over from *before*. If that was replacing its engine process, the
        new one knows nothing of it, and the next process presents itself."""
        if before.replacing:
            self._replaced = self._report.info is not None
            self._report.engine_down()
        self._take_brain()

    # ------------------------------------------------------ the members of the ring

    def _message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        """*rank* sent *message*. Raises `RemoteProtocolError` if it may not send it."""
        if type(message) in OF_ELECTIONS:
            self._voting.receive(rank, cast(ElectionMessage, message), now)
            return []
        place = rank if self._places is None else self._role.place(rank)
        if place is None:
            return self._outsider(rank, message, now)
        effects = self._brain.message(place, purpose, message, now)
        attendance = self._role.attendance
        if attendance is None:
            return effects
        if isinstance(message, Hello):
            if not any(isinstance(effect, Shut) for effect in effects):
                self._came(attendance, rank, message, now)
        elif isinstance(message, CannotServe) and message.epoch == NO_EPOCH:
            attendance.unreadable(rank, message.reason)  # which the brain has said
        return effects

    def _outsider(self, rank: int, message: Message, now: float) -> list[Effect]:
        """*rank*, which the ring is without, sent *message*."""
        of_epoch = isinstance(message, CannotServe) and message.epoch != NO_EPOCH
        if not isinstance(message, Hello | CannotServe) or of_epoch:
            return []  # it has not heard yet that the ring goes on without it
        bucket = TokenBucket(PRESENTATIONS_PER_SECOND, now)
        if not self._presentations.setdefault(rank, bucket).take(now):
            raise LimitExceeded("it presents itself too often")
        attendance, member = self._role.attendance, self._links.member(rank)
        if member.is_witness:
            return []  # it takes no part, whatever its engine has
        if isinstance(message, Hello):
            effects = self._role.outsider(rank, message, self.engine_info)
            self._carry_out(effects, now, in_ranks=True)
            if any(isinstance(effect, Shut) for effect in effects):
                return []
            if attendance is not None:
                self._came(attendance, rank, message, now)
            return [Note(Level.INFO, f"{member.name} is here")]
        if attendance is not None and attendance.unreadable(rank, message.reason):
            text = f"{member.name} cannot read its model: {message.reason}"
            return [Note(Level.ERROR, text)]
        return []

    def _came(self, attendance: Attendance, rank: int, said: Hello, now: float) -> None:
        attendance.came(rank, said, now)
        self._ring_due = now  # once the effects of its HELLO are carried out

    def _link_down(
        self, rank: int, purpose: Purpose, reason: str, level: Level, now: float
    ) -> None:
        place = self._role.place(rank)
        if place is not None:
            effects = self._brain.link_down(place, purpose, reason, now)
            self._carry_out([_at_most(level, effect) for effect in effects], now)
        elif purpose is Purpose.CONTROL:
            name = self._links.member(rank).name
            self._say([Note(level, f"{name}, which is not in the ring, is gone: {reason}")], now)
        if self._role.attendance is not None and purpose is Purpose.CONTROL:
            self._role.link_lost(rank, now)
            self._look_at_ring(now)

    def _present_own(self, now: float) -> None:
        """This node's engine is up, and may take part."""
        attendance, info = self._role.attendance, self.engine_info
        if attendance is not None and info is not None:
            attendance.came(0, hello(info, self._build), now)
        self._look_at_ring(now)

    def _look_at_ring(self, now: float) -> None:
        """Change the ring if others should be in it, and set when to look again."""
        role = self._role
        if role.attendance is None:
            self._ring_due = None
            return
        wanted = role.wanted_ring(self.engine_info, now)
        if wanted != role.ring:
            self._change_ring(wanted, now)
        self._carry_out([*role.notices()], now, in_ranks=True)
        if role.needs_all != self._needs_all and role.needs_all:
            self._say([Note(Level.WARNING, f"the ring waits: {role.needs_all}")], now)
        self._needs_all = role.needs_all
        self._ring_due = role.ring_due(now)

    def _change_ring(self, ring: tuple[int, ...], now: float) -> None:
        """Go on with the ranks of *ring*: requests go on, and are prefilled again."""
        old, before = self._role.ring, self._brain
        self._end_steps(now)
        effects = self._role.change_ring(ring, now)
        self._say_change(old, now)
        self._succeeds(before)
        self._carry_out(effects, now)
        control = {rank for rank, purpose, _ in self._links.links() if purpose is Purpose.CONTROL}
        for place, rank in enumerate(ring):
            if rank in control:
                self._carry_out(self._brain.link_up(place, Purpose.CONTROL, now), now)
        if self.engine_info is not None:
            self._carry_out(self._brain.engine_message(self.engine_info, now), now)
        known = {} if self._role.attendance is None else self._role.attendance.hellos
        for place, rank in enumerate(ring):
            if place and rank in known:
                came = self._brain.message(place, Purpose.CONTROL, known[rank], now)
                self._carry_out(came, now)

    def _say_change(self, before: tuple[int, ...], now: float) -> None:
        """Log who is left out of the ring, which was *before*, and why; and who is taken in."""
        ring, outside = self._role.ring, self._role.outside()
        out = [
            Note(
                Level.INFO if outside[rank].chosen else Level.WARNING,
                f"the ring goes on without {self._links.member(rank).name}: "
                f"{outside[rank].text(now)}",
            )
            for rank in before
            if rank not in ring
        ]
        taken = [
            f"the ring takes {self._links.member(rank).name} in"
            for rank in ring
            if rank not in before
        ]
        self._say(out, now)
        self._say([Note(Level.INFO, text) for text in taken], now)

    def _end_steps(self, now: float) -> None:
        """The ring has other members: their links of steps and of a collective are over."""
        over = {Purpose.STEP, Purpose.TUNNEL}
        self._links.unwant(*over)
        self._links.shut_all(over, RING_CHANGED, now)
        kept = [
            news
            for news in self._links.news
            if not (isinstance(news, OfLink) and news.purpose in over)
        ]
        self._links.news.clear()
        self._links.news.extend(kept)  # the rest was for the old brain

    def _act(self, effects: list[Effect], now: float) -> None:
        self._carry_out(effects, now)
        self._deliver_news(now)

    def _carry_out(self, effects: list[Effect], now: float, *, in_ranks: bool = False) -> None:
        """Carry out *effects*, which name what the brain calls ranks, or are *in_ranks*."""
        places = None if in_ranks else self._places
        for effect in effects:
            match effect:
                case Send(rank, purpose, message):
                    to = rank if places is None else places[rank]
                    self._links.send(to, purpose, message, now)
                case Want(rank, purpose, yields):
                    to = rank if places is None else places[rank]
                    self._links.want(to, purpose, now, yields=yields)
                case Shut(rank, purpose, code, reason):
                    to = rank if places is None else places[rank]
                    self._links.shut(to, purpose, code, reason, now)
                case NewRing(members):
                    self._role.ring = members
                    self._end_steps(now)
                case EpochOver(failed, broke):
                    self._role.epoch_over(failed, broke, now)
                    self._ring_due = now  # once these effects are carried out
                case EpochExplained(failed):
                    self._role.broke(failed, now)
                    self._ring_due = now
                case Note():
                    self._say([effect], now)
                case StepTiming() if places is not None:
                    self._events.append(attrs.evolve(effect, ring=places))
                case RequestDone(uid):
                    self._role.request_done(uid)
                    self._events.append(effect)
                case _:
                    self._events.append(effect)
