"""The newcomer's side: find the inviter, show it the invitation, and wait for a person's word.

All addresses of the invitation are dialed, the best a moment before the next. If nobody has proved
anything soon, a search (multicast DNS, say) may give more: the inviter's address may have changed
since. The first address at which a machine proves that it belongs to the invitation's cluster is
taken. Whoever answers at another learns nothing but that somebody dialed.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio
from sealring_protocol.errors import CloseCode, SealringError
from sealring_protocol.joining.exchange import JOINER_ENTROPY, Admitted, InviterProved, Newcomer
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.joining.session import STILL_GOOD, JoinEvent, JoinSession
from sealring_protocol.limits import JOIN_PATIENCE
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.words import ago, lasting
from sealring_trio.errors import OperationError, UserError
from sealring_trio.net.connecting import dial
from sealring_trio.units import is_loopback, parse_address, wall_ms

from sealring.joining.line import JoinLine

STAGGER: Final = 0.2
"""Seconds between the dials of two addresses: the best goes first."""

ANSWER_SECONDS: Final = 4.0
"""Seconds that an address has for a connection to come up."""

SEARCH_AFTER: Final = 0.5
"""Seconds after which addresses are searched for that the invitation does not have."""

SEARCH_SECONDS: Final = 3.0
"""Seconds that the search may take. A machine in the same network answers within half a second."""

MAX_SEARCHED: Final = 8
"""Addresses that are dialed besides those of the invitation."""

REFUSED_SECONDS: Final = 0.5
"""Seconds within which an inviter refuses an invitation that is good no more, unless it is far."""

SAY_SECONDS: Final = 10.0
"""Seconds between two lines while a person is waited for."""

Search = Callable[[Callable[[str], None]], Awaitable[None]]
"""Calls what it is given with each address that it finds, until cancelled."""


def has_loopback_alone(invitation: Invitation) -> bool:
    """Whether *invitation* is for processes of the machine that gave it."""
    return all(is_loopback(parse_address(address)[0]) for address in invitation.addresses)


_ANOTHER: Final = "Ask for another invitation there: sealring machines invite"
_CLOSED: Final = (
    "Where a connection is refused, sealring was stopped there, or started again, which ends an "
    "invitation; or a firewall rejects that port. "
)
_AWAY: Final = (
    "Where nobody answers, that machine is off or in another network, or a firewall there drops "
    "that port (macOS asks once whether a program may be reached). "
)
_MEMBER: Final = (
    "A member needs no invitation. On the machine that joined with this key: sealring up"
)


class JoinProgress:
    """Hears of how a join goes. Its methods do nothing here."""

    def proved(self, cluster: InviterProved, name: str) -> None:
        """The inviter, called *name*, has proved that it belongs to *cluster*."""

    def waiting(self, name: str, seconds: float) -> None:
        """*name*, which has not refused the invitation, has let this machine wait for *seconds*: 0
        the first time."""

    def store(self, cluster: InviterProved, admitted: Admitted) -> None:
        """This machine is a member: keep what was sent. Raises `UserError`."""


@attrs.define(eq=False)
class _Attempt:
    """What came of one connection."""

    cluster: InviterProved | None = None
    admitted: Admitted | None = None
    fault: UserError | None = None  # with which storing failed
    said: LinkClosed | None = None
    error: SealringError | None = None
    line: JoinLine | None = None
    proved: trio.Event = attrs.field(factory=trio.Event)

    @property
    def decided(self) -> bool:
        """Whether the inviter has let this machine in or sent it away."""
        return not (self.admitted is None and self.fault is None and self.said is None)


class JoinRequest:
    """Joins by *invitation*: a node that signs with *signer* and is what *newcomer* gives for the
    host from which it reaches the inviter. *progress* hears of it. *search*, if there is one, finds
    addresses of the inviter that the invitation does not have."""

    def __init__(
        self,
        invitation: Invitation,
        signer: Signer,
        newcomer: Callable[[str], Newcomer],
        progress: JoinProgress,
        search: Search | None = None,
    ) -> None:
        self._invitation = invitation
        self._signer = signer
        self._newcomer = newcomer
        self._progress = progress
        self._likely: set[str] = set()
        self._search = search
        self._tried = list(invitation.addresses)
        self._faults: dict[str, str] = {}
        self._dials = trio.CancelScope()
        self._stopped = False
        self._attempt: _Attempt | None = None

    async def run(self) -> bool:
        """Join; whether this machine did, or was stopped by `stop`. Raises `UserError` or
        `OperationError` that says why it did not."""
        send, receive = trio.open_memory_channel[tuple[str, socket.socket]](
            len(self._invitation.addresses) + MAX_SEARCHED
        )
        found: _Attempt | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dial_all, send)
            async with receive:
                async for address, sock in receive:
                    if found is not None or self._stopped:
                        sock.close()
                        continue
                    attempt = await self._try(sock)
                    if attempt.cluster is not None:
                        found = attempt
                    elif attempt.error is not None:
                        self._faults[address] = str(attempt.error)
        if found is not None:
            return self._result(found)
        if self._stopped:
            return False
        raise self._nobody()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called: after this machine was let in it is a member all the same."""
        return self._stopped

    def stop(self) -> None:
        """Give up, and tell the inviter."""
        self._stopped = True
        self._dials.cancel()
        attempt = self._attempt
        if attempt is not None and attempt.line is not None and attempt.admitted is None:
            attempt.line.close(CloseCode.SHUTDOWN, "it was stopped there")

    # ----------------------------------------------------------------- inside

    async def _dial_all(self, send: trio.MemorySendChannel[tuple[str, socket.socket]]) -> None:
        with self._dials:
            async with send, trio.open_nursery() as nursery:
                nursery.start_soon(self._look_further, nursery, send)
                for address in self._invitation.addresses:
                    nursery.start_soon(self._dial, address, send)
                    await trio.sleep(STAGGER)

    async def _look_further(
        self, nursery: trio.Nursery, send: trio.MemorySendChannel[tuple[str, socket.socket]]
    ) -> None:
        """Dial what the search finds."""
        if self._search is None:
            return
        most = len(self._tried) + MAX_SEARCHED

        def found(address: str) -> None:
            if address not in self._tried and len(self._tried) < most:
                self._tried.append(address)
                nursery.start_soon(self._dial, address, send)

        await trio.sleep(SEARCH_AFTER)
        with trio.move_on_after(SEARCH_SECONDS):
            await self._search(found)

    async def _dial(
        self, address: str, send: trio.MemorySendChannel[tuple[str, socket.socket]]
    ) -> None:
        with trio.move_on_after(ANSWER_SECONDS) as scope:
            try:
                sock = await dial(address)
            except OperationError as error:
                self._fail(address, error.what)
                return
            send.send_nowait((address, sock))
        if scope.cancelled_caught:
            self._fail(address, f"no answer within {ANSWER_SECONDS:.0f} s")

    def _fail(self, address: str, reason: str) -> None:
        """Nobody takes a connection at *address*, for *reason*."""
        self._faults[address] = reason
        self._likely.add(_CLOSED if "refused" in reason.lower() else _AWAY)

    async def _try(self, sock: socket.socket) -> _Attempt:
        """Ask on *sock*, until the join is over one way or the other."""
        host = str(sock.getsockname()[0])
        session = JoinSession.ask(
            self._invitation,
            self._newcomer(host),
            trio.current_time(),
            wall_ms(),
            secrets.token_bytes(JOINER_ENTROPY),
        )
        attempt = self._attempt = _Attempt()
        attempt.line = JoinLine(sock, session, self._signer, partial(self._heard, attempt))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._say, attempt)
            try:
                await attempt.line.run()
            except SealringError as error:
                attempt.error = error
            nursery.cancel_scope.cancel()
        return attempt

    def _heard(self, attempt: _Attempt, event: JoinEvent) -> None:
        match event:
            case InviterProved():
                attempt.cluster = event
                attempt.proved.set()
                self._dials.cancel()
                self._progress.proved(event, _name(event))
            case Admitted():
                self._admitted(attempt, event)
            case LinkClosed():
                attempt.said = event

    def _admitted(self, attempt: _Attempt, event: Admitted) -> None:
        if attempt.cluster is None or attempt.line is None:
            return
        try:
            self._progress.store(attempt.cluster, event)
        except UserError as error:
            attempt.fault = error
            attempt.line.close(CloseCode.REFUSED, f"it cannot keep its files: {error.what}")
            return
        attempt.admitted = event
        attempt.line.stored()

    async def _say(self, attempt: _Attempt) -> None:
        """Report that a person is waited for, once the inviter has not refused the invitation."""
        await attempt.proved.wait()
        since = trio.current_time()
        await trio.sleep(REFUSED_SECONDS)
        seconds = 0.0
        while attempt.cluster is not None and not attempt.decided:
            self._progress.waiting(_name(attempt.cluster), seconds)
            await trio.sleep(SAY_SECONDS)
            seconds = trio.current_time() - since
        await trio.sleep(JOIN_PATIENCE)  # the inviter has no reason to keep it for longer
        if attempt.line is not None:
            attempt.line.close(CloseCode.SHUTDOWN, "it has joined")

    # ---------------------------------------------------------------- results

    def _result(self, attempt: _Attempt) -> bool:
        """Whether this machine joined in *attempt*. Raises `UserError`."""
        if attempt.fault is not None:
            raise attempt.fault
        if attempt.admitted is not None:
            return True
        if self._stopped:
            return False
        name = "" if attempt.cluster is None else _name(attempt.cluster)
        if attempt.said is None:
            why = "it was lost" if attempt.error is None else str(attempt.error)
            raise OperationError(
                f"the connection to {name} ended before this machine was let in: {why}",
                f"Is {name} still running? {_ANOTHER}; then join again.",
            )
        match attempt.said.code:
            case CloseCode.REFUSED:
                what = f"{name} does not let this machine join: {attempt.said.reason}"
            case CloseCode.SHUTDOWN:
                what = f"{name} stopped before this machine was let in: {attempt.said.reason}"
            case _:
                what = f"{name} ended the join: {attempt.said.reason}"
        advice = f"{_ANOTHER}; then join again."
        if attempt.said.reason.endswith(STILL_GOOD):
            advice = "Then join again."
        raise OperationError(what, _MEMBER if self._is_member(attempt) else advice)

    def _is_member(self, attempt: _Attempt) -> bool:
        """Whether the cluster that was found has this machine's key already."""
        own = node_id(self._signer.public_key)
        cluster = attempt.cluster
        return cluster is not None and cluster.roster.roster.member(own) is not None

    def _nobody(self) -> UserError:
        """Nobody has proved to be the inviter."""
        tried = "\n".join(
            f"  {address}: {self._faults.get(address, 'not tried')}" for address in self._tried
        )
        searched = " or by multicast DNS" if self._search is not None else ""
        late = wall_ms() / 1000 - self._invitation.expires_s
        if late >= 0:
            return OperationError(
                f"this invitation expired {ago(late)} by this machine's clock, and the machine "
                f"that gave it does not answer to it:\n{tried}",
                f"{_ANOTHER}; then join again. If it is not as old as that, set this machine's "
                "clock.",
            )
        advice = (
            f"{''.join(sorted(self._likely))}This invitation is good for {lasting(-late)} more, "
            f"and not once it was used. {_ANOTHER}"
        )
        if has_loopback_alone(self._invitation):
            advice = (
                "It is good on the machine alone that gave it, which listens at loopback. To let "
                "other machines in: there, let 'listen' in the config be 0.0.0.0:PORT, start it "
                "again, tell the cluster its address (sealring machines address), and invite again."
            )
        return OperationError(
            f"no machine that gave this invitation was found, at any of its addresses{searched}:"
            f"\n{tried}",
            advice,
        )


def _name(cluster: InviterProved) -> str:
    """What the inviter is called."""
    member = cluster.roster.roster.member(cluster.inviter)
    return "the inviter" if member is None else member.name
