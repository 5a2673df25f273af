"""When the strategy `auto` gives up tensor parallelism, because its collective does not come up.

A collective that has never worked gets one try. One that once worked gets several, and so does one
whose links broke, because a node may just have left. Weights that are not there yet are no fault of
tensor parallelism.
"""

from __future__ import annotations

import math
from typing import Final

from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.limits import PING_TIMEOUT

TENSOR_TRIES: Final = 3
"""Tries in a row that a collective which has worked gets to come up again."""


class TensorTries:
    """The tries that are left. Times are monotonic seconds."""

    __slots__ = ("_cut_at", "_cuts", "_left")

    def __init__(self) -> None:
        self._left = 1
        self._cuts = 0  # times in a row that links broke while a collective came up
        self._cut_at = -math.inf

    def worked(self) -> None:
        """The collective has come up."""
        self._left = TENSOR_TRIES
        self._cuts = 0

    def failed(self, kind: FailureKind, now: float) -> bool:
        """The collective did not come up, by a failure of *kind*. True if no try is left."""
        if kind is FailureKind.LOAD:
            return False
        if kind is not FailureKind.LINK_LOST:
            self._left -= 1
            return self._left <= 0
        if now - self._cut_at > PING_TIMEOUT:  # all links of one lost node count once
            self._cuts += 1
            self._cut_at = now
        return self._cuts >= TENSOR_TRIES
