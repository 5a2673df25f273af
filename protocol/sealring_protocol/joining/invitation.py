"""Invitations: what a person carries from a machine of the cluster to the one that joins.

An invitation has addresses of the machine that gave it (the inviter), SHA-256 of the coordinator's
public key, a secret of 128 random bits, and the time at which it expires. Its text is ``sr1-`` and
base32 (RFC 4648 section 6, in lower case and without padding) of::

    expires_s u32 · coordinator 32 · secret 16 · count u8 · (text u16 + UTF-8) each · check 4

*check* is the beginning of SHA-256 of all before it: a text that was cut or mistyped is told as
that. Whoever reads an invitation can ask to join as long as it is good, and no more than ask: a
person at the inviter sees who asks.

`Invitations` are those of one inviter. They are in memory alone. Each is good until it expires, one
machine has joined with it, one was refused, or `MAX_TRIES` machines have introduced themselves. A
machine that was admitted, and left before it had stored that, may come back with it; no other may.
Who brings one that is over is told why, so it is kept until others need its place. To be told, one
has to be answered, and the answer has the cluster's roster: so that a text found later gives
nothing away, `INVITATION_SECONDS` after it expired it is answered no more.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from hmac import compare_digest
from typing import Final

import attrs

from sealring_protocol.codec.wire import U8, U32, Reader, is_plain, pack, text
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import (
    INVITATION_SECONDS,
    JOIN_SIGNATURES_PER_SECOND,
    MAX_ADDRESS,
    MAX_INVITATION,
    MAX_INVITATION_ADDRESSES,
    MAX_INVITATIONS,
    MAX_TRIES,
)
from sealring_protocol.security.admission import ReplayCache, TokenBucket
from sealring_protocol.security.handshake import Init
from sealring_protocol.security.keys import PROTOCOL, Label, extract, mac, sha256

PREFIX: Final = "sr1-"
"""How an invitation begins."""

INVITATION_SECRET: Final = 16
"""Bytes of an invitation's secret."""

USED: Final = "this invitation was used"
"""Why nobody joins with an invitation with which a machine has joined."""

_CHECK: Final = 4
_HASH: Final = 32
_REPLAYS: Final = 1024


@attrs.frozen
class Invitation:
    """The inviter's *addresses* (``host:port``), *coordinator* (SHA-256 of its public key), the
    *secret*, and when it expires, in seconds since 1970.

    Raises `LocalProtocolError` if a field is invalid.
    """

    addresses: tuple[str, ...]
    coordinator: bytes
    secret: bytes = attrs.field(repr=False)
    expires_s: int

    def __attrs_post_init__(self) -> None:
        if not 1 <= len(self.addresses) <= MAX_INVITATION_ADDRESSES:
            raise LocalProtocolError(f"an invitation has 1 to {MAX_INVITATION_ADDRESSES} addresses")
        if not all(address and is_plain(address) for address in self.addresses):
            raise LocalProtocolError("an address is printable and not empty")
        if len(set(self.addresses)) < len(self.addresses):
            raise LocalProtocolError("an address is there twice")
        if len(self.coordinator) != _HASH or len(self.secret) != INVITATION_SECRET:
            raise LocalProtocolError("a hash has 32 bytes, and an invitation's secret 16")

    def encode(self) -> str:
        """The text, which `decode` reads. Raises `LocalProtocolError` beyond a limit."""
        data = pack(U32, self.expires_s) + self.coordinator + self.secret
        data += pack(U8, len(self.addresses))
        data += b"".join(text(address, MAX_ADDRESS) for address in self.addresses)
        data += sha256(data)[:_CHECK]
        return PREFIX + base64.b32encode(data).decode().rstrip("=").lower()

    @classmethod
    def decode(cls, given: str) -> Invitation:
        """Read what `encode` gives, in either case and with blanks and line ends around it.

        Raises `RemoteProtocolError`, with what is wrong in words, for anything else, and
        `LimitExceeded` beyond a limit.
        """
        given = given.strip(" \t\r\n")
        if len(given) > MAX_INVITATION:
            raise LimitExceeded("this is longer than any invitation")
        if not given.isascii():
            raise RemoteProtocolError("an invitation has letters and digits alone")
        words = given.lower()
        if not words.startswith(PREFIX):
            raise RemoteProtocolError(f"an invitation begins with {PREFIX}")
        body = words.removeprefix(PREFIX).upper()
        try:
            data = base64.b32decode(body + "=" * (-len(body) % 8))
        except (binascii.Error, ValueError):
            raise RemoteProtocolError("it is not whole: it was cut or mistyped") from None
        invitation = cls._decoded(data)
        if invitation.encode() != words:
            raise RemoteProtocolError("it is not written as invitations are")
        return invitation

    @classmethod
    def _decoded(cls, data: bytes) -> Invitation:
        if sha256(data[:-_CHECK])[:_CHECK] != data[-_CHECK:]:
            raise RemoteProtocolError("it is not whole: it was cut or mistyped")
        reader = Reader(data[:-_CHECK])
        expires_s, coordinator, secret = reader.u32(), reader.fixed(_HASH), reader.fixed(16)
        count = reader.u8()
        if count > MAX_INVITATION_ADDRESSES:
            raise LimitExceeded(f"it has {count} addresses")
        addresses = tuple(reader.text(MAX_ADDRESS) for _ in range(count))
        reader.end()
        try:
            return cls(addresses, coordinator, secret, expires_s)
        except LocalProtocolError as error:
            raise RemoteProtocolError(str(error)) from None

    @property
    def admission(self) -> bytes:
        """The key for the tag of JOIN_INIT."""
        return extract(PROTOCOL + Label.JOIN, self.coordinator + self.secret)


