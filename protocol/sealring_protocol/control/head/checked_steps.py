"""A checked epoch on the head: what each step was, and which fingerprints belong to it.

Every rank sends CHECKED on its control link, which may be slower than the chain: it may come when
its step has been answered. So the head remembers the last steps. A rank's numbers are passed on as
the claim of that rank. They change nothing that the ring does.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

from sealring_protocol.codec.messages import Checked, Decode, Prefill, Work
from sealring_protocol.control.effects import StepChecked, StepToCheck
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_STEPS_WAITING

_REMEMBERED: Final = 8 * MAX_STEPS_WAITING
"""Steps whose shape is kept. Memory: three numbers each. Fingerprints of older ones are dropped."""


@attrs.frozen
class _Shape:
    n: int
    rows: int
    tokens: int


class CheckedSteps:
    """The steps of a checked epoch of *world* ranks. In a pipeline of several ranks the head sends
    CHECKED for its second pass, too."""

    def __init__(self, world: int) -> None:
        self._shapes: deque[_Shape] = deque(maxlen=_REMEMBERED)
        self._last = [0] * world  # the step of each rank's last CHECKED
        self._closed = 0  # the same of the head's second pass

    def planned(
        self, n: int, work: Work, uids: tuple[int, ...], lengths: tuple[int, ...]
    ) -> list[StepToCheck]:
        """Step *n* does *work* for the rows *uids*; after it, their caches hold *lengths* tokens.
        A step without work has nothing to check."""
        match work:
            case Prefill(uid, position, count):
                rows: tuple[tuple[int, int], ...] = ((uid, position),)
            case Decode():
                rows = tuple((uid, at - 1) for uid, at in zip(uids, lengths, strict=True))
                count = 1
            case _:
                return []
        self._shapes.append(_Shape(n, len(rows), count))
        return [StepToCheck(n, rows, count, isinstance(work, Decode))]

    def came(self, rank: int, message: Checked) -> list[StepChecked]:
        """*rank* sent *message* of this epoch. Raises `RemoteProtocolError` unless it is the one
        that is due for a step that was planned."""
        last = self._closed if message.closing else self._last[rank]
        newest = self._shapes[-1].n if self._shapes else 0
        if message.closing and rank:
            raise RemoteProtocolError(f"rank {rank} sent fingerprints of the head's second pass")
        if not last < message.n <= newest:
            raise RemoteProtocolError(f"fingerprints of step {message.n}, which are not due")
        if message.n < self._shapes[0].n:
            return []
        shape = next((each for each in self._shapes if each.n == message.n), None)
        if shape is None or (message.rows, message.tokens) != (shape.rows, shape.tokens):
            raise RemoteProtocolError(f"fingerprints of step {message.n} have another shape")
        if message.closing:
            self._closed = message.n
        else:
            self._last[rank] = message.n
        return [StepChecked(rank, message)]
