"""Signs of life on a link: when to ask for one, when to give up, and what a round trip takes.

After `PING_INTERVAL` without a byte from the peer a PING is due; if the rest of `PING_TIMEOUT`
passes without a byte, the peer is lost. That rest is counted from the PING, so that a node which
was itself asleep does not blame its peers. PONGs answer PINGs in order, each once.
"""

from __future__ import annotations

from collections import deque

from sealring_protocol.codec.messages import Ping, Pong, Progress
from sealring_protocol.errors import LimitExceeded, PeerTimeout, RemoteProtocolError
from sealring_protocol.limits import (
    MAX_UNANSWERED_PINGS,
    PING_INTERVAL,
    PING_TIMEOUT,
    PINGS_PER_SECOND,
)
from sealring_protocol.security.admission import TokenBucket


class Keepalive:
    """Both directions of one link. Times are monotonic seconds."""

    __slots__ = (
        "_asked",
        "_budget",
        "_echo",
        "_heard",
        "_pinged",
        "peer_progress",
        "progress",
        "rtt",
    )

    def __init__(self, now: float) -> None:
        self.progress = Progress()
        """What PINGs and PONGs say of this node."""
        self.peer_progress = Progress()
        """What the peer last said of itself."""
        self.rtt: float | None = None
        """Seconds that the last PING took, there and back."""
        self._heard = now
        self._pinged: float | None = None  # when, if nothing came since
        self._asked: deque[tuple[int, float]] = deque()  # PINGs that wait for their PONG
        self._echo = 0
        self._budget = TokenBucket(PINGS_PER_SECOND, now)

    def heard(self, now: float) -> None:
        """Bytes came from the peer."""
        self._heard = now
        self._pinged = None

    @property
    def deadline(self) -> float:
        """When a PING is due, or the peer is lost."""
        if self._pinged is None:
            return self._heard + PING_INTERVAL
        return self._pinged + PING_TIMEOUT - PING_INTERVAL

    def overdue(self, now: float) -> Ping:
        """The deadline has passed: the PING to send. Raises `PeerTimeout` if one was sent."""
        if self._pinged is not None:
            raise PeerTimeout(f"not a byte for {now - self._heard:.1f} s")
        if len(self._asked) >= MAX_UNANSWERED_PINGS:
            raise PeerTimeout(f"{len(self._asked)} PINGs without an answer")
        self._pinged = now
        self._echo += 1
        self._asked.append((self._echo, now))
        return Ping(self._echo, self.progress)

    def ping(self, ping: Ping, now: float) -> Pong:
        """The answer to the peer's *ping*. Raises `LimitExceeded` when there are too many."""
        if not self._budget.take(now):
            raise LimitExceeded(f"more than {PINGS_PER_SECOND} PINGs a second")
        self.peer_progress = ping.progress
        return Pong(ping.echo, self.progress)

    def pong(self, pong: Pong, now: float) -> None:
        """The peer answered. Raises `RemoteProtocolError` if it was not asked that."""
        if not self._asked or self._asked[0][0] != pong.echo:
            raise RemoteProtocolError("PONG to no PING")
        self.rtt = now - self._asked.popleft()[1]
        self.peer_progress = pong.progress
