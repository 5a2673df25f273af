"""The links of one node: dialing, accepting, choosing between crossing dials, and receiving.

It turns connections, which are numbers with bytes, into links, which have a rank, a purpose and
messages. `news` is for the node: links that came up and went down, messages, and a newer roster in
force. `events` are for the caller to carry out.

Unknown connection numbers are ignored: their connections are gone, and bytes or ends of streams may
cross a hang-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import HopKey
from sealring_protocol.codec.messages import Addresses, Message, Progress
from sealring_protocol.control.deadlines import earliest
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    PeerTimeout,
    RemoteProtocolError,
    SealringError,
)
from sealring_protocol.events import (
    Dial,
    Hangup,
    LinkUp,
    NodeEvent,
    Requested,
    RosterInForce,
    StoreRoster,
)
from sealring_protocol.limits import LONGEST_PATIENCE, PING_TIMEOUT
from sealring_protocol.link import (
    EncapsulationRequested,
    Hop,
    Link,
    LinkClosed,
    LinkEvent,
    LinkOpened,
    Patience,
    PeerProved,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.links.addresses import AddressBook
from sealring_protocol.links.current_roster import Arrival, CurrentRoster, supersedes
from sealring_protocol.links.dialer import Dialer, Key, LiveLink, Verdict
from sealring_protocol.links.logs import Notes, RefusalLog
from sealring_protocol.links.peers import (
    NO_FAULT,
    NO_MEMBER,
    ROSTER_CHANGED,
    SAME_KEY,
    Fault,
    MetItself,
    PeerBook,
    PeerClosed,
    PeerState,
)
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import HandshakeConfig, InitForAnother
from sealring_protocol.security.mandate import Certificate, Mandate
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import (
    Member,
    Rights,
    Roster,
    SignedRoster,
)
from sealring_protocol.words import RING_CHANGED


@attrs.frozen
class OfLink:
    """What concerns the link with *purpose* to *rank*, which is or was up."""

    rank: int
    purpose: Purpose


@attrs.frozen
class CameUp(OfLink):
    """The link with *purpose* to *rank* is up, as *event* says. *hop* has its activation
    secrets."""

    event: LinkUp
    hop: Hop


@attrs.frozen
class LinkDown(OfLink):
    """The link with *purpose* to *rank* is gone, for *reason*. *level* is how to log that: INFO if
    the peer has taken a newer roster, and DEBUG if it is as the last time."""

    reason: str
    level: Level = Level.WARNING


@attrs.frozen
class MessageReceived(OfLink):
    """*rank* sent *message* on the link with *purpose*."""

    message: Message


@attrs.frozen
class Unreachable:
    """A wanted link with *purpose* to *rank* could not be dialed, for the reason *why*."""

    rank: int
    purpose: Purpose
    why: str


@attrs.frozen
class RivalMandate:
    """A peer brought *mandate*, of the roster in force, which this node does not obey."""

    mandate: Mandate


News = CameUp | LinkDown | MessageReceived | RosterInForce | Unreachable | RivalMandate


def hop_keys(up: CameUp, own: int, ring: tuple[int, ...], cluster: bytes) -> Iterator[HopKey]:
    """The activation secrets of the step link *up*, for the engine of rank *own* of *ring*, the
    ranks in their order; none for a witness, which is not in it. Keep no other copy."""
    if own not in ring:
        return
    place = ring.index(own)
    if up.rank == ring[(place + 1) % len(ring)]:
        yield HopKey(True, up.hop.suite, cluster, up.hop.send)
    if up.rank == ring[place - 1]:
        yield HopKey(False, up.hop.suite, cluster, up.hop.receive)


class HeadFirst(LocalProtocolError):
    """The roster makes another member the head, and the present head is to have it first."""


@attrs.define(eq=False)
class Connection:
    """One connection, by its *number*, from its start on, with its link."""

    number: int
    source: str  # where an incoming connection came from
    key: Key | None  # known for this node's dials, else once the peer is authenticated
    link: Link | None = None  # None until a dial is connected
    driven: Link | None = None  # the link, unless that is lent
    up: bool = False
    lent: bool = False  # a tunnel that is up: its owner drives the link
    address: str = ""  # the address dialed
    began: float = 0.0  # when it was dialed
    took: float = 0.0  # the seconds until it was open
    proved: bool = False  # the peer proved itself at the address dialed
    probe: bool = False  # only of the address

    @property
    def dialed(self) -> bool:
        """True if this node dialed it."""
        return not self.source


DUPLICATE: Final = "there is such a link already"


_OTHER_ROSTER: Final = "another roster has come into force meanwhile"
FINISHING: Final = "the head lets its requests finish before this roster is in force"
"""Why the head, which keeps a roster that makes another the head, ends the link that brought it."""
RIVAL: Final = "this node obeys another head"
HEAD_FIRST: Final = "the head is to have this roster first, for it makes another member the head"


def _decides(of: Roster) -> tuple[bool, bool, list[tuple[bytes, Rights]]]:
    """What of a roster decides what its members do."""
    members = [(member.id, member.rights) for member in of.members]
    return of.inner_seal, of.tensor_parallelism, members


class LinkManager:
    """All links of the node with *config*. Times are monotonic seconds from the caller.

    A connection is in `_connections` under its number from start to end. A link that is up is in
    the dialer as well, under its key. However a connection ends, `_down` removes it everywhere and
    reports it.
    """

    def __init__(
        self,
        config: HandshakeConfig,
        now: float,
        patience: float = PING_TIMEOUT,
        listens: tuple[str, int] | None = None,
        *,
        relays: bool = False,
    ) -> None:
        """*patience* is the least number of seconds that a peer may be silent. This node *listens*
        at a host and a port, and tells its peers so; *relays* as `NodeConfig` has it."""
        self.current_roster = CurrentRoster(config)
        self.accept_steps = False
        """True while step links may come in: an engine is up to receive their keys."""
        self.obeys: Callable[[Roster, float], bool] = lambda roster, now: True
        """Whether this node takes the mandate of a roster that a peer brings, now."""
        self.meeting = False
        """True while this node, a follower, wants a CONTROL link with every member."""
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
        self._addresses = AddressBook(config.roster.roster, config.node_id, listens)
        self._numbers = 0
        self.news: deque[News] = deque()
        """The news for the node, in order."""
        self.to_flush: set[int] = set()
        """The connections that have new data to send. To be replaced by who takes them."""
        self._due: float | None = None  # lower bound of the next timeout
        self._due_is_known = False
        self._progress = Progress()
        self._least_patience, self._relays = patience, relays
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
        return self.current_roster.config.roster.roster.members[rank]

    def no_relay(self, rank: int) -> str:
        """Why there is no API link with *rank*; empty if there may be one."""
        own = self.rank
        if min(own, rank) != 0:
            return "only the head answers requests of other members"
        if not self._relays:
            return "this node passes no requests on, and answers none that others pass on"
        member = self.member(max(own, rank))
        return "" if member.sees_texts else f"the roster lets {member.name} see no texts"

    def links(self) -> list[tuple[int, Purpose, Link]]:
        """Every established link: the peer's rank, the purpose, and the link."""
        return [
            (self._rank(connection.key), connection.key[1], connection.link)
            for connection in self._connections.values()
            if connection.up and connection.key is not None and connection.link is not None
        ]

    def peers(self) -> list[PeerState]:
        """The state of every other member, by rank."""
        roster, own = self.config.roster.roster, self.config.node_id
        return self._book.survey(roster, own, self._dialer, self._addresses)

    def data_to_send(self, number: int) -> bytes | bytearray:
        """Take all bytes that wait to be sent on connection *number*."""
        connection = self._connections.get(number)
        if connection is None or (link := connection.driven) is None:
            return b""
        return link.data_to_send()

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
        probes = [] if self.closed else map(self._addresses.next_probe, self._linked())
        self._due = earliest(dial, self.refusals.next_timeout(), *links, *probes)
        return self._due

    def _linked(self) -> dict[bytes, None]:
        """The members with which this node has a link."""
        return dict.fromkeys([peer for peer, _ in self._dialer.up])

    # --------------------------------------------------- beginnings and ends

    def _rank(self, key: Key) -> int:
        return self.current_roster.config.roster.roster.ranks[key[0]]

    def _find(self, rank: int, purpose: Purpose) -> Connection | None:
        members = self.current_roster.config.roster.roster.members
        contact = self._dialer.up.get((members[rank].id, purpose))
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
            self.to_flush.add(connection.number)
        due = link.next_timeout()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

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
        self.to_flush.discard(connection.number)
        self._release_admission(connection)
        key = connection.key
        self._failed(connection, error, now)
        recorded = connection.up or not connection.probe
        if key is not None and key[0] in self.config.roster.roster and recorded and not self.closed:
            contact = self._dialer.up.get(key) if connection.up else None
            since = None if contact is None else contact.since
            if contact is not None and isinstance(error, PeerTimeout) and connection.link:
                self._silent[key[0]] = contact.instance, connection.link.keepalive.heard_at
            self._book.ended((*key, connection.dialed), error, code, now, since)
        was_up = key is not None and self._forget(connection, key, now, code)
        if key is not None and connection.link is not None and connection.link.put_out:
            outs = self._book.put_out(key[0], self.config.roster.roster, self._dialer, now)
            self._say(outs, now)
        if key is None or key[0] not in self.config.roster.roster:
            if connection.source:
                self._say(self._turned_away(connection.source, error, now), now)
        elif was_up:
            level = Level.WARNING
            if isinstance(error, PeerClosed) and error.reason in (ROSTER_CHANGED, RING_CHANGED):
                level = Level.INFO
            elif self._book.again((*key, connection.dialed)):
                level = Level.DEBUG
            self.news.append(LinkDown(self._rank(key), key[1], str(error), level))
        elif not connection.up:
            text = (
                f"no {key[1].name.lower()} link with {self.member(self._rank(key)).name}: {error}"
            )
            known = connection.probe or code in NO_FAULT or key[1] is Purpose.API
            known = known or self._book.again((*key, connection.dialed))
            self._say([Note(Level.DEBUG if known else Level.WARNING, text)], now)

    def _failed(self, connection: Connection, error: SealringError, now: float) -> None:
        """If it was dialed, nobody proved itself at the address, because of *error*."""
        if connection.dialed and not connection.proved and isinstance(error, RemoteProtocolError):
            self._dead(connection, str(error), now)  # else this end gave it up

    def _dead(self, connection: Connection, why: str, now: float) -> None:
        """The peer did not prove itself at the address that this node dialed."""
        if connection.key is not None:
            peer, linked = connection.key[0], connection.key[0] in self._linked()
            notes = self._addresses.failed(peer, connection.address, why, now, linked=linked)
            self._say(notes, now)

    def _proved(self, connection: Connection, peer: bytes, now: float) -> None:
        """*peer* proved itself at the address that this node dialed."""
        connection.proved = True
        notes = self._addresses.answered(peer, connection.address, connection.took, now)
        self._say(notes, now)
        for rank, message in self._addresses.to_pass_on(peer):
            self.send(rank, Purpose.CONTROL, message, now)

    def _say(self, notes: Iterable[Note], now: float) -> None:
        self.events.extend(self.notes.limited(note, now) for note in notes)

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

    def _forget(self, connection: Connection, key: Key, now: float, code: int | None) -> bool:
        """Remove a connection, closed with *code*, from the records. True if it was the link of its
        key."""
        if connection.up:
            was_up = self._dialer.lost(key, connection.number, now)
            if was_up and code == CloseCode.VERSION_MISMATCH:
                self._dialer.refused(key, now)
            return was_up
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
        if self._dialer.up.get(key) is not None:
            self._refuse(held, CloseCode.DUPLICATE_LINK, DUPLICATE, now)
        else:
            self._with(held.number, now, lambda link: link.admit(now))

    def _dial_due(self, now: float) -> None:
        self._due_is_known = False
        for key, probe in [] if self.closed else self._dialer.due(now):
            member = self.config.roster.roster.member(key[0])
            find = self._addresses.most_due if probe else self._addresses.best
            address = find(key[0])
            if member is None or address is None:
                self._dialer.dial_ended(key, now)  # one may be learnt
                continue
            self._numbers += 1
            dialed = Connection(self._numbers, "", key, address=address, began=now, probe=probe)
            self._connections[self._numbers] = dialed
            self._addresses.dialed(key[0], address, now)
            if not probe:
                self._book.dialing(*key, address)
            self.events.append(Dial(self._numbers, address, member.name))

    # ---------------------------------------------------------------- orders

    def address_heard(self, node_id: bytes, host: str, port: int, now: float) -> None:
        """See `Node.address_heard`."""
        self._addresses.heard(node_id, host, port, now)

    def want(self, rank: int, purpose: Purpose, now: float, *, yields: bool = False) -> None:
        """Keep a link up from now on. If this end *yields*, it dials a moment later than the
        other."""
        self._dialer.want((self.member(rank).id, purpose), now, yields=yields)
        self._dial_due(now)

    def unwant(self, *purposes: Purpose, rank: int | None = None) -> None:
        """Stop dialing links of *purposes*: with *rank* alone, if it is given."""
        peer = None if rank is None else self.member(rank).id
        self._dialer.forget_all(set(purposes), peer)

    def meet(self, now: float) -> None:
        """This node, a follower, wants a CONTROL link with every member from now on."""
        self.meeting = True
        for member in self.config.roster.roster.members[1:]:  # the head's is wanted already
            if member.id != self.config.node_id:
                self._dialer.want((member.id, Purpose.CONTROL), now)
        self._dial_due(now)

    def part(self, now: float) -> None:
        """This node wants no CONTROL links but those that go with its rank. Those with other
        followers that it dialed end; the rest are for their other ends to let go."""
        self.meeting = False
        if self.rank == 0:
            return
        for member in self.config.roster.roster.members[1:]:
            self._dialer.let_go((member.id, Purpose.CONTROL))
        for rank, purpose, _ in self.links():
            connection = self._find(rank, purpose)
            greets = purpose is Purpose.CONTROL and rank
            if greets and connection is not None and connection.dialed:
                self._shut(connection, CloseCode.SHUTDOWN, "there is a head", now)

    def greet(self, now: float) -> None:
        """Exchange rosters with every member once, so that the newer one spreads."""
        for member in self.config.roster.roster.members:
            if member.id != self.config.node_id and member.addresses:
                self._dialer.greet((member.id, Purpose.CONTROL), now)
        self._dial_due(now)

    def send(self, rank: int, purpose: Purpose, message: Message, now: float) -> None:
        """Send *message* if the link is up. If it is not, `news` has said so."""
        connection = self._find(rank, purpose)
        if connection is None or (link := connection.driven) is None:
            return
        try:
            link.send(message)  # which brings no event, and no deadline nearer
        except SealringError as error:
            self._down(connection, error, now)
        else:
            self.to_flush.add(connection.number)

    def shut(self, rank: int, purpose: Purpose, code: CloseCode, reason: str, now: float) -> None:
        """Close a link with *code* and *reason*."""
        connection = self._find(rank, purpose)
        if connection is not None:
            self._shut(connection, code, reason, now)

    def fail(self, rank: int, purpose: Purpose, error: RemoteProtocolError, now: float) -> None:
        """Close a link because of the peer's *error* on it."""
        connection = self._find(rank, purpose)
        if connection is not None and connection.link is not None:
            connection.link.fail(error)
            self._down(connection, error, now)

    def shut_all(self, purposes: set[Purpose], reason: str, now: float) -> None:
        """Close every link of *purposes*, and abandon the handshakes for them."""
        for connection in list(self._connections.values()):
            if connection.key is not None and connection.key[1] in purposes:
                self._shut(connection, CloseCode.SHUTDOWN, reason, now)

    def close(self, reason: str, now: float) -> None:
        """Close every link, abandon every handshake, and dial and accept no more."""
        self.closed = True
        self.unwant(*Purpose)
        for connection in list(self._connections.values()):
            self._shut(connection, CloseCode.SHUTDOWN, reason, now)

    def set_progress(self, progress: Progress) -> None:
        """Set the *progress* that PINGs and PONGs report from now on."""
        self._progress = progress
        for connection in self._connections.values():
            if connection.driven is not None:
                connection.driven.keepalive.progress = progress

    # ----------------------------------------------------------- connections

    def accepted(self, source: str, entropy: bytes, now: float, wall_ms: int) -> int:
        """A connection came in from the address *source*. Returns its number."""
        self._numbers += 1
        number = self._numbers
        if self.closed:
            self.events.append(Hangup(number, b""))
            return number
        loser = self._admission.opened(number, source)
        if loser is not None:
            self._down(self._connections[loser], LimitExceeded("newer ones needed its place"), now)
        link = Link.accept(self.config, self._admission, source, now, wall_ms, entropy)
        link.keepalive.progress = self._progress
        self._connections[number] = Connection(number, source, None, link, link)
        self._due_is_known = False
        return number

    def connected(self, number: int, entropy: bytes, now: float, wall_ms: int) -> None:
        """The connection of a `Dial` is open."""
        connection = self._connections.get(number)
        if connection is None or connection.key is None:
            self.events.append(Hangup(number, b""))  # given up while it was being dialed
            return
        connection.took = now - connection.began
        peer, purpose = connection.key
        connection.link = connection.driven = Link.dial(
            self.config, peer, purpose, now, wall_ms, entropy
        )
        connection.link.keepalive.progress = self._progress
        self._with(number, now, lambda link: None)

    def dial_failed(self, number: int, reason: str, now: float) -> None:
        """The connection of a `Dial` could not be opened."""
        connection = self._connections.pop(number, None)
        if connection is not None and connection.key is not None:
            self._dead(connection, reason, now)
            name = self.member(self._rank(connection.key)).name
            self._say([Note(Level.DEBUG, f"cannot reach {name}: {reason}")], now)
            if not connection.probe:
                self._book.failed((*connection.key, True), Fault.UNREACHABLE, reason, now)
                why = f"at {connection.address} ({reason})"
                self.news.append(Unreachable(self._rank(connection.key), connection.key[1], why))
            self._dial_ended(connection.key, now)

    def receive_data(self, number: int, data: bytes, now: float) -> None:
        """*data* came in on connection *number*."""
        connection = self._connections.get(number)
        if connection is not None and (link := connection.driven) is not None:
            self._do(connection, link, now, partial(link.receive_data, data, now))

    def receive_eof(self, number: int, now: float) -> None:
        """The stream of connection *number* ended."""
        connection = self._connections.get(number)
        if connection is None:
            return
        if connection.link is None:
            self.dial_failed(number, "the connection ended", now)
            return
        self._with(number, now, lambda link: link.receive_eof())

    def link_over(self, number: int, end: SealringError | LinkClosed, now: float) -> None:
        """The lent link of connection *number* is over: it raised *end*, or its peer closed it."""
        connection = self._connections.get(number)
        if connection is None:
            return
        if isinstance(end, LinkClosed):
            self._closed(connection, end.code, end.reason, now)
        else:
            self._down(connection, end, now)

    def provide_signature(self, number: int, signature: bytes, now: float) -> None:
        """The answer to `SignatureRequested`."""
        self._with(number, now, lambda link: link.provide_signature(signature, now))

    def provide_encapsulation(
        self, number: int, ciphertext: bytes, secret: bytes, now: float
    ) -> None:
        """The answer to `EncapsulationRequested`."""
        self._with(number, now, lambda link: link.provide_encapsulation(ciphertext, secret, now))

    def bring_roster(self, data: bytes, now: float, wall_ms: int) -> None:
        """See `Node.bring_roster`."""
        current = self.current_roster
        roster = self.obeyed(current.checked(data, wall_ms), now)
        if roster is None:
            raise LocalProtocolError(RIVAL)
        if self.head_first(roster.roster):
            raise HeadFirst(HEAD_FIRST)
        self.events.append(StoreRoster(0, current.brought(roster)))

    def elected(self, certificate: Certificate, now: float) -> None:
        """The members have voted as *certificate* says, whose votes are verified: `StoreRoster`
        follows, with link 0. Nothing does if this election is over, or another roster with the same
        serial is being stored."""
        before, roster = self.config.roster.roster, self.config.roster.elected(certificate)
        if self.current_roster.overtakes(roster):
            self._adopted(before, now)
        elif self.current_roster.came(0, roster) is Arrival.TO_STORE:
            self.events.append(StoreRoster(0, roster.encode()))

    def roster_stored(self, number: int, now: float) -> None:
        """The successful answer to `StoreRoster`: the roster is in force."""
        before = self.config.roster.roster
        if self.current_roster.stored(number):
            self._adopted(before, now)
            self._with(number, now, lambda link: link.roster_stored(now))

    def roster_not_stored(self, number: int, now: float) -> None:
        """The failed answer to `StoreRoster`: the roster is dropped."""
        if self.current_roster.not_stored(number):
            error = LocalProtocolError("the newer roster could not be stored")
            self._with(number, now, lambda link: link.fail(error))  # the peer gets it, too

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        for connection in list(self._connections.values()):
            if connection.driven is not None:
                deadline = connection.driven.next_timeout()
                if deadline is not None and now >= deadline:
                    self._with(connection.number, now, lambda link: link.handle_timeout(now))
        self._say(self.refusals.handle_timeout(now), now)
        for peer in [] if self.closed else self._linked():
            due = self._addresses.next_probe(peer)
            if due is not None and now >= due:
                self._addresses.probed(peer, now)
                self._dialer.probe((peer, Purpose.CONTROL), now)
        self._dial_due(now)

    # ------------------------------------------------------------- internals

    def _on(self, connection: Connection, event: LinkEvent, now: float) -> None:
        number = connection.number
        match event:
            case SignatureRequested():
                if connection.dialed and connection.key is not None:
                    self._dialer.dial_answered(connection.key)
                    self._proved(connection, connection.key[0], now)
                self.events.append(Requested(number, event))
            case EncapsulationRequested():
                self._admission.spoke(number)
                self.events.append(Requested(number, event))
            case RosterReceived(roster):
                self._release_admission(connection)
                self._roster_came(connection, roster, now)
            case PeerProved():
                self._judge(connection, event, now)
            case LinkOpened():
                self._established(connection, event, now)
            case LinkClosed(code, reason):
                self._closed(connection, code, reason, now)
            case Addresses():
                self._learn(connection, event, now)
            case _:
                if connection.key is not None:
                    rank, purpose = self._rank(connection.key), connection.key[1]
                    self.news.append(MessageReceived(rank, purpose, event))
                return
        self._due_is_known = False

    def _learn(self, connection: Connection, told: Addresses, now: float) -> None:
        """A peer says where it listens; or the head, where another member does."""
        if connection.key is None or connection.link is None:
            return
        seen = connection.source or connection.address.rpartition(":")[0].strip("[]")
        try:
            self._addresses.told(connection.key[0], seen, told, now)
        except RemoteProtocolError as error:
            connection.link.fail(error)
            raise

    def head_first(self, roster: Roster) -> bool:
        """True if *roster* makes another member the head, and the present one, which is linked and
        stays a member, is to have it first: it lets its requests finish. The members have it in any
        order if they have elected another."""
        head = self.member(0)
        other = roster.members[0].id != head.id and head.id in roster
        signed = roster.digest != self.config.roster.roster.digest
        return other and signed and self._dialer.up.get((head.id, Purpose.CONTROL)) is not None

    def obeyed(self, roster: SignedRoster, now: float) -> SignedRoster | None:
        """*roster* as this node takes it: without a mandate that it does not obey. None if nothing
        else in it would be new."""
        given, current = roster.roster, self.config.roster.roster
        if not supersedes(given, current) or self.obeys(given, now):
            return roster
        return None if given.digest == current.digest else roster.elected(None)

    def _roster_came(self, connection: Connection, roster: SignedRoster, now: float) -> None:
        """A peer brought a roster that was newer when its handshake began: store or refuse it."""
        obeyed = self.obeyed(roster, now)
        if obeyed is None:
            self.news.append(RivalMandate(roster.roster.mandate))
            self._shut(connection, CloseCode.NOT_READY, RIVAL, now)
            return
        disobeyed = obeyed is not roster
        roster, given, current = obeyed, obeyed.roster, self.config.roster.roster
        if not self.current_roster.is_in_force(roster) and self.head_first(given):
            self._shut(connection, CloseCode.NOT_READY, HEAD_FIRST, now)
            return
        hands_on = given.digest != current.digest and given.members[0].id != self.config.node_id
        match self.current_roster.came(connection.number, roster):
            case Arrival.TO_STORE:
                self.events.append(StoreRoster(connection.number, roster.encode()))
                if self.rank == 0 and hands_on:  # longer than a handshake may take
                    self._shut(connection, CloseCode.NOT_READY, FINISHING, now)
                elif disobeyed:
                    self._shut(connection, CloseCode.NOT_READY, RIVAL, now)
            case Arrival.STALE:
                self._shut(connection, CloseCode.NOT_READY, _OTHER_ROSTER, now)
            case Arrival.KNOWN:
                self._with(connection.number, now, lambda link: link.roster_stored(now))

    def _judge(self, connection: Connection, proved: PeerProved, now: float) -> None:
        """An incoming peer is authenticated: admit it, or refuse it with a reason."""
        key = (proved.peer, proved.purpose)
        connection.key = key
        if connection.source:
            self._release_admission(connection)
            if proved.peer in self.config.roster.roster:  # a newer roster may have removed it
                self._admission.proved(connection.source, proved.peer)
        if not self.current_roster.is_in_force(proved.roster):
            self._refuse(connection, CloseCode.NOT_READY, _OTHER_ROSTER, now)
            return
        verdict = self._dialer.judge(key, proved.instance)
        if proved.purpose is Purpose.STEP and not self.accept_steps:
            self._refuse(connection, CloseCode.NOT_READY, "the engine is not up yet", now)
        elif proved.purpose is Purpose.API and (why := self.no_relay(self._rank(key))):
            self._refuse(connection, CloseCode.REFUSED, why, now)
        elif verdict is Verdict.DUPLICATE or key in self._held:
            self._refuse(connection, CloseCode.DUPLICATE_LINK, DUPLICATE, now)
        elif verdict is Verdict.TWIN:
            self._refuse(connection, CloseCode.REPLACED, SAME_KEY, now)
        elif verdict is Verdict.HOLD:
            self._held[key] = connection.number
        else:
            if verdict is Verdict.REPLACE:
                self._replace(key, now)
            if connection.link is not None:
                connection.link.admit(now)

    def _replace(self, key: Key, now: float) -> None:
        """A new process of the peer connects: close the link *key* with the old one."""
        lives = self._dialer.lives(key)
        old = self._find(self._rank(key), key[1])
        if old is not None:
            self._shut(old, CloseCode.REPLACED, "the peer's process has restarted", now)
        self._dialer.replaced(key, lives)

    def _established(self, connection: Connection, event: LinkOpened, now: float) -> None:
        key, link = connection.key, connection.link
        assert key is not None  # noqa: S101  a dial has it, a peer that was proved too
        assert link is not None  # noqa: S101  it is up
        if not self.current_roster.is_in_force(event.roster):
            self._shut(connection, CloseCode.NOT_READY, _OTHER_ROSTER, now)
            return
        if self._dialer.up.get(key) is not None:  # the peer has accepted both of two crossing dials
            self._shut(connection, CloseCode.DUPLICATE_LINK, DUPLICATE, now)
            return
        rank = self._rank(key)
        self._release_admission(connection)
        connection.up = True
        if key[1] is Purpose.TUNNEL:
            connection.lent, connection.driven = True, None
        self._learn_patience(key[0], event.instance, link, now, lent=connection.lent)
        if not connection.dialed and not self._dialer.is_answered(key):
            for other in [c for c in self._connections.values() if c.key == key and c.dialed]:
                if not other.up:
                    self._down(other, LocalProtocolError(DUPLICATE), now, CloseCode.DUPLICATE_LINK)
        greets = key[1] is Purpose.CONTROL and 0 not in (rank, self.rank)
        if not greets and (key[1] is Purpose.CONTROL or key[0] not in self._linked()):
            self._addresses.linked(key[0], connection.address, now)
        self._dialer.established(key, LiveLink(connection.number, event.instance, now))
        self._release(key, now)
        self._dialer.satisfied(key)
        if greets and connection.dialed and not self.meeting:
            self._shut(connection, CloseCode.SHUTDOWN, "the rosters are exchanged", now)
            return
        if key[1] is Purpose.CONTROL:
            link.keepalive.reported = now
        up = LinkUp(rank, key[1], connection.number, link)
        self.news.append(CameUp(rank, key[1], up, event.hop))
        if key[1] is Purpose.CONTROL and not greets:
            for message in self._addresses.introduction(rank):
                self.send(rank, Purpose.CONTROL, message, now)

    def _closed(self, connection: Connection, code: int, reason: str, now: float) -> None:
        key = connection.key
        if code == CloseCode.DUPLICATE_LINK and connection.dialed and key is not None:
            self._dialer.satisfied(key)
        if code == CloseCode.REFUSED and key is not None and key[1] is Purpose.API:
            self._dialer.forget_all({Purpose.API}, key[0])  # until a control link comes up
        self._down(connection, PeerClosed(code, reason), now, code)

    def _adopted(self, before: Roster, now: float) -> None:
        """The roster replaces *before*: close the links with removed members, and bring it to the
        others."""
        roster = self.config.roster
        self._addresses.renew(roster.roster, self.config.node_id)
        self._expect_members()
        self._dialer.wake()
        for member in before.members:
            if member.id not in roster.roster:
                self._admission.put_out(member.id)
                self._book.forget(member.id)
                self._dialer.forget(member.id)
        for connection in list(self._connections.values()):
            if connection.key is not None and connection.key[0] not in roster.roster:
                self._shut(connection, CloseCode.ROSTER_EXPIRED, NO_MEMBER, now)
            elif connection.up and connection.driven is not None:
                connection.driven.renew(roster)
        if roster.roster.digest != before.digest:
            self._say([Note(Level.INFO, f"roster {roster.roster.serial} is in force")], now)
        changed = _decides(before) != _decides(roster.roster)
        self.news.append(RosterInForce(roster.roster.serial, self.rank, changed))
        self.greet(now)
