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
from collections.abc import Iterable
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    CannotServe,
    Epoch,
    FailureKind,
    Ping,
    Pong,
    Progress,
)
from sealring_protocol.control.effects import Effect, Level, Note, Send, Shut, ToEngine, Want
from sealring_protocol.control.epoch.deadlines import earliest
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.scheduler.requests import FinishReason, Request, RequestDone
from sealring_protocol.diagnosis.hunger import Hunger
from sealring_protocol.diagnosis.peers import PeerState
from sealring_protocol.diagnosis.teller import Teller
from sealring_protocol.diagnosis.why import (
    EngineFacts,
    Facts,
    Obstacle,
    obstacles,
    starving,
    waiting,
)
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError, SealringError
from sealring_protocol.events import (
    LinkUp,
    NodeEvent,
    RosterInForce,
    StoreRoster,
)
from sealring_protocol.link import Link
from sealring_protocol.link_events import LinkClosed
from sealring_protocol.links import news
from sealring_protocol.links.link_manager import LinkManager
from sealring_protocol.links.news import hop_keys
from sealring_protocol.node_config import NodeConfig, follower_config, handshake_config, head_config
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster

__all__ = ["Node", "NodeConfig"]

_ENGINE_PING_SECONDS: Final = 1.0
"""Seconds between two requests for the engine's counters."""

_LATE_SECONDS: Final = 1.0
"""Seconds of delay in calling `handle_timeout` from which the node was asleep, and not merely
slow."""


