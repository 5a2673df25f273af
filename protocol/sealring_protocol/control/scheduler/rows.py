"""What the scheduler keeps of each row and of each step in flight, and its settings."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Epoch, Row, Step, Work
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.scheduler.requests import (
    Request,
    RowEvent,
    RowOpened,
    RowState,
    row_machine,
)
from sealring_protocol.limits import HISTORY_WEIGHT
from sealring_protocol.table import Machine


@attrs.frozen
class SchedulerConfig:
    """*groups* of at most *rows* rows (0 groups: the head chooses); *queue* rows may wait.

    Prefill *chunk* in tokens, at most *chunks* in flight and *chunk_seconds* each. *prefixes*
    snapshots at most, in *prefix_share* of the ranks' room. A request ends after more than
    *retries* forwards that failed on it, or *stalls* lost steps without a token between them. A
    token's hidden state is of *hidden_bytes*.
    """

    groups: int = 0
    rows: int = 8
    queue: int = 256
    chunk: int = 512
    chunks: int = 2
    chunk_seconds: float = 0.5
    prefixes: int = 0
    prefix_share: float = 0.25
    retries: int = 2
    stalls: int = 32
    hidden_bytes: int = 0


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
class Loss:
    """What was under way when *epoch* was lost: the rows of the step that failed, those of all
    steps, whether one row alone had caches, and what these took by rank: all, and the largest."""

    epoch: Epoch | None
    uids: tuple[int, ...]
    all_uids: tuple[int, ...]
    alone: bool
    taken: tuple[tuple[int, int], ...]


@attrs.frozen
class Planned:
    """The next *step*, how the *rows* that it opens are sampled, and what of them is *opened*."""

    step: Step
    rows: tuple[Row, ...]
    opened: tuple[RowOpened, ...]
