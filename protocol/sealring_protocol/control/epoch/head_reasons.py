"""A follower's record of why the head begins no epoch, as told by WAITING."""

from __future__ import annotations

from sealring_protocol.codec.messages import Reason, Waiting
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import NO_RANK, WAITINGS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket


class HeadReasons:
    """The head's last WAITING to a rank of *world*. Times are monotonic seconds."""

    __slots__ = ("_bucket", "_world", "no_epoch", "reasons")

    def __init__(self, world: int) -> None:
        self._world = world
        self._bucket = TokenBucket(WAITINGS_PER_SECOND, 0.0)
        self.no_epoch = False
        """The head has said that there is no epoch, and no epoch has begun since."""
        self.reasons: dict[Reason, float] = {}
        """Each reason, with the time it was first heard."""

    def hear(self, waiting: Waiting, now: float) -> None:
        """The head sent *waiting*. Raises `LimitExceeded` if the head sends too many, and
        `RemoteProtocolError` if it names a rank that does not exist."""
        if not self._bucket.take(now):
            raise LimitExceeded(f"more than {WAITINGS_PER_SECOND} WAITINGs a second")
        strange = [r.rank for r in waiting.reasons if r.rank not in (*range(self._world), NO_RANK)]
        if strange:
            raise RemoteProtocolError(f"WAITING is about rank {strange[0]} of {self._world}")
        known = self.reasons
        self.no_epoch = True
        self.reasons = {reason: known.get(reason, now) for reason in waiting.reasons}

    def withdraw(self) -> None:
        """Forget the reasons: an epoch begins, or the head is gone."""
        self.no_epoch = False
        self.reasons = {}
