"""The link manager's records: connections, their peers, and how they end.

This is the base of `link_manager.LinkManager`. A connection is in `_connections` under its number
from start to end. A link that is up is in the dialer as well, under its key. However a connection
ends, `_down` removes it everywhere and reports it.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sealring_protocol.codec.messages import Progress
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.control.epoch.deadlines import earliest
from sealring_protocol.diagnosis.notes import Notes
from sealring_protocol.diagnosis.peers import (
    NO_FAULT,
    ROSTER_CHANGED,
    MetItself,
    PeerBook,
    PeerClosed,
    PeerState,
)
from sealring_protocol.diagnosis.refusal_log import RefusalLog
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    LocalProtocolError,
    PeerTimeout,
    SealringError,
)
from sealring_protocol.events import Dial, Hangup, NodeEvent
from sealring_protocol.limits import LONGEST_PATIENCE, PING_TIMEOUT
from sealring_protocol.link import Link
from sealring_protocol.link_events import LinkEvent
from sealring_protocol.links.connections import Connection
from sealring_protocol.links.dialer import Dialer, Key
from sealring_protocol.links.keepalive import Patience
from sealring_protocol.links.news import LinkDown, News
from sealring_protocol.links.roster_in_force import CurrentRoster
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import HandshakeConfig, InitForAnother
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member

DUPLICATE: Final = "there is such a link already"


class LinkBook(abc.ABC):
    """The links of the node with *config*. Times are monotonic seconds from the caller."""

    def __init__(self, config: HandshakeConfig, now: float, patience: float = PING_TIMEOUT) -> None:
        """*patience* is the least number of seconds that a peer may be silent."""
        self.current_roster = CurrentRoster(config)
        self.accept_steps = False
        """True while step links may come in: an engine is up to receive their keys."""
        self.closed = False
        """True once the node is stopping: it dials and accepts no more."""
        self.events: deque[NodeEvent] = deque()
        self.notes = Notes()
        """Limits how often a note is repeated, before it becomes an event."""
        self._dialer = Dialer(config.node_id)
        self._admission = Admission(now)
        self._connections: dict[int, Connection] = {}
        self._held: dict[Key, int] = {}
        self.refusals = RefusalLog()
        self._book = PeerBook()
        self._numbers = 0
        self.news: deque[News] = deque()
        """The news for the node, in order."""
        self._flush: set[int] = set()
        self._due: float | None = None  # lower bound of the next timeout
        self._due_is_known = False
        self._progress = Progress()
        self._least_patience = patience
        self._patience: dict[bytes, Patience] = {}
        self._silent: dict[bytes, tuple[int, float]] = {}  # lost instance, and when last heard
        self._expect_members()

    # -------------------------------------------------------------- looking

    @property
    def config(self) -> HandshakeConfig:
        """The configuration of this node's handshakes, with the roster in force."""
        return self.current_roster.config

    @property
    def rank(self) -> int:
        """This node's rank."""
        return self.config.roster.roster.rank(self.config.node_id)

    def member(self, rank: int) -> Member:
        """The member of *rank*."""
        return self.config.roster.roster.members[rank]

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """Every established link: the peer's rank, the purpose, and the link."""
        return [
            (self._rank(connection.key), connection.key[1], connection.link)
            for connection in self._connections.values()
            if connection.up and connection.key is not None and connection.link is not None
        ]

    def peers(self) -> list[PeerState]:
        """The state of every other member, by rank."""
        return self._book.survey(self.config.roster.roster, self.config.node_id, self._dialer)

    def links_to_flush(self) -> set[int]:
        """The connections that have new data to send since the last call."""
        flush, self._flush = self._flush, set()
        return flush

    def data_to_send(self, number: int) -> bytes | bytearray:
        """Take all bytes that wait to be sent on connection *number*."""
        connection = self._connections.get(number)
        if connection is None or connection.driven is None:
            return b""
        return connection.driven.data_to_send()

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all.

        The time may be too early. It is asked for after every message, and a message mostly
        postpones its link's deadline, which is not tracked.
        """
        if self._due_is_known:
            return self._due
        self._due_is_known = True
        dial = None if self.closed else self._dialer.next_timeout()
        links = [link.next_timeout() for c in self._connections.values() if (link := c.driven)]
        self._due = earliest(dial, self.refusals.next_timeout(), *links)
        return self._due

    # --------------------------------------------------- beginnings and ends

    def _rank(self, key: Key) -> int:
        return self.config.roster.roster.rank(key[0])

    def _find(self, rank: int, purpose: Purpose) -> Connection | None:
        contact = self._dialer.get((self.member(rank).id, purpose))
        return None if contact is None else self._connections.get(contact.link)

    def _with(self, number: int, now: float, action: Callable[[Link], None]) -> None:
        connection = self._connections.get(number)
        link = None if connection is None else connection.driven
        if connection is not None and link is not None:
            self._do(connection, link, now, partial(action, link))

    def _do(
        self, connection: Connection, link: Link, now: float, action: Callable[[], None]
    ) -> None:
        """Run *action* on the *link* of *connection*, which is not lent, then handle its events."""
        try:
            action()
            while (event := link.next_event()) is not None:
                self._on(connection, event, now)
                if connection.number not in self._connections or connection.lent:
                    return
        except SealringError as error:
            self._down(connection, error, now)
            return
        if link.has_data_to_send:
            self._flush.add(connection.number)
        due = link.next_timeout()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

    @abc.abstractmethod
    def _on(self, connection: Connection, event: LinkEvent, now: float) -> None:
        """The link of *connection* gave *event*."""

    def _refuse(self, connection: Connection, code: CloseCode, reason: str, now: float) -> None:
        if connection.link is not None:
            connection.link.refuse(code, reason)
        self._down(connection, LocalProtocolError(reason), now, code)

    def _shut(self, connection: Connection, code: CloseCode, reason: str, now: float) -> None:
        if connection.driven is not None and connection.driven.verified:
            connection.driven.close(code, reason)
        self._down(connection, LocalProtocolError(reason), now, code)

    def _down(
        self, connection: Connection, error: SealringError, now: float, code: int | None = None
    ) -> None:
        """Remove a connection, hang it up, and report it. *code* is the close code, if known."""
        if self._connections.pop(connection.number, None) is None:
            return
        self._due_is_known = False
        if connection.lent:
            said = code if isinstance(code, CloseCode) else CloseCode.SHUTDOWN
            self.events.append(Hangup(connection.number, b"", said, str(error)))
        else:
            last = connection.link.data_to_send() if connection.link is not None else b""
            self.events.append(Hangup(connection.number, bytes(last)))
        self._flush.discard(connection.number)
        self._release_admission(connection)
        key = connection.key
        if key is not None and key[0] in self.config.roster.roster and not self.closed:
            contact = self._dialer.get(key) if connection.up else None
            since = None if contact is None else contact.since
            if contact is not None and isinstance(error, PeerTimeout) and connection.link:
                self._silent[key[0]] = contact.instance, connection.link.keepalive.heard_at
            self._book.ended((*key, connection.dialed), error, code, now, since)
        told = key is not None and self._forget(connection, key, now)
        if key is not None and connection.link is not None and connection.link.put_out:
            outs = self._book.put_out(key[0], self.config.roster.roster, self._dialer, now)
            self._say(outs, now)
        if key is None or key[0] not in self.config.roster.roster:
            if connection.source:
                self._say(self._turned_away(connection.source, error, now), now)
        elif told:
            level = Level.WARNING
            if isinstance(error, PeerClosed) and error.reason == ROSTER_CHANGED:
                level = Level.INFO
            elif self._book.again((*key, connection.dialed)):
                level = Level.DEBUG
            self.news.append(LinkDown(self._rank(key), key[1], str(error), level))
        elif not connection.up:
            text = (
                f"no {key[1].name.lower()} link with {self.member(self._rank(key)).name}: {error}"
            )
            known = code in NO_FAULT or self._book.again((*key, connection.dialed))
            self._say([Note(Level.DEBUG if known else Level.WARNING, text)], now)

    def _say(self, notes: Iterable[Note], now: float) -> None:
        self.events.extend(self.notes.told(note, now) for note in notes)

    def _turned_away(self, source: str, error: SealringError, now: float) -> list[Note]:
        """The notes about a connection from *source* that ended with *error* before it was a
        link."""
        if isinstance(error, InitForAnother) and (own := self._dial_with(error.tag)) is not None:
            self._down(own, MetItself(), now)
            return []
        if isinstance(error, ConnectionLost):  # not suspicious: members abandon dials, too
            return [Note(Level.DEBUG, f"a connection from {source} is over: {error}")]
        return self.refusals.refused(source, error, now)

    def _dial_with(self, tag: bytes) -> Connection | None:
        """The dial of this node whose INIT has *tag*."""
        for connection in self._connections.values():
            if connection.link is not None and connection.link.sent(tag):
                return connection
        return None

    def _forget(self, connection: Connection, key: Key, now: float) -> bool:
        """Remove a connection from the records. True if it was the link of its key."""
        if connection.up:
            return self._dialer.lost(key, connection.number, now)
        if self._held.get(key) == connection.number:
            del self._held[key]
        if connection.dialed:
            self._dial_ended(key, now)
        return False

    def _release_admission(self, connection: Connection) -> None:
        """An incoming connection is over, or its peer is authenticated: free its place."""
        self._admission.settled(connection.number)

    def _learn_patience(
        self, peer: bytes, instance: int, link: Link, now: float, *, lent: bool
    ) -> None:
        """*link* with the process *instance* of *peer* came up. If that process was taken for lost,
        it had only paused, and patience grows. A *lent* link gets a copy that it shares with no
        other link."""
        patience = self._patience.setdefault(peer, Patience(self._least_patience))
        life, heard_at = self._silent.pop(peer, (0, 0.0))
        if life == instance and now - heard_at <= LONGEST_PATIENCE:
            patience.paused(now - heard_at, now)
        link.keepalive.patience = patience.copy() if lent else patience

    def _expect_members(self) -> None:
        """Tell the admission the other members' addresses."""
        others = [m for m in self.config.roster.roster.members if m.id != self.config.node_id]
        hosts = [address.rpartition(":")[0] for m in others for address in m.addresses]
        self._admission.expect(host.strip("[]") for host in hosts)

    def _dial_ended(self, key: Key, now: float) -> None:
        self._due_is_known = False
        self._dialer.dial_ended(key, now)
        self._release(key, now)

    def _release(self, key: Key, now: float) -> None:
        """This node's dial of *key* is over: answer the peer's dial that was held for it."""
        held = self._connections.get(self._held.pop(key, 0))
        if held is None:
            return
        if self._dialer.get(key) is not None:
            self._refuse(held, CloseCode.DUPLICATE_LINK, DUPLICATE, now)
        else:
            self._with(held.number, now, lambda link: link.admit(now))

    def _dial_due(self, now: float) -> None:
        self._due_is_known = False
        for key, turn in [] if self.closed else self._dialer.due(now):
            member = self.config.roster.roster.member(key[0])
            if member is None or not member.addresses:
                self._dialer.dial_ended(key, now)  # a newer roster may bring an address
                continue
            self._numbers += 1
            address = member.addresses[turn % len(member.addresses)]
            dialed = Connection(self._numbers, "", key, address=address)
            self._connections[self._numbers] = dialed
            self._book.dialing(*key, address)
            self.events.append(Dial(self._numbers, address, member.name))
