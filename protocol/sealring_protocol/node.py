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
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    CannotServe,
    Epoch,
    FailureKind,
    Piece,
    Ping,
    Pong,
    Progress,
)
from sealring_protocol.control.effects import Effect, Level, Note, Send, Shut, ToEngine, Want
from sealring_protocol.control.epoch.deadlines import earliest, is_due
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.scheduler.requests import NotServed, Request, RequestDone
from sealring_protocol.control.standing import Standing
from sealring_protocol.diagnosis.peers import ROSTER_CHANGED, PeerState
from sealring_protocol.diagnosis.why import Facts, Obstacle, first_permanent, obstacles, waiting
from sealring_protocol.errors import RemoteProtocolError, SealringError
from sealring_protocol.events import LinkUp, NodeEvent, RosterInForce, StoreRoster
from sealring_protocol.link import Link
from sealring_protocol.link_events import LinkClosed
from sealring_protocol.links import news
from sealring_protocol.links.link_manager import HEAD_FIRST, LinkManager
from sealring_protocol.links.roster_in_force import HeadFirst
from sealring_protocol.links.weights import WeightRequests
from sealring_protocol.node_config import NodeConfig, handshake_config
from sealring_protocol.node_report import NodeReport
from sealring_protocol.node_role import NodeRole
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster

__all__ = ["Node", "NodeConfig"]

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
        self._links = LinkManager(handshake_config(config), now, config.patience)
        self._events: deque[NodeEvent] = self._links.events
        self._report = NodeReport(self._links, config.unpinned, now)
        self.loaded: Loaded | None = None  # what the engine last loaded
        self._role = NodeRole(config, self.roster.roster, self._links.rank, now)
        self._take_place()

    def _take_place(self) -> None:
        """Take the place that the roster in force gives this node."""
        self._brain = self._role.brain
        self.rank = self._links.rank
        self.world = len(self.roster.roster.members)
        self._report.renumber(self.rank)
        self._weights = WeightRequests(self._links)

    # ------------------------------------------------------------ looking in

    @property
    def roster(self) -> SignedRoster:
        """The roster in force."""
        return self._links.config.roster

    def standing(self) -> Standing:
        """How far this rank has come towards serving, and its part in the ring."""
        return self._brain.standing()

    @property
    def serving(self) -> bool:
        """True if the ring takes steps, and this rank does its part."""
        return self._brain.serving

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
        return self._report.facts(self.standing(), now)

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
        return earliest(links, brain, self._report.ping_due, self._report.obstacle_log.due)

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        asked = self.next_timeout()
        self._links.handle_timeout(now)
        if asked is not None and now - asked > _LATE_SECONDS:
            # The node slept: answers may have come, but were not read.
            for rank in range(self.world):
                self._brain.starved(rank, now - asked, now)
        if is_due(self._brain.next_timeout(), now):  # starvation heard now may put it off
            self._say(self._report.hear_starvation(self._brain, now), now)
        if is_due(self._brain.next_timeout(), now):
            self._carry_out(self._brain.handle_timeout(now), now)
        if self._report.ping_is_due(now):
            self._events.append(ToEngine(Ping(0, Progress())))
            self._say(self._report.hear_starvation(self._brain, now), now)
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
        engine before the head plans."""
        if not isinstance(self._brain, Head) or not self._brain.may_plan:
            return False
        self._act(self._brain.plan_steps(now), now)
        return True

    def submit(self, request: Request, now: float) -> int:
        """Queue *request*; returns its uid. Raises `LocalProtocolError` on any rank but the head,
        if it can never be served, or if the queue is full; and `NotServed` if the ring serves none
        until somebody changes that."""
        head = self._role.head()
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
        """Begin a checked epoch, or end it: every rank tells fingerprints (`StepChecked`). Raises
        `LocalProtocolError` on any rank but the head."""
        self._act(self._role.head().check(on, now), now)

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

    def engine_starved(self, seconds: float, now: float) -> None:
        """The present engine process has starved for *seconds* in all (`Starvation`)."""
        self._say(self._report.hear_own_starvation(seconds, self._brain, now), now)
        self._deliver_news(now)

    def fetched(self, here: int, size: int) -> None:
        """*here* of the *size* bytes of this rank's tensors are here; 0 of 0: none is to come."""
        self._report.fetched(here, size)

    def engine_lost(self, reason: str, now: float, *, out_of_memory: bool = False) -> None:
        """The engine process is gone, and the caller starts another. *out_of_memory*: the system
        killed it."""
        self._report.engine_down()
        kind = FailureKind.MEMORY if out_of_memory else FailureKind.ENGINE_LOST
        self._carry_out(self._brain.engine_lost(reason, now, kind), now)
        self._report.engine_ended(reason, now, planned=self._brain.replacing)
        # Only that process had the activation secrets. New links bring new ones; the brain wants
        # the links again when the next engine is up.
        self._links.unwant(Purpose.STEP)
        self._links.shut_all({Purpose.STEP}, "the engine is being replaced", now)
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
        self._act(self._weights.answer(link, piece), now)

    # ----------------------------------------------------------- connections

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

    def bring_roster(self, data: bytes, wall_ms: int) -> None:
        """The owner brings *data*, a newer signed roster: `StoreRoster` follows, with link 0.

        Raises `LocalProtocolError` with the reason if it may not replace the one in force, and
        `HeadFirst` if that is for the head to do.
        """
        current = self._links.current_roster
        if self._links.head_first(current.checked(data, wall_ms).roster):
            raise HeadFirst(HEAD_FIRST)
        self._events.append(StoreRoster(0, current.brought(data, wall_ms)))

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
        self._events.extend(self._links.notes.told(note, now) for note in notes)

    def _deliver_news(self, now: float) -> None:
        """Give the link manager's news to the brain."""
        while self._links.news:
            self._hear(self._links.news.popleft(), now)
        self._report.obstacle_log.turn(now, serving=self._brain.serving or self._links.closed)

    def _hear(self, told: news.News, now: float) -> None:
        match told:
            case news.OfLink(_, Purpose.WEIGHTS):
                self._events.extend(self._weights.hear(told, now))
            case news.MessageReceived(rank, purpose, message):
                try:
                    effects = self._brain.message(rank, purpose, message, now)
                except RemoteProtocolError as error:
                    self._links.fail(rank, purpose, error, now)
                else:
                    self._carry_out(effects, now)
            case news.LinkUp(rank, purpose):
                roster = self.roster.roster
                if purpose is Purpose.STEP and roster.inner_seal:
                    keys = news.hop_keys(told, self.rank, self.world, roster.cluster)
                    self._events.extend(map(ToEngine, keys))
                self._events.append(LinkUp(rank, purpose, told.number, told.link))
                self._carry_out(self._brain.link_up(rank, purpose, now), now)
                self._say(self._report.hear_starvation(self._brain, now), now)  # its baseline
            case news.LinkDown(rank, purpose, reason, level):
                effects = self._brain.link_down(rank, purpose, reason, now)
                self._carry_out([_at_most(level, effect) for effect in effects], now)
            case news.Unreachable(rank, purpose, why):
                if isinstance(self._brain, Follower):
                    self._brain.unreached(rank, purpose, why)
            case news.RosterInForce(changed):
                if changed:
                    self._begin_anew(now)
                elif isinstance(self._brain, Head):
                    self._brain.readdress(self.roster.roster.hosts)
                self._events.append(RosterInForce(self.roster.roster.serial, self._links.rank))

    def _begin_anew(self, now: float) -> None:
        """The ranks have changed: start with a new brain. If this node stays the head, its requests
        go on, and are prefilled again."""
        self._links.unwant(*Purpose)
        self._links.shut_all(set(Purpose), ROSTER_CHANGED, now)
        self._links.news.clear()  # it was for the old brain
        before = self._brain
        effects = self._role.change(self.roster.roster, self._links.rank, now)
        if before.replacing:
            self._report.info = None  # the next engine presents itself
            self._links.accept_steps = False
        self._take_place()
        self._carry_out(effects, now)
        self._want_control_links(now)
        if self.engine_info is not None:
            self._carry_out(self._brain.engine_message(self.engine_info, now), now)

    def _act(self, effects: list[Effect], now: float) -> None:
        self._carry_out(effects, now)
        self._deliver_news(now)

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
                    self._role.request_done(uid)
                    self._events.append(effect)
                case _:
                    self._events.append(effect)