class Node:
    """A member of the ring, without its outside world."""

    def __init__(self, config: NodeConfig, now: float) -> None:
        """Raises `LocalProtocolError` if the key is not in the roster, and `AuthenticationFailed`
        if the roster is not signed by the coordinator."""
        self._config = config
        self._links = LinkManager(handshake_config(config), now, config.patience)
        self._events: deque[NodeEvent] = self._links.events
        self._notes = self._links.notes
        self._info: EngineInfo | None = None
        self._next_engine_ping: float | None = None
        self._requests: set[int] = set()
        self._next_uid = 1
        self._last_epoch = 0
        self._engine = EngineFacts(since=now)
        self._hunger = Hunger()
        self._teller = Teller()
        self._wall: float | None = None  # the time of day minus the monotonic clock, seconds
        self.loaded: Loaded | None = None
        self.progress = Progress()
        self._brain = self._make_brain(now)

    def _make_brain(self, now: float) -> Head | Follower:
        roster = self.roster.roster
        self.rank = self._links.rank
        self.world = len(roster.members)
        self._hunger.renumbered()
        if self.rank > 0:
            return Follower(follower_config(self._config, roster, self.rank), now)
        return Head(head_config(self._config, roster, self._next_uid, self._last_epoch), now)

    # ------------------------------------------------------------ looking in

    @property
    def roster(self) -> SignedRoster:
        """The roster in force."""
        return self._links.config.roster

    @property
    def brain(self) -> Head | Follower:
        """The control machine of this rank's role, for inspection only. It is no public API."""
        return self._brain

    @property
    def serving(self) -> bool:
        """True if the ring takes steps, and this rank does its part."""
        return self._brain.serving

    @property
    def engine_info(self) -> EngineInfo | None:
        """The engine's description of its model; None while no engine is up."""
        return self._info

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """Every established link: the peer's rank, the purpose, and the link."""
        return self._links.links()

    def peers(self) -> list[PeerState]:
        """The state of every other member, by rank."""
        return self._links.peers()

    def facts(self, now: float) -> Facts:
        """The facts that `obstacles` judges by."""
        return Facts(
            self.rank,
            self.roster.roster,
            self._brain.standing(),
            self._engine,
            {peer.rank: peer for peer in self.peers()},
            self._links.refusals.latest,
            None if self._wall is None else int((now + self._wall) * 1000),
            unpinned=self._config.unpinned,
            starved=self._hunger.of(*range(self.world) if self.rank == 0 else (self.rank,)),
        )

    def obstacles(self, now: float) -> list[Obstacle]:
        """What keeps this node from serving, as far as it can know; empty if it serves."""
        return obstacles(self.facts(now), now)

    def next_event(self) -> NodeEvent | None:
        """The next event for the caller to handle; None if there is none."""
        return self._events.popleft() if self._events else None

    def links_to_flush(self) -> set[int]:
        """The connections that have new data to send since the last call."""
        return self._links.links_to_flush()

    def data_to_send(self, link: int) -> bytes | bytearray:
        """Take all bytes that wait to be sent on connection *link*."""
        return self._links.data_to_send(link)

    # ------------------------------------------------------------------ life

    def start(self, now: float) -> None:
        """Begin to dial. Call it once."""
        self._want_control_links(now)
        self._deliver_news(now)

    def _want_control_links(self, now: float) -> None:
        for rank in range(1, self.world) if self.rank == 0 else [0]:
            self._links.want(rank, Purpose.CONTROL, now)
        self._links.greet(now)

    def stop(self, now: float) -> None:
        """Close every link with SHUTDOWN; `Hangup` follows for each."""
        self._links.close("the node shuts down", now)

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        links, brain = self._links.next_timeout(), self._brain.next_timeout()
        return earliest(links, brain, self._next_engine_ping, self._teller.due)

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        asked = self.next_timeout()
        self._links.handle_timeout(now)
        if asked is not None and now - asked > _LATE_SECONDS:
            # The node slept: answers may have come, but were not read.
            for rank in range(self.world):
                self._brain.starved(rank, now - asked, now)
        deadline = self._brain.next_timeout()
        if deadline is not None and now >= deadline:
            self._hear_of_starvation(now)
            deadline = self._brain.next_timeout()
        if deadline is not None and now >= deadline:
            self._carry_out(self._brain.handle_timeout(now), now)
        if self._next_engine_ping is not None and now >= self._next_engine_ping:
            self._next_engine_ping = now + _ENGINE_PING_SECONDS
            self._events.append(ToEngine(Ping(0, Progress())))
            self._hear_of_starvation(now)
        if self._teller.due is not None and now >= self._teller.due:
            self._say(self._teller.look(self.obstacles(now), now), now)
            if isinstance(self._brain, Head):
                self._carry_out(self._brain.explain(waiting(self.facts(now), now), now), now)
        self._deliver_news(now)

    # -------------------------------------------------------------- requests

    def plan_steps(self, now: float) -> bool:
        """Plan steps if there may be room for some. True if it did. Call it each time that
        `next_event` has given None, until it gives False: a step that came back then reaches the
        engine before the head plans."""
        if not isinstance(self._brain, Head) or not self._brain.may_plan:
            return False
        self._carry_out(self._brain.plan_steps(now), now)
        self._deliver_news(now)
        return True

    def submit(self, request: Request, now: float) -> int:
        """Queue *request*, and return its uid.

        Raises `LocalProtocolError` on any rank but the head, if the request can never be served, or
        if the queue is full.
        """
        uid, effects = self._head().submit(request, now)
        self._requests.add(uid)
        self._next_uid = uid + 1
        self._carry_out(effects, now)
        self._deliver_news(now)
        return uid

    def cancel(self, uid: int, now: float) -> None:
        """Cancel request *uid*; nothing happens if it is over."""
        self._carry_out(self._head().cancel(uid, now), now)
        self._deliver_news(now)

    def finish(self, uid: int, now: float) -> None:
        """End request *uid* as complete (a stop string was reached)."""
        self._carry_out(self._head().finish(uid, now), now)
        self._deliver_news(now)

    def _head(self) -> Head:
        if not isinstance(self._brain, Head):
            head = self._links.member(0).name
            raise LocalProtocolError(
                f"this node is rank {self.rank}, which takes no requests; ask the head, {head}"
            )
        return self._brain

    # ---------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> None:
        """Handle *message* from the engine process. Raises `RemoteProtocolError` if it may not send
        it."""
        match message:
            case Pong():
                self._report(message.progress)
                return
            case Loaded():
                self.loaded = message
            case EngineInfo() if self._info is not None:
                raise RemoteProtocolError("the engine describes its model a second time")
            case EngineInfo():
                self._info = message
                self._engine = EngineFacts(True, now, self._engine.lost, self._engine.reason)
                self._links.accept_steps = True
                self._next_engine_ping = now + _ENGINE_PING_SECONDS
            case CannotServe(epoch=epoch) if epoch == NO_EPOCH and self._info is not None:
                raise RemoteProtocolError("the engine cannot read a model that it has described")
            case CannotServe(epoch=epoch, reason=reason) if epoch == NO_EPOCH:
                self._engine = attrs.evolve(self._engine, reason=reason, unreadable=True)
                text = f"the engine cannot read its model: {reason}"
                self._say([Note(Level.ERROR, text)], now)
                return
        self._carry_out(self._brain.engine_message(message, now), now)
        self._deliver_news(now)

    def engine_starved(self, seconds: float, now: float) -> None:
        """The present engine process has starved for *seconds* in all (`Starvation`)."""
        self._hunger.process(seconds)
        self._hear_starved(self.rank, self._hunger.own, now)
        self._report(self.progress)
        self._deliver_news(now)

    def _report(self, progress: Progress) -> None:
        """Record the engine's *progress*, and report it to the peers."""
        self.progress, told = self._hunger.added_to(progress)
        self._links.set_progress(told)

    def _hear_of_starvation(self, now: float) -> None:
        """Read the starvation that linked ranks last reported."""
        heard = {
            rank: self._hear_starved(rank, link.keepalive.peer_starved, now)
            for rank, purpose, link in self.links()
            if purpose is Purpose.CONTROL
        }
        self._hunger.rest(set(heard) | {self.rank})
        if isinstance(self._brain, Head) and self._brain.parallel:
            self._hunger.lent += max(heard.values(), default=0.0)
            self._report(self.progress)

    def _hear_starved(self, rank: int, seconds: float | None, now: float) -> float:
        """The engine of *rank* has starved for *seconds* in all. Returns how much of that is
        new."""
        more = self._hunger.look(rank, seconds, now)
        if more > 0:
            self._brain.starved(rank, more, now)
        # On a follower, the head's report includes other ranks: it extends deadlines only.
        if self.rank in (0, rank) and self._hunger.is_news(rank, now):
            told = starving(attrs.evolve(self.facts(now), starved=self._hunger.of(rank)))
            self._say([Note(Level.INFO, each.what) for each in told], now)
        return more

    def engine_lost(self, reason: str, now: float, *, out_of_memory: bool = False) -> None:
        """The engine process is gone, and the caller starts another. *out_of_memory*: the system
        killed it."""
        self._info = None
        self._links.accept_steps = False
        self._next_engine_ping = None
        kind = FailureKind.MEMORY if out_of_memory else FailureKind.ENGINE_LOST
        self._carry_out(self._brain.engine_lost(reason, now, kind), now)
        self._hunger.process(0.0)
        self._engine = self._engine.ended(reason, now, planned=self._brain.replacing)
        # Only that process had the activation secrets. New links bring new ones; the brain wants
        # the links again when the next engine is up.
        self._links.unwant(Purpose.STEP)
        self._links.shut_all({Purpose.STEP}, "the engine is being replaced", now)
        self._deliver_news(now)

    # ------------------------------------------------------------ collectives

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> None:
        """The successful answer to `PrepareCollective`: the engine will listen on *port* and, over
        sealed links, connect to *relay* on this machine (0: none)."""
        self._carry_out(self._brain.collective_prepared(epoch, port, relay, now), now)
        self._deliver_news(now)

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> None:
        """The failed answer to `PrepareCollective`: no port or no relay is available."""
        self._carry_out(self._brain.collective_failed(epoch, reason, now), now)
        self._deliver_news(now)

    # ----------------------------------------------------------- connections

    def accepted(self, source: str, entropy: bytes, now: float, wall_ms: int) -> int:
        """A connection came in from the address *source* (a host, without port). Returns its
        number.

        *entropy* is 32 random bytes. If too many handshakes are open, another connection is closed,
        and its `Hangup` follows.
        """
        self._wall = wall_ms / 1000 - now
        return self._links.accepted(source, entropy, now, wall_ms)

    def connected(self, link: int, entropy: bytes, now: float, wall_ms: int) -> None:
        """The connection of a `Dial` is open; *entropy* is 96 random bytes."""
        self._wall = wall_ms / 1000 - now
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

    def bring_roster(self, data: bytes, wall_ms: int) -> None:
        """The owner brings *data*, a newer signed roster: `StoreRoster` follows, with link 0.

        Raises `LocalProtocolError` with the reason if it may not replace the one in force.
        """
        self._events.append(StoreRoster(0, self._links.current_roster.brought(data, wall_ms)))

    def roster_stored(self, link: int, now: float) -> None:
        """The successful answer to `StoreRoster`: the new roster is in force."""
        self._links.roster_stored(link, now)
        self._deliver_news(now)

    def roster_not_stored(self, link: int, now: float) -> None:
        """The failed answer to `StoreRoster`: the new roster is dropped."""
        self._links.roster_not_stored(link, now)
        self._deliver_news(now)

    # ------------------------------------------------------------- internals

    def _say(self, notes: Iterable[Note], now: float) -> None:
        """Log *notes*, at a lower level if they repeat too often."""
        self._events.extend(self._notes.told(note, now) for note in notes)

    def _deliver_news(self, now: float) -> None:
        """Give the link manager's news to the brain."""
        while self._links.news:
            self._hear(self._links.news.popleft(), now)
        self._teller.turn(now, serving=self._brain.serving or self._links.closed)

    def _hear(self, told: news.News, now: float) -> None:
        match told:
            case news.MessageReceived(rank, purpose, message):
                try:
                    effects = self._brain.message(rank, purpose, message, now)
                except RemoteProtocolError as error:
                    self._links.fail(rank, purpose, error, now)
                    return
                self._carry_out(effects, now)
            case news.LinkUp(rank, purpose):
                roster = self.roster.roster
                if purpose is Purpose.STEP and roster.inner_seal:
                    keys = hop_keys(told, self.rank, self.world, roster.cluster)
                    self._events.extend(map(ToEngine, keys))
                self._events.append(LinkUp(rank, purpose, told.number, told.link))
                self._carry_out(self._brain.link_up(rank, purpose, now), now)
                self._hear_of_starvation(now)  # the baseline for the new link
            case news.LinkDown(rank, purpose, reason):
                self._carry_out(self._brain.link_down(rank, purpose, reason, now), now)
            case news.Unreachable(rank, purpose, why):
                if isinstance(self._brain, Follower):
                    self._brain.unreached(rank, purpose, why)
            case news.RosterInForce(changed):
                if changed:
                    self._begin_anew(now)
                elif isinstance(self._brain, Head):
                    self._brain.readdress(self.roster.roster.hosts)
                serial = self.roster.roster.serial
                self._events.append(RosterInForce(serial, self._links.rank))

    def _begin_anew(self, now: float) -> None:
        """The ranks have changed: start with a new brain. If this node stays the head, its requests
        go on, and are prefilled again."""
        self._links.unwant(*Purpose)
        self._links.shut_all(set(Purpose), "the roster changed", now)
        self._links.news.clear()  # it was for the old brain
        before = self._brain
        self._carry_out(before.retire(), now)
        if before.replacing:
            self._info = None  # the next engine presents itself
            self._links.accept_steps = False
        if isinstance(before, Head):
            self._last_epoch = before.membership.epoch.counter
        self._brain = self._make_brain(now)
        if isinstance(before, Head) and isinstance(self._brain, Head):
            self._brain.inherit(before.scheduler)
        elif isinstance(before, Head):
            self._end_requests()
        self._want_control_links(now)
        if self._info is not None:
            self._carry_out(self._brain.engine_message(self._info, now), now)

    def _end_requests(self) -> None:
        """End all requests: another node is the head now, and does not know them."""
        head = self._links.member(0).name
        text = f"roster {self.roster.roster.serial} makes {head} the head; ask there"
        for uid in sorted(self._requests):
            self._events.append(RequestDone(uid, FinishReason.FAILED, text))
        self._requests.clear()

    def _carry_out(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Send(rank, purpose, message):
                    self._links.send(rank, purpose, message, now)
                case Want(rank, purpose, yields):
                    self._links.want(rank, purpose, now, yields=yields)
                case Shut(rank, purpose, code, reason):
                    self._links.shut(rank, purpose, code, reason, now)
                case Note():
                    self._say([effect], now)
                case RequestDone(uid):
                    self._requests.discard(uid)
                    self._events.append(effect)
                case _:
                    self._events.append(effect)
