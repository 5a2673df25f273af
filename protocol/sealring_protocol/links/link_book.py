"""What the link manager knows of its links: connections, whom they are with, how they end.

This is the half of `link_manager.LinkManager` that keeps the books. A connection stands in
`_connections` by its number from its first moment to its last; a link that is up stands in the
the dialer too, by its key. Whatever way a connection ends, `_down` takes it out of every book and
tells whom it concerns.
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
from sealring_protocol.diagnosis.peers import NO_FAULT, PeerBook, PeerState
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
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member

DUPLICATE: Final = "there is such a link already"


class LinkBook(abc.ABC):
    """The links of the node with *config*. Times are the caller's monotonic seconds."""

    def __init__(self, config: HandshakeConfig, now: float, patience: float = PING_TIMEOUT) -> None:
        """*patience* is the least number of seconds that a peer may be silent."""
        self.current_roster = CurrentRoster(config)
        self.accept_steps = False
        """Whether step links may come in: there must be an engine to hand their keys to."""
        self.closed = False
        """The node is stopping: nothing is dialed or accepted any more."""
        self.events: deque[NodeEvent] = deque()
        self.notes = Notes()
        """What is said too often is bounded here before it is an event."""
        self._dialer = Dialer(config.node_id)
        self._admission = Admission(now)
        self._connections: dict[int, Connection] = {}
        self._held: dict[Key, int] = {}
        self.refusals = RefusalLog()
        self._book = PeerBook()
        self._numbers = 0
        self.news: deque[News] = deque()
        """What the node must know, in order."""
        self._flush: set[int] = set()
        self._due: float | None = None  # no later than when `handle_timeout` has something to do
        self._due_is_known = False
        self._progress = Progress()
        self._least_patience = patience
        self._patience: dict[bytes, Patience] = {}
        self._silent: dict[bytes, tuple[int, float]] = {}  # the life that was lost, last heard when
        self._expect_members()

    # -------------------------------------------------------------- looking

    @property
    def config(self) -> HandshakeConfig:
        """What this node brings to a handshake now, with the roster in force."""
        return self.current_roster.config

    @property
    def rank(self) -> int:
        """This node's rank."""
        return self.config.roster.roster.rank(self.config.node_id)

    def member(self, rank: int) -> Member:
        """The member of *rank*."""
        return self.config.roster.roster.members[rank]

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """Rank of the peer, purpose and link, of every established link."""
        return [
            (self._rank(connection.key), connection.key[1], connection.link)
            for connection in self._connections.values()
            if connection.up and connection.key is not None and connection.link is not None
        ]

    def peers(self) -> list[PeerState]:
        """How it stands with every other member, by rank."""
        return self._book.survey(self.config.roster.roster, self.config.node_id, self._dialer)

    def links_to_flush(self) -> set[int]:
        """The connections that have something to send since the last call."""
        flush, self._flush = self._flush, set()
        return flush

    def data_to_send(self, number: int) -> bytes | bytearray:
        """All that waits to be sent on connection *number*."""
        connection = self._connections.get(number)
        if connection is None or connection.driven is None:
            return b""
        return connection.driven.data_to_send()

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called; at times too early, for it is asked after every
        message: what comes on a link that is up mostly puts off its deadline, and is not followed.
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
        """Do *action* with the *link* of *connection*, which is not lent, then deal with what comes
        of it."""
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
        """*event* came out of a link."""

    def _refuse(self, connection: Connection, code: CloseCode, reason: str, now: float) -> None:
        if connection.link is not None:
            connection.link.refuse(code, reason)
        self._down(connection, LocalProtocolError(reason), now, code)

    def _shut(self, connection: Connection, code: CloseCode, reason: str, now: float) -> None:
        if connection.driven is not None and connection.up:
            connection.driven.close(code, reason)
        self._down(connection, LocalProtocolError(reason), now, code)

    def _down(
        self, connection: Connection, error: SealringError, now: float, code: int | None = None
    ) -> None:
        """Forget a connection, hang it up, and tell whom it concerns; *code*: why, if known."""
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
            self.news.append(LinkDown(self._rank(key), key[1], str(error)))
        elif not connection.up:
            text = (
                f"no {key[1].name.lower()} link with {self.member(self._rank(key)).name}: {error}"
            )
            known = code in NO_FAULT or self._book.again((*key, connection.dialed))
            self._say([Note(Level.DEBUG if known else Level.WARNING, text)], now)

    def _say(self, notes: Iterable[Note], now: float) -> None:
        self.events.extend(self.notes.told(note, now) for note in notes)

    def _turned_away(self, source: str, error: SealringError, now: float) -> list[Note]:
        """What to say of a connection from *source* that got no further than *error*."""
        if isinstance(error, ConnectionLost):  # its own end: members give up dials, too
            return [Note(Level.DEBUG, f"a connection from {source} is over: {error}")]
        return self.refusals.refused(source, error, now)

    def _forget(self, connection: Connection, key: Key, now: float) -> bool:
        """Take a connection out of the books. True if it was the link of its key."""
        if connection.up:
            return self._dialer.lost(key, connection.number, now)
        if self._held.get(key) == connection.number:
            del self._held[key]
        if connection.dialed:
            self._dial_ended(key, now)
        return False

    def _release_admission(self, connection: Connection) -> None:
        """An incoming connection is over, or its peer has proved who it is."""
        self._admission.settled(connection.number)

    def _learn_patience(
        self, peer: bytes, instance: int, link: Link, now: float, *, lent: bool
    ) -> None:
        """*link* with the life *instance* of *peer* came up. A life taken for lost has only
        paused. What is *lent* shares nothing with other links."""
        patience = self._patience.setdefault(peer, Patience(self._least_patience))
        life, heard_at = self._silent.pop(peer, (0, 0.0))
        if life == instance and now - heard_at <= LONGEST_PATIENCE:
            patience.paused(now - heard_at, now)
        link.keepalive.patience = patience.copy() if lent else patience

    def _expect_members(self) -> None:
        """Let the other members' addresses be known to the admission."""
        others = [m for m in self.config.roster.roster.members if m.id != self.config.node_id]
        hosts = [address.rpartition(":")[0] for m in others for address in m.addresses]
        self._admission.expect(host.strip("[]") for host in hosts)

    def _dial_ended(self, key: Key, now: float) -> None:
        self._due_is_known = False
        self._dialer.dial_ended(key, now)
        self._release(key, now)

    def _release(self, key: Key, now: float) -> None:
        """An own dial has come to its end: answer the peer's, which was held for it."""
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