@attrs.define(eq=False)
class _Kept:
    invitation: Invitation
    admission: bytes = attrs.field(repr=False)
    tries: int = 0
    busy: bool = False
    machine: bytes = b""  # the node id of the one that was admitted
    over: str = ""  # why it is good no more, apart from its time

    def worth(self) -> tuple[bool, bool, int]:
        """The least gives way first."""
        return not self.over, self.busy, self.invitation.expires_s


class Invitations:
    """The invitations of one inviter. Times are monotonic seconds, and milliseconds since 1970."""

    def __init__(self, now: float) -> None:
        self._kept: list[_Kept] = []
        self._replay = ReplayCache(_REPLAYS)
        self._signatures = TokenBucket(JOIN_SIGNATURES_PER_SECOND, now)

    def __iter__(self) -> Iterator[Invitation]:
        return (kept.invitation for kept in self._kept)

    def add(self, invitation: Invitation) -> None:
        """*invitation* was given to somebody. One that is over gives way, or else the one that
        expires first; one with which a machine is joining only if all are like that."""
        if len(self._kept) == MAX_INVITATIONS:
            self._kept.remove(min(self._kept, key=_Kept.worth))
        self._kept.append(_Kept(invitation, invitation.admission))

    def find(self, init: Init, wall_ms: int) -> Invitation | None:
        """The invitation with whose secret the tag of *init* was made; None if there is none, or it
        expired long before *wall_ms*. Raises `AuthenticationFailed` if this JOIN_INIT has been here
        before."""
        for kept in self._kept:
            if wall_ms >= 1000 * (kept.invitation.expires_s + INVITATION_SECONDS):
                continue
            if compare_digest(mac(kept.admission, init.tagged), init.tag):
                self.answered(init.tag)
                return kept.invitation
        return None

    def answered(self, tag: bytes) -> None:
        """A JOIN_INIT with *tag* is to be answered. Raises `AuthenticationFailed` if one has
        been."""
        self._replay.add(tag)

    def spend(self, now: float) -> None:
        """Spend one signature. Raises `LimitExceeded` if none is left for now."""
        if not self._signatures.take(now):
            raise LimitExceeded("too many newcomers ask for a signature")

    def fault(self, invitation: Invitation, wall_ms: int, machine: bytes = b"") -> str:
        """Why *machine* (node id; empty for one never seen) cannot join with *invitation* at
        *wall_ms*, in words; empty if it may."""
        kept = self._find(invitation)
        if kept is None:
            return "this invitation was withdrawn"
        if kept.over:
            return kept.over
        if kept.machine not in (b"", machine):
            return USED
        if wall_ms >= 1000 * invitation.expires_s:
            return "this invitation has expired"
        if kept.busy:
            return "another machine is joining with this invitation just now"
        return ""

    def take(self, invitation: Invitation) -> None:
        """A machine has introduced itself with *invitation*, which had no `fault`."""
        if (kept := self._find(invitation)) is not None:
            kept.tries += 1
            kept.busy = True

    def admitted(self, invitation: Invitation, machine: bytes) -> None:
        """*machine* (node id) was admitted with *invitation*: no other can join with it."""
        if (kept := self._find(invitation)) is not None:
            kept.machine = machine

    def give_back(self, invitation: Invitation) -> None:
        """The machine that had taken *invitation* has left, and has not joined."""
        if (kept := self._find(invitation)) is not None:
            kept.busy = False
            if kept.tries >= MAX_TRIES:
                kept.over = kept.over or f"{MAX_TRIES} machines have tried this invitation"

    def end(self, invitation: Invitation, why: str) -> None:
        """*invitation* is good no more, because of *why*: "this invitation was used", say."""
        if (kept := self._find(invitation)) is not None:
            kept.over = why

    def _find(self, invitation: Invitation) -> _Kept | None:
        return next((kept for kept in self._kept if kept.invitation == invitation), None)
