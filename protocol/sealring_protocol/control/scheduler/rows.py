"""What the scheduler keeps of each row, its states among it, and of each step in flight."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from sealring_protocol.codec.messages import Row, Step, Work
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.scheduler.requests import (
    Request,
    RowOpened,
)
from sealring_protocol.limits import HISTORY_WEIGHT
from sealring_protocol.table import Machine, Table


class RowState(enum.Enum):
    """Where a row is. Private cache: PREFILL and READY. In a group: DECODE."""

    QUEUED = "queued"
    PREFILL = "prefill"
    READY = "ready"
    DECODE = "decode"
    PREEMPTED = "preempted"
    GONE = "gone"


class RowEvent(enum.Enum):
    """What moves a row."""

    OPEN = "open"
    READ = "read"
    JOIN = "join"
    PREEMPT = "preempt"
    END = "end"


ROW_TABLE: Final[Table[RowState, RowEvent]] = {
    (RowState.QUEUED, RowEvent.OPEN): RowState.PREFILL,
    (RowState.QUEUED, RowEvent.PREEMPT): RowState.QUEUED,
    (RowState.QUEUED, RowEvent.END): RowState.GONE,
    (RowState.PREFILL, RowEvent.READ): RowState.READY,
    (RowState.PREFILL, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.PREFILL, RowEvent.END): RowState.GONE,
    (RowState.READY, RowEvent.JOIN): RowState.DECODE,
    (RowState.READY, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.READY, RowEvent.END): RowState.GONE,
    (RowState.DECODE, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.DECODE, RowEvent.END): RowState.GONE,
    (RowState.PREEMPTED, RowEvent.OPEN): RowState.PREFILL,
    (RowState.PREEMPTED, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.PREEMPTED, RowEvent.END): RowState.GONE,
}


def row_machine() -> Machine[RowState, RowEvent]:
    """A row that waits to be opened."""
    return Machine(ROW_TABLE, RowState.QUEUED)


@attrs.define(eq=False)
class LiveRow:
    """A request that is not over: its *tokens* so far, of *end* at most, and where they are."""

    uid: int
    request: Request
    end: int
    tokens: list[int]
    state: Machine[RowState, RowEvent] = attrs.field(factory=row_machine)
    position: int = 0  # tokens that steps so far have put, or will put, into its cache
    handle: int = 0  # the snapshot that it is opened from
    kept: int = 0  # tokens of that snapshot
    flying: int = 0  # decode steps in flight
    group: int = 0
    failures: int = 0
    stalls: int = 0
    tries: int = 0  # lost steps since its last token
    suspect: bool = False
    leader: LiveRow | None = None  # another one that reads the same prompt for both
    followers: int = 0

    @property
    def sampling(self) -> Row:
        """How the engine samples it, from where it is now."""
        asked = self.request.sampling
        if not asked.penalised:
            return attrs.evolve(asked, uid=self.uid)
        history = tuple(self.tokens)
        return attrs.evolve(asked, uid=self.uid, history=history, generated=self.emitted)

    @property
    def told(self) -> int:
        """Token ids in the history that its ROW tells."""
        return len(self.tokens) if self.request.sampling.penalised else 0

    @property
    def row_weight(self) -> int:
        """What its ROW weighs."""
        return weight(self.request.sampling) + HISTORY_WEIGHT * self.told

    @property
    def emitted(self) -> int:
        """Tokens that it was given."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def unread(self) -> int:
        """Tokens to prefill: all but the last, which the first decode takes."""
        return len(self.tokens) - 1 - self.position

    @property
    def led(self) -> bool:
        """Another row is still reading, or about to read, what this one needs."""
        return self.leader is not None and self.leader.state.state in _BEFORE_READY


_BEFORE_READY = (RowState.QUEUED, RowState.PREFILL, RowState.PREEMPTED)


@attrs.frozen
class Flight:
    """A step that waits for its answer: its rows, and the position of the token each will give. It
    is of that *weight* (`limits.MAX_WEIGHT_WAITING`), and *back* once all that is left of it is the
    head's to do."""

    work: Work
    uids: tuple[int, ...]
    positions: tuple[int, ...]
    sent: float
    weight: int = 0
    back: bool = False


@attrs.frozen
class Planned:
    """The next *step*, how the *rows* that it opens are sampled, and what of them is *opened*."""

    step: Step
    rows: tuple[Row, ...]
    opened: tuple[RowOpened, ...]
