"""The door at which newcomers knock: a listener of its own, open only while somebody is invited.

A node's own port has no code for strangers. Here a stranger can do one thing: show that it holds an
invitation. Then it is a newcomer, which waits until a person says yes or no, or it leaves. Who may
join is not decided here: `Door.accept` and `Door.refuse` are what a person says.

One newcomer is admitted at a time, so that each roster follows the one before. The new roster is
signed with the coordinator's key where that lies on this machine, or by whoever accepts. The
newcomer is sent it, stores it, and says so; then it is installed at this node, and so in force.
Whoever else signs on this machine waits for that (`Door.settled`). Another member may still bring a
roster in between: then one is signed that follows that and holds the newcomer too. A newcomer that
left in between is in no roster: the next one that is signed has a greater serial than what it was
sent.

What a newcomer says of itself is a stranger's: its name is ASCII and like nobody else's
(`free_name`), and its system is shown as ASCII.

The door stays open for `TOLD_SECONDS` beyond the time of the last invitation, so that whoever
brings one that was used, or that is just over, is told.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
import shlex
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

import attrs
import trio
from sealring_protocol.codec.messages import Admit, Build, Joined
from sealring_protocol.errors import CloseCode, ConnectionLost, SealringError
from sealring_protocol.joining.exchange import INVITER_ENTROPY, Host, Introduced, Newcomer
from sealring_protocol.joining.invitation import INVITATION_SECRET, Invitation, Invitations
from sealring_protocol.joining.session import JoinEvent, JoinRefused, JoinSession
from sealring_protocol.limits import (
    INVITATION_SECONDS,
    JOIN_PATIENCE,
    MAX_JOINS,
    MAX_NAME,
    MAX_SYSTEM,
)
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import (
    Member,
    Rights,
    Roster,
    SignedRoster,
    TrustLevel,
    newer,
)
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import TINY, is_hub_id
from sealring_trio.net.connecting import accept, open_listeners
from sealring_trio.units import format_address, is_loopback, is_unspecified, parse_address, wall_ms

from sealring.files.cluster import read_coordinator_key, sign_next
from sealring.files.config import Config
from sealring.joining.fingerprint import fingerprint
from sealring.joining.line import JoinLine
from sealring.joining.machine import addresses_of, alike, ascii_text, free_name

log = logging.getLogger("sealring")
newcomer_log = logging.getLogger("sealring.newcomers")
"""What a terminal that asks about newcomers shows anyway."""

TOLD_SECONDS: Final = 120.0
"""Seconds for which whoever brings an invitation that is over is still told so."""

JOINED_SECONDS: Final = JOIN_PATIENCE + 5.0
"""Seconds that a newcomer that was accepted may take to store its roster."""

_LONGEST_WHY: Final = 300
"""Characters of why a newcomer left, in its own words."""

_ID_DIGITS: Final = 8
"""Hex digits of an id that may stand for it, at least."""

_WHOLE_ID: Final = re.compile("[0-9a-f]{64}")

_STRANGERS: Final = 1.0
"""Seconds between two log lines about connections that came to nothing."""

_STRANGE_NEWS: Final = 64
"""News of strangers that wait for a slow reader; more are lost to him. Those of newcomers never
are: an invitation has few tries."""

PAST_SECONDS: Final = 60.0
"""Seconds for which a newcomer is shown once it waits no more."""

_PAST: Final = 8
"""Such newcomers, at most."""

NewsKind = Literal["knock", "left", "joined", "refused", "failed"]
KnockState = Literal["waiting", "admitted", "joined", "refused", "left"]
"""A newcomer waits for a person, and then for its new roster to be stored."""


@attrs.frozen
class DoorNews:
    """What happened at the door, in words; and to whom, unless it is a stranger."""

    kind: NewsKind
    text: str
    knock: Knock | None = None


@attrs.define(eq=False)
class Knock:
    """A newcomer that has shown its invitation. *name* is what it would be called, *like* a name
    that its own is or looks like, and *addresses* are where the others would reach it; it came from
    the host *source* at *since* (monotonic). *id* stands for this one visit: the same machine gets
    another when it knocks again."""

    newcomer: Newcomer
    invitation: Invitation
    name: str
    addresses: tuple[str, ...]
    source: str
    since: float
    line: JoinLine
    like: str = ""
    rights: Rights = Rights.TEXT  # once it is admitted
    id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    admitted: SignedRoster | None = None  # what it was sent
    follows: SignedRoster | None = None  # what was in force when that was signed
    installed: bool = False
    joined: bool = False
    refused: bool = False
    by: str = ""  # who decided, if that was not a person at a terminal
    why: str = ""  # why it is here no more
    ended: float = math.inf  # monotonic
    over: trio.Event = attrs.field(factory=trio.Event)

    @property
    def state(self) -> KnockState:
        """How far it is."""
        if self.joined:
            return "joined"
        if self.refused:
            return "refused"
        if self.over.is_set():
            return "left"
        return "waiting" if self.admitted is None else "admitted"

    @property
    def system(self) -> str:
        """What it says of its system, in ASCII."""
        return ascii_text(self.newcomer.system, MAX_SYSTEM)

    @property
    def member(self) -> Member:
        """The member that it would be."""
        key, trust = self.newcomer.public_key, TrustLevel.SOFTWARE
        return Member(key, self.name, self.addresses, trust, rights=self.rights)

    @property
    def fingerprint(self) -> str:
        """Its key, in four words."""
        return fingerprint(self.newcomer.public_key)

    def describe(self) -> dict[str, Any]:
        """What people see of it, as JSON; *memory* is bytes."""
        return {
            "name": self.name,
            "calls_itself": self.newcomer.name,
            "looks_like": self.like,
            "fingerprint": self.fingerprint,
            "system": self.system,
            "memory": self.newcomer.memory,
            "source": self.source,
            "addresses": list(self.addresses),
            "by": self.by,
        }

    def facts(self) -> dict[str, Any]:
        """It, as JSON for commands."""
        return {
            **self.describe(),
            "id": self.newcomer.id.hex(),
            "visit": self.id,
            "state": self.state,
            "public_key": self.newcomer.public_key.hex(),
            "seconds": round(trio.current_time() - self.since),
        }


@attrs.define(eq=False)
class _Visit:
    """One connection. *knock* is there once the newcomer has introduced itself."""

    source: str
    line: JoinLine | None = None
    knock: Knock | None = None

    @property
    def known(self) -> bool:
        """Whether it has shown an invitation."""
        return self.line is not None and self.line.known


class Door:
    """The door of the node of *config*, which signs with *signer*; *coordinator* signs its rosters
    (65 bytes)."""

    def __init__(self, config: Config, signer: Signer, coordinator: bytes) -> None:
        self._config = config
        self._signer = signer
        self._coordinator = coordinator
        self._invitations = Invitations(trio.current_time())
        self._visits: list[_Visit] = []  # the oldest first
        self._nursery: trio.Nursery | None = None
        self._opening = trio.Lock()
        self._listening = False
        self._open_until = 0.0  # seconds since 1970
        self.spent = 0
        """The serial of the last roster that a newcomer was sent, in force or not."""
        self._roster: Callable[[], SignedRoster] | None = None
        self._install: Callable[[bytes], Awaitable[None]] | None = None
        self._model = ""
        self._news: set[trio.MemorySendChannel[DoorNews]] = set()
        self._quiet_until = 0.0
        self._past: deque[Knock] = deque(maxlen=_PAST)
        self.changed = trio.Event()
        """Set, and replaced, when a newcomer knocks or its state changes."""

    # ------------------------------------------------------------------ life

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let newcomers in as `invite` and `accept` say, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def begin(
        self,
        roster: Callable[[], SignedRoster],
        install: Callable[[bytes], Awaitable[None]],
        model: str,
    ) -> None:
        """The node runs: *roster* gives the one in force, and *install* has another be so, as
        `Runtime.install`. Newcomers are told the *model* unless it is a folder."""
        self._roster, self._install = roster, install
        self._model = model if model == TINY or is_hub_id(model) else ""

    def pause(self) -> None:
        """The node does not run: nobody is admitted before it does again."""
        self._roster = self._install = None

    async def close(self, reason: str) -> None:
        """Send everybody away because of *reason*, and wait until they have heard it."""
        for knock in self.waiting():
            knock.why = knock.why or "this node was stopped"
        for visit in list(self._visits):
            if visit.line is not None:
                visit.line.close(CloseCode.SHUTDOWN, reason)
        with trio.move_on_after(JOIN_PATIENCE):
            for knock in self.waiting():
                await knock.over.wait()

    # ------------------------------------------------------------ what people say

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        host, port = self._config.listen
        return self._config.door or (host, port + 1)

    @property
    def invites(self) -> bool:
        """Whether somebody may join by an invitation just now."""
        return self._listening and any(not self.fault(each) for each in self._invitations)

    @property
    def roster(self) -> SignedRoster:
        """The roster in force. Raises `OperationError` while the node does not run."""
        if self._roster is None:
            raise OperationError("this node is about to begin", "Ask again soon.")
        return self._roster()

    async def invite(self, seconds: float = INVITATION_SECONDS) -> Invitation:
        """A new invitation, good for *seconds*, to a door that is open then. Raises
        `OperationError` if it cannot be."""
        if self._nursery is None:
            raise RuntimeError("the door does not run")
        roster = self.roster.roster
        if roster.expired(wall_ms()):
            raise OperationError(
                f"roster {roster.serial} has expired: nobody can join by it",
                "Renew it first: sealring roster renew. Also check this machine's clock.",
            )
        expires_s = int(wall_ms() / 1000 + seconds)
        invitation = Invitation(
            addresses_of(self.address),
            sha256(self._coordinator),
            secrets.token_bytes(INVITATION_SECRET),
            expires_s,
        )
        async with self._opening:
            if not self._listening:
                await self._open()
            self._open_until = max(self._open_until, expires_s + TOLD_SECONDS)
        self._invitations.add(invitation)
        log.info("an invitation was made; the door is open at %s", format_address(*self.address))
        return invitation

    def fault(self, invitation: Invitation) -> str:
        """Why nobody joins with *invitation* any more, in words; empty if somebody may."""
        if any(knock.invitation is invitation for knock in self.waiting()):
            return ""
        return self._invitations.fault(invitation, wall_ms())

    def waiting(self, who: str = "") -> list[Knock]:
        """Who waits for a person, or is being admitted; the first that came first. With *who*,
        those that have this name, this fingerprint, or an id that begins with its 8 or more
        digits; or the one whose visit has this id, which nobody can foresee."""
        knocks = [visit.knock for visit in self._visits if visit.knock is not None]
        if not who:
            return knocks
        if visit := [knock for knock in knocks if knock.id == who]:
            return visit
        id_digits = who.lower() if len(who) >= _ID_DIGITS else "-"
        if _WHOLE_ID.fullmatch(id_digits):  # whatever others call themselves
            return [knock for knock in knocks if knock.newcomer.id.hex() == id_digits]
        return [
            knock
            for knock in knocks
            if who in (knock.name, knock.fingerprint)
            or knock.newcomer.id.hex().startswith(id_digits)
        ]

    def shown(self) -> list[Knock]:
        """Who waits, and who did within the last `PAST_SECONDS`; the first that came first."""
        since = trio.current_time() - PAST_SECONDS
        return [*(each for each in self._past if each.ended > since), *self.waiting()]

    async def accept(
        self,
        knock: Knock,
        roster: bytes | None = None,
        by: str = "",
        rights: Rights = Rights.TEXT,
    ) -> None:
        """Admit the newcomer of *knock* with *rights*, as *by* says, or a person at a terminal.
        *roster* is one that holds it, signed by whoever accepts; without it the coordinator's key
        must lie here. Returns once it has joined.

        Raises `UserError` or `OperationError` if it does not.
        """
        await self.settled()
        self._check_waits(knock)
        knock.rights = rights
        self._sign(knock, roster)
        signed, knock.by = knock.admitted, by
        if signed is None:
            raise RuntimeError("nothing was signed")
        settings = {"cluster": signed.roster.name, "model": self._model or None}
        newcomer_log.info("%s may join: it is sent roster %d", knock.name, signed.roster.serial)
        self._note_change()
        knock.line.admit(Admit(signed.encode(), json.dumps(settings)))
        if self._nursery is not None:
            self._nursery.start_soon(self._hurry, knock)
        await knock.over.wait()
        if not knock.joined:
            raise OperationError(
                f"{knock.name} was accepted, and has not joined: {knock.why or 'it has left'}",
                _AGAIN,
            )

    async def settled(self) -> None:
        """Wait until no newcomer is being admitted. Whoever signs a roster waits for that: it would
        leave out a machine that believes it is a member."""
        while knock := self.admitting:
            await knock.over.wait()

    @property
    def admitting(self) -> Knock | None:
        """A newcomer that is being admitted, if one is: within `JOINED_SECONDS` that is over."""
        return next((knock for knock in self.waiting() if knock.admitted is not None), None)

    async def _hurry(self, knock: Knock) -> None:
        """Send *knock*, which was admitted, away if it does not join in time: others wait for it,
        whoever asked that it be admitted."""
        with trio.move_on_after(JOINED_SECONDS):
            await knock.over.wait()
        if not knock.joined:
            knock.why = knock.why or "it is too slow"
            knock.line.close(CloseCode.TIMEOUT, "it did not say in time that it has stored this")

    def refuse(self, knock: Knock, by: str = "") -> None:
        """Send the newcomer of *knock* away, as in `accept`; its invitation is over. Raises
        `UserError`."""
        self._check_waits(knock)
        self._invitations.end(
            knock.invitation, "a machine was refused that brought this invitation"
        )
        knock.refused, knock.by = True, by
        newcomer_log.info("%s was refused", knock.name)
        self._tell(DoorNews("refused", f"{knock.name} was refused", knock))
        knock.line.close(CloseCode.REFUSED, "a person there has said no")

    @contextmanager
    def news(self) -> Iterator[AsyncIterator[DoorNews]]:
        """What happens at the door from now on."""
        send, receive = trio.open_memory_channel[DoorNews](math.inf)
        self._news.add(send)
        try:
            with receive:
                yield receive
        finally:
            self._news.discard(send)

    # ------------------------------------------------------------- accepting

    def find(self, who: str = "") -> Knock:
        """The newcomer that *who* means, as in `waiting`; the only one that waits, if it is empty.
        Raises `UserError`."""
        waiting = self.waiting()
        names = ", ".join(knock.name for knock in waiting)
        if not waiting:
            raise UserError(
                "nobody waits to join",
                "On the other machine: sealring join INVITATION. For an invitation: sealring "
                "machines invite",
            )
        meant = self.waiting(who)
        if not meant:
            raise UserError(f"nobody called '{who}' waits to join", f"Those who do: {names}.")
        if len(meant) > 1:
            raise UserError(f"several wait to join: {names}", "Say which, by its fingerprint.")
        return meant[0]

    def _check_waits(self, knock: Knock) -> None:
        """Raise `UserError` if a person has decided about *knock*, or it has left."""
        match knock.state:
            case "waiting":
                return
            case "admitted" | "joined":
                raise UserError(
                    f"{knock.name} was accepted already",
                    "If it should not have been, remove it once it has joined: sealring machines "
                    f"remove {shlex.quote(knock.name)}",
                )
            case "refused":
                raise UserError(f"{knock.name} was refused already", _AGAIN)
            case "left":
                why = f": {knock.why}" if knock.why else ""
                raise UserError(f"{knock.name} has left before it joined{why}", _AGAIN)

    def _sign(self, knock: Knock, roster: bytes | None = None) -> None:
        """Have *knock* be admitted with *roster*, or with one that is signed here. Raises
        `UserError`."""
        follows = self.roster
        signed = self._signed(knock) if roster is None else self._given(knock, roster)
        knock.admitted, knock.follows = signed, follows
        self.spent = signed.roster.serial

    def _signed(self, knock: Knock) -> SignedRoster:
        """The roster in force and the newcomer of *knock*. Raises `UserError`."""
        if self._config.coordinator_key is None:
            raise UserError(
                "the coordinator's key, which signs who is a member, is not on this machine",
                f"Give its file: sealring machines accept {knock.fingerprint} --key FILE",
            )
        before = self.roster
        coordinator = before.roster.coordinator(self._coordinator)
        signer = read_coordinator_key(self._config.coordinator_key, coordinator)
        self._place(knock, before.roster)
        members = (*before.roster.members, knock.member)
        return sign_next(before, members, signer, wall_ms(), self.spent)

    def _given(self, knock: Knock, roster: bytes) -> SignedRoster:
        """*roster*, if it may follow the one in force and holds the newcomer of *knock*. Raises
        `UserError`."""
        ends = (node_id(self._signer.public_key), knock.newcomer.id)
        try:
            signed = newer(self._coordinator, self.roster.roster, roster, wall_ms(), *ends)
        except SealringError as error:
            raise UserError(
                f"{knock.name} cannot be admitted with this roster: {error}",
                "Accept it again: the roster may have changed meanwhile.",
            ) from None
        if signed.roster.serial <= self.spent:
            raise UserError(
                f"a roster with the serial {self.spent} was sent to a machine that left",
                "Accept it again: the next one has a greater serial.",
            )
        member = next(m for m in signed.roster.members if m.id == knock.newcomer.id)
        knock.name, knock.rights = member.name, member.rights
        return signed

    def _place(self, knock: Knock, roster: Roster) -> None:
        """Give *knock* a name and addresses that no member of *roster* has, nor another that waits.
        Raises `UserError` if there can be none."""
        taken = [member.name for member in roster.members]
        taken += [other.name for other in self.waiting() if other is not knock]
        knock.like = alike(knock.newcomer.name, taken)
        knock.name = free_name(knock.newcomer.name, taken)
        knock.addresses = _free_addresses(knock, roster)

    # ------------------------------------------------------------- newcomers

    async def _open(self) -> None:
        try:
            listeners = await open_listeners(*self.address)
        except OperationError as error:
            raise OperationError(
                f"the door for newcomers cannot open: {error.what}",
                f"Give it another address with 'door' in {self._config.path}.",
            ) from None
        self._listening = True
        self._open_until = 0.0
        if self._nursery is not None:
            self._nursery.start_soon(self._listen, listeners)

    async def _listen(self, listeners: list[trio.SocketListener]) -> None:
        """Accept connections until the last invitation is over."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(accept, listener, self._accepted)
                await self._wait_until_over()
                nursery.cancel_scope.cancel()
        finally:
            self._listening = False
        log.info("the door is closed: no invitation is good any more")

    async def _wait_until_over(self) -> None:
        """Wait for the time that `_open_until` has then."""
        while (left := self._open_until - wall_ms() / 1000) > 0:  # noqa: ASYNC110  it may move on
            await trio.sleep(left)

    def _accepted(self, sock: socket.socket, source: str) -> None:
        visit = _Visit(source)
        if len(self._visits) >= MAX_JOINS:
            # Those that have shown an invitation last: a flood of strangers cannot push them out.
            may = [each for each in self._visits if each.knock is None]
            oldest = min(may, key=lambda each: each.known, default=None)
            if oldest is None or self._nursery is None:
                sock.close()
                return
            self._visits.remove(oldest)
            if oldest.line is not None:
                oldest.line.close(CloseCode.LIMIT_EXCEEDED, "another needs its place")
        self._visits.append(visit)
        if self._nursery is not None:
            self._nursery.start_soon(self._receive, sock, visit)

    async def _receive(self, sock: socket.socket, visit: _Visit) -> None:
        try:
            session = JoinSession.answer(
                Host(self._signer.public_key, self.roster, self._coordinator),
                self._invitations,
                trio.current_time(),
                wall_ms(),
                secrets.token_bytes(INVITER_ENTROPY),
            )
        except OperationError:  # the node is about to begin
            sock.close()
            self._visits.remove(visit)
            return
        visit.line = JoinLine(sock, session, self._signer, partial(self._heard, visit))
        why = ""
        try:
            await visit.line.run()
        except JoinRefused as error:
            self._failed(visit, f"{_plain(error.newcomer)} cannot join: {error}")
        except SealringError as error:
            why = str(error)
            if visit.knock is None and not isinstance(error, ConnectionLost):
                self._strange(visit, why)
        finally:
            if visit in self._visits:
                self._visits.remove(visit)
            if visit.knock is not None:
                self._left(visit.knock, why)

    def _heard(self, visit: _Visit, event: JoinEvent) -> None:
        match event:
            case Introduced():
                self._introduced(visit, event)
            case Joined() if visit.knock is not None and self._nursery is not None:
                self._nursery.start_soon(self._joined, visit.knock)
            case LinkClosed(_, reason) if visit.knock is not None:
                visit.knock.why = ascii_text(reason, _LONGEST_WHY)

    def _introduced(self, visit: _Visit, event: Introduced) -> None:
        """A newcomer has shown its invitation: it waits for a person, unless it cannot be a
        member."""
        newcomer, line = event.newcomer, visit.line
        if line is None:
            return
        knock = Knock(
            newcomer,
            event.invitation,
            newcomer.name,
            (),
            visit.source,
            trio.current_time(),
            line,
        )
        try:
            _check_name(newcomer)
            self._check_key(newcomer)
            self._check_program(newcomer)
            self._place(knock, self.roster.roster)
        except UserError as error:
            self._failed(visit, f"{_plain(newcomer)} cannot join: {error.what}")
            line.close(CloseCode.REFUSED, f"{error.what}. {error.advice}")
            return
        visit.knock = knock
        newcomer_log.info(
            "fingerprint %s from %s wants to join: %s, %s",
            knock.fingerprint,
            visit.source,
            knock.name,
            knock.system,
        )
        self._tell(DoorNews("knock", f"{knock.name} wants to join", knock))
        self._note_change()

    def _check_key(self, newcomer: Newcomer) -> None:
        """Raise `UserError` if a member or another that waits has the key of *newcomer*."""
        if (member := self.roster.roster.member(newcomer.id)) is not None:
            raise UserError(f"its key is that of '{member.name}', which is a member", _OWN_KEY)
        if any(other.newcomer.id == newcomer.id for other in self.waiting()):
            raise UserError("a machine with the same key waits already", _OWN_KEY)

    def _check_program(self, newcomer: Newcomer) -> None:
        """Raise `UserError` if the ring would refuse the program of *newcomer*."""
        own, its = Build().steps, newcomer.steps
        if not newcomer.build or (its.start < own.stop and own.start < its.stop):
            return
        member = self.roster.roster.member(node_id(self._signer.public_key))
        here = "the inviter" if member is None else member.name
        older = newcomer.name if its.stop <= own.start else here
        raise UserError(
            f"its sealring knows the step versions {_listed(its)}, and that of {here} "
            f"{_listed(own)}",
            f"They cannot work together: upgrade sealring on {older}",
        )

    async def _joined(self, knock: Knock) -> None:
        """*knock* has stored its roster: have it be a member here, and let it go."""
        if knock.admitted is None:
            return
        knock.joined = True
        serial = knock.admitted.roster.serial
        try:
            await self._put_in_force(knock)
        except UserError as error:
            log.warning(
                "%s has stored roster %d, which could not be installed here: %s. %s brings it when "
                "it links with this node, and is a member then unless a newer roster is in force",
                knock.name,
                serial,
                error.what,
                knock.name,
            )
        newcomer_log.info("%s has joined: roster %d", knock.name, knock.admitted.roster.serial)
        knock.line.close(CloseCode.SHUTDOWN, "it has joined")

    async def _put_in_force(self, knock: Knock) -> None:
        """Install what *knock* was sent; or, if another roster has come in force meanwhile, one
        that follows that and holds *knock* too, which it then gets from the members. Raises
        `UserError`."""
        if self._install is None:
            raise OperationError("the node does not run just now", "")
        if self.roster.roster.member(knock.newcomer.id) is None:
            if self.roster != knock.follows:
                self._sign(knock)
            if knock.admitted is not None:
                await self._install(knock.admitted.encode())
        knock.installed = True

    def _left(self, knock: Knock, why: str) -> None:
        """The connection of *knock* is over."""
        knock.why = knock.why or why
        if knock.joined:
            self._tell(DoorNews("joined", f"{knock.name} has joined", knock))
        elif not knock.refused:
            text = f"{knock.name} has left before it joined"
            if knock.why:
                text += f": {knock.why}"
            newcomer_log.info("%s", text)
            self._tell(DoorNews("left", text, knock))
        knock.ended = trio.current_time()
        self._past.append(knock)
        knock.over.set()
        self._note_change()

    def _failed(self, visit: _Visit, text: str) -> None:
        log.warning("%s (from %s)", text, visit.source)
        self._tell(DoorNews("failed", f"{text} (from {visit.source})"))

    def _strange(self, visit: _Visit, why: str) -> None:
        """Somebody came who holds no invitation. Who comes often is not logged each time."""
        if trio.current_time() >= self._quiet_until:
            self._quiet_until = trio.current_time() + _STRANGERS
            self._failed(visit, f"somebody knocked who cannot join: {why}")

    def _tell(self, news: DoorNews) -> None:
        for channel in self._news:
            waiting = channel.statistics().current_buffer_used
            if news.knock is not None or waiting < _STRANGE_NEWS:
                channel.send_nowait(news)

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


