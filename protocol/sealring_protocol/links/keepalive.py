"""Keepalive on a link: when to send a PING, when to give up, and the round-trip time.

A PING is due after `PING_INTERVAL` without a byte from the peer. The peer is lost if the rest of
its patience then passes without a byte. That rest is counted from the PING, so a node that was
itself asleep does not blame its peers. PONGs answer PINGs in order, each once.

Patience is the silence allowed to a peer. It is short on a calm network, so that a dead machine is
noticed soon. It grows with the round-trip time (RFC 6298, section 2), and to twice the pause for a
while after a peer has paused and come back. It belongs to the peer and outlives its links, so a
pause that cost a link counts as well.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sealring_protocol.codec.messages import Ping, Pong, Progress
from sealring_protocol.errors import LimitExceeded, PeerTimeout, RemoteProtocolError
from sealring_protocol.limits import (
    LONGEST_PATIENCE,
    MAX_UNANSWERED_PINGS,
    PING_INTERVAL,
    PING_TIMEOUT,
    PINGS_PER_SECOND,
)
from sealring_protocol.security.admission import TokenBucket

PAUSE_SECONDS: Final = 600.0
"""Seconds for which a pause is remembered."""


class Patience:
    """The seconds that one peer may be silent, at least *floor*. Times are monotonic seconds."""

    __slots__ = ("_floor", "_pause", "_paused_at", "_srtt", "_variation")

    def __init__(self, floor: float = PING_TIMEOUT) -> None:
        self._floor = floor
        self._srtt: float | None = None
        self._variation = 0.0
        self._pause = 0.0
        self._paused_at = -math.inf

    def copy(self) -> Patience:
        """A copy with the same measurements, which then changes independently."""
        other = Patience(self._floor)
        other._srtt, other._variation = self._srtt, self._variation
        other._pause, other._paused_at = self._pause, self._paused_at
        return other

    def measured(self, rtt: float) -> None:
        """A round trip took *rtt* seconds."""
        if self._srtt is None:
            self._srtt, self._variation = rtt, rtt / 2
            return
        self._variation += (abs(self._srtt - rtt) - self._variation) / 4
        self._srtt += (rtt - self._srtt) / 8

    def paused(self, seconds: float, now: float) -> None:
        """The peer came back after *seconds* of silence."""
        if seconds >= self._pause or now - self._paused_at > PAUSE_SECONDS:
            self._pause, self._paused_at = seconds, now

    def seconds(self, now: float) -> float:
        """Seconds without a byte after which the peer is lost."""
        wanted = 0.0
        if self._srtt is not None:
            wanted = PING_INTERVAL + self._srtt + 4 * self._variation
        if now - self._paused_at <= PAUSE_SECONDS:
            wanted = max(wanted, 2 * self._pause)
        return max(self._floor, min(wanted, LONGEST_PATIENCE))


class Keepalive:
    """The keepalive of one link, in both directions. Times are monotonic seconds."""

    __slots__ = (
        "_asked",
        "_budget",
        "_echo",
        "_heard",
        "_pinged",
        "patience",
        "peer_progress",
        "progress",
        "rtt",
    )

    def __init__(self, now: float) -> None:
        self.progress = Progress()
        """This node's progress, as PINGs and PONGs report it."""
        self.peer_progress = Progress()
        """The peer's progress, as it last reported it."""
        self.rtt: float | None = None
        """The latest round-trip time, in seconds; None before the first PONG."""
        self.patience = Patience()
        """The patience with this peer. The owner of several links lets them share one."""
        self._heard = now
        self._pinged: float | None = None  # when a PING was sent, if nothing came since
        self._asked: deque[tuple[int, float]] = deque()  # PINGs that wait for their PONG
        self._echo = 0
        self._budget = TokenBucket(PINGS_PER_SECOND, now)

    def heard(self, now: float) -> None:
        """Bytes came from the peer."""
        if self._pinged is not None:
            self.patience.paused(PING_INTERVAL + now - self._pinged, now)
        self._heard = now
        self._pinged = None

    @property
    def heard_at(self) -> float:
        """When bytes last came from the peer."""
        return self._heard

    @property
    def peer_starved(self) -> float | None:
        """Seconds that the peer's engine has starved in all, as the peer reports; None before it
        does."""
        return None if self.rtt is None else self.peer_progress.starved_us / 1e6

    @property
    def deadline(self) -> float:
        """When to call `overdue`: a PING is due, or the peer is lost."""
        if self._pinged is None:
            return self._heard + PING_INTERVAL
        return self._pinged + self.patience.seconds(self._pinged) - PING_INTERVAL

    def overdue(self, now: float) -> Ping:
        """The deadline has passed. Returns the PING to send. Raises `PeerTimeout` if the last PING
        brought no bytes, or too many PINGs have no PONG."""
        if self._pinged is not None:
            raise PeerTimeout(f"not a byte for {now - self._heard:.1f} s")
        if len(self._asked) >= MAX_UNANSWERED_PINGS:
            raise PeerTimeout(f"{len(self._asked)} PINGs without an answer")
        self._pinged = now
        self._echo += 1
        self._asked.append((self._echo, now))
        return Ping(self._echo, self.progress)

    def ping(self, ping: Ping, now: float) -> Pong:
        """The answer to the peer's *ping*. Raises `LimitExceeded` if there are too many PINGs."""
        if not self._budget.take(now):
            raise LimitExceeded(f"more than {PINGS_PER_SECOND} PINGs a second")
        self.peer_progress = ping.progress
        return Pong(ping.echo, self.progress)

    def pong(self, pong: Pong, now: float) -> None:
        """The peer answered a PING. Raises `RemoteProtocolError` if *pong* answers none, or not the
        oldest."""
        if not self._asked or self._asked[0][0] != pong.echo:
            raise RemoteProtocolError("PONG to no PING")
        self.rtt = now - self._asked.popleft()[1]
        self.patience.measured(self.rtt)
        self.peer_progress = pong.progress
