"""The links of one node: dialing, accepting, choosing between crossing dials, and receiving.

It turns connections, which are numbers with bytes, into links, which have a rank, a purpose and
messages. `news` is for the node: links that came up and went down, messages, and a newer roster in
force. `events` are for the caller to carry out.

Unknown connection numbers are ignored: their connections are gone, and bytes or ends of streams may
cross a hang-up.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sealring_protocol import link_events
from sealring_protocol.codec.messages import Message, Progress
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.diagnosis.peers import NO_MEMBER, SAME_KEY, Fault, PeerClosed
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    SealringError,
)
from sealring_protocol.events import (
    EncapsulationRequested,
    Hangup,
    SignatureRequested,
    StoreRoster,
)
from sealring_protocol.link import Link
from sealring_protocol.link_events import LinkClosed, LinkEvent, PeerProved, RosterReceived
from sealring_protocol.links.connections import Connection, why_not
from sealring_protocol.links.dialer import Key, LiveLink, Verdict
from sealring_protocol.links.link_book import DUPLICATE, LinkBook
from sealring_protocol.links.news import LinkUp, MessageReceived, RosterInForce, Unreachable
from sealring_protocol.links.roster_in_force import Arrival
from sealring_protocol.security import handshake as hs
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster, SignedRoster

_OTHER_ROSTER: Final = "another roster has come into force meanwhile"
_FINISHING: Final = "the head lets its requests finish before this roster is in force"
HEAD_FIRST: Final = "the head is to have this roster first, for it makes another member the head"


class LinkManager(LinkBook):
    """All links of the node with *config*. Times are monotonic seconds from the caller."""

    # ---------------------------------------------------------------- orders

    def want(self, rank: int, purpose: Purpose, now: float, *, yields: bool = False) -> None:
        """Keep a link up from now on. If this end *yields*, it dials a moment later than the
        other."""
        self._dialer.want((self.member(rank).id, purpose), now, yields=yields)
        self._dial_due(now)

    def unwant(self, *purposes: Purpose) -> None:
        """Stop dialing links of *purposes*."""
        self._dialer.forget_all(set(purposes))

    def greet(self, now: float) -> None:
        """Exchange rosters with every member once, so that the newer one spreads."""
        for member in self.config.roster.roster.members:
            if member.id != self.config.node_id and member.addresses:
                self._dialer.greet((member.id, Purpose.CONTROL), now)
        self._dial_due(now)

    def send(self, rank: int, purpose: Purpose, message: Message, now: float) -> None:
        """Send *message* if the link is up. If it is not, `news` has told so."""
        connection = self._find(rank, purpose)
        if connection is not None and (link := connection.driven) is not None:
            self._do(connection, link, now, partial(link.send, message))

    def shut(self, rank: int, purpose: Purpose, code: CloseCode, reason: str, now: float) -> None:
        """Close a link, and tell the peer why."""
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
        self._connections[number] = Connection(number, source, None, link)
        self._due_is_known = False
        return number

    def connected(self, number: int, entropy: bytes, now: float, wall_ms: int) -> None:
        """The connection of a `Dial` is open."""
        connection = self._connections.get(number)
        if connection is None or connection.key is None:
            self.events.append(Hangup(number, b""))  # given up while it was being dialed
            return
        peer, purpose = connection.key
        connection.link = Link.dial(self.config, peer, purpose, now, wall_ms, entropy)
        connection.link.keepalive.progress = self._progress
        self._with(number, now, lambda link: None)

    def dial_failed(self, number: int, reason: str, now: float) -> None:
        """The connection of a `Dial` could not be opened."""
        connection = self._connections.pop(number, None)
        if connection is not None and connection.key is not None:
            self._book.failed((*connection.key, True), Fault.UNREACHABLE, reason, now)
            name = self.member(self._rank(connection.key)).name
            self._say([Note(Level.DEBUG, f"cannot reach {name}: {reason}")], now)
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
            self._with(number, now, lambda link: link.fail(error))  # which tells the peer too

    def handle_timeout(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        for connection in list(self._connections.values()):
            if connection.driven is not None:
                deadline = connection.driven.next_timeout()
                if deadline is not None and now >= deadline:
                    self._with(connection.number, now, lambda link: link.handle_timeout(now))
        self._say(self.refusals.handle_timeout(now), now)
        self._dial_due(now)

    # ------------------------------------------------------------- internals

    def _on(self, connection: Connection, event: LinkEvent, now: float) -> None:
        number = connection.number
        match event:
            case hs.SignatureRequested(payload):
                if connection.dialed and connection.key is not None:
                    self._dialer.dial_answered(connection.key)
                self.events.append(SignatureRequested(number, payload))
            case hs.EncapsulationRequested(key):
                self._admission.spoke(number)
                self.events.append(EncapsulationRequested(number, key))
            case RosterReceived(roster):
                self._release_admission(connection)
                self._roster_came(connection, roster, now)
            case PeerProved():
                self._judge(connection, event, now)
            case link_events.LinkUp():
                self._established(connection, event, now)
            case LinkClosed(code, reason):
                self._closed(connection, code, reason, now)
            case _:
                if connection.key is not None:
                    rank, purpose = self._rank(connection.key), connection.key[1]
                    self.news.append(MessageReceived(rank, purpose, event))
                return
        self._due_is_known = False

    def head_first(self, roster: Roster) -> bool:
        """True if *roster* makes another member the head, and the present one, which is linked and
        stays a member, is to have it first: it lets its requests finish."""
        head = self.member(0)
        other = roster.members[0].id != head.id and head.id in roster
        return other and self._dialer.get((head.id, Purpose.CONTROL)) is not None

    def _roster_came(self, connection: Connection, roster: SignedRoster, now: float) -> None:
        """A peer brought a roster that was newer when its handshake began: store or refuse it."""
        if not self.current_roster.is_in_force(roster) and self.head_first(roster.roster):
            self._shut(connection, CloseCode.NOT_READY, HEAD_FIRST, now)
            return
        leads = self.rank == 0 and roster.roster.members[0].id != self.config.node_id
        match self.current_roster.came(connection.number, roster):
            case Arrival.TO_STORE:
                self.events.append(StoreRoster(connection.number, roster.encode()))
                if leads:  # that waits for requests, longer than a handshake may take
                    self._shut(connection, CloseCode.NOT_READY, _FINISHING, now)
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
        ranks = self._rank(key), self.rank, len(self.config.roster.roster.members)
        refusal = why_not(proved.purpose, *ranks, engine=self.accept_steps)
        verdict = self._dialer.judge(key, proved.instance)
        if refusal is not None:
            self._refuse(connection, *refusal, now)
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

    def _established(self, connection: Connection, event: link_events.LinkUp, now: float) -> None:
        key, link = connection.key, connection.link
        assert key is not None  # noqa: S101  a dial has it, a peer that was proved too
        assert link is not None  # noqa: S101  it is up
        if not self.current_roster.is_in_force(event.roster):
            self._shut(connection, CloseCode.NOT_READY, _OTHER_ROSTER, now)
            return
        if self._dialer.get(key) is not None:  # the peer has accepted both of two crossing dials
            self._shut(connection, CloseCode.DUPLICATE_LINK, DUPLICATE, now)
            return
        rank = self._rank(key)
        self._release_admission(connection)
        connection.up = True
        connection.lent = key[1] is Purpose.TUNNEL
        self._learn_patience(key[0], event.instance, link, now, lent=connection.lent)
        if not connection.dialed and not self._dialer.is_answered(key):
            for other in [c for c in self._connections.values() if c.key == key and c.dialed]:
                if not other.up:
                    self._down(other, LocalProtocolError(DUPLICATE), now, CloseCode.DUPLICATE_LINK)
        self._dialer.established(key, LiveLink(connection.number, event.instance, now))
        self._release(key, now)
        self._dialer.satisfied(key)
        if key[1] is Purpose.CONTROL and 0 not in (rank, self.rank):
            if connection.dialed:
                self._shut(connection, CloseCode.SHUTDOWN, "the rosters are exchanged", now)
            return
        self.news.append(LinkUp(rank, key[1], event.hop, connection.number, link))

    def _closed(self, connection: Connection, code: int, reason: str, now: float) -> None:
        if code == CloseCode.DUPLICATE_LINK and connection.dialed and connection.key is not None:
            self._dialer.satisfied(connection.key)
        self._down(connection, PeerClosed(code, reason), now, code)

    def _adopted(self, before: Roster, now: float) -> None:
        """The roster replaces *before*: close the links with removed members, and tell the
        others."""
        self._expect_members()
        roster = self.config.roster
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
        self._say([Note(Level.INFO, f"roster {roster.roster.serial} is in force")], now)
        self.news.append(RosterInForce.after(before, roster.roster))
        self.greet(now)