_AGAIN: Final = "Invite it again: sealring machines invite; then there: sealring join INVITATION"
_OWN_KEY: Final = (
    "A key is for one machine: if its folder was copied, give the copy another folder, and join "
    "anew. If it is that machine, it is a member already: sealring up"
)


def _plain(newcomer: Newcomer) -> str:
    """Who *newcomer* is, in words."""
    name = ascii_text(newcomer.name, MAX_NAME)
    return f"{name} ({fingerprint(newcomer.public_key)})"


def _check_name(newcomer: Newcomer) -> None:
    """Raise `UserError` if the name of *newcomer* could be taken for another, whoever has that."""
    if not newcomer.name.isascii():
        raise UserError(
            f"its name, {ascii_text(newcomer.name, MAX_NAME)}, has letters beyond ASCII, which may "
            "look like those of another name",
            "Give it another name: sealring join INVITATION --name NAME",
        )


def _listed(steps: range) -> str:
    return ", ".join(map(str, steps[:4])) + (", ..." if len(steps) > 4 else "") or "none"


def _free_addresses(knock: Knock, roster: Roster) -> tuple[str, ...]:
    """The addresses of *knock* that can be in *roster*. Two machines may both have an address that
    each uses within itself; it is left out. Raises `UserError` if none is left."""
    taken = {each.lower(): m.name for m in roster.members for each in m.addresses}
    here = is_loopback(knock.source)
    left: list[str] = []
    why = "it gives none that others could reach"
    for address in knock.newcomer.addresses:
        try:
            host, _ = parse_address(address)
        except ValueError:
            continue
        if not host.isascii():
            why = "its address has letters beyond ASCII"
        elif is_unspecified(host) or (is_loopback(host) and not here):
            why = f"no other machine reaches it at {address}"
        elif address.lower() in taken:
            why = f"'{taken[address.lower()]}' has the address {address}"
        else:
            left.append(address)
    if not left:
        raise UserError(
            f"it has no address that it could have in the cluster: {why}",
            "Give it one with --listen HOST:PORT, at which the others reach it",
        )
    return tuple(dict.fromkeys(left))
