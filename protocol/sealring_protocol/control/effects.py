"""What a rank's brain asks of the node around it: the outputs of `control.head` and
`control.follower`. Ranks, not addresses; messages, not bytes."""

from __future__ import annotations

import enum

import attrs

from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Epoch, Message, Spent, Work
from sealring_protocol.control.scheduler.requests import RequestDone, RowOpened, TokenOut
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class Send:
    """Send *message* to *rank* over the link with *purpose*, if it is up."""

    rank: int
    purpose: Purpose
    message: Message


@attrs.frozen
class Want:
    """Keep a link with *purpose* to *rank* up from now on: dial it, and again when it is lost; a
    moment later if this end *yields*, for then the other end wants it too, and dials first."""

    rank: int
    purpose: Purpose
    yields: bool = False


@attrs.frozen
class Shut:
    """Close the link with *purpose* to *rank*, telling it why."""

    rank: int
    purpose: Purpose
    code: CloseCode
    reason: str


@attrs.frozen
class ToEngine:
    """Give *message* to the engine process."""

    message: LocalMessage


@attrs.frozen
class RestartEngine:
    """Kill the engine process, whatever it does, and start another: at once if that is *planned*,
    for then nothing is wrong with it."""

    reason: str
    planned: bool = False


@attrs.frozen
class PrepareCollective:
    """Find a free port for the engine to listen on, and, if *sealed*, open a relay for what it
    connects to; answer by `Node.collective_prepared` or `Node.collective_failed`.

    There is one in an *epoch*; that of a later one, or `EndCollective`, ends it.
    """

    epoch: Epoch
    sealed: bool


@attrs.frozen
class EndCollective:
    """Close the listener and the connections of *epoch*'s collective, at once: that frees who hangs
    there."""

    epoch: Epoch


class Level(enum.Enum):
    """How much a note matters to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Note:
    """A line for the log, in plain words. Lines of one *kind* have a bound (`notes.Notes`, which
    goes by the text where there is none)."""

    level: Level
    text: str
    kind: str = ""


@attrs.frozen
class StepTiming:
    """Step *n*, which did *work* for the rows *uids*, took *total_us* from the head's order to its
    engine to the answer; *spent* says where, by rank, as far as ranks came to it. In a ring of
    several ranks *closing* is the head's second pass: norm, output head, sampling. In *parallel*
    all ranks worked at the same time."""

    n: int
    work: Work
    uids: tuple[int, ...]
    total_us: int
    spent: tuple[Spent, ...]
    closing: Spent = attrs.field(factory=Spent)
    parallel: bool = False

    @property
    def away_us(self) -> int:
        """Microseconds in which no rank worked on it, had it wait, or sealed: the way."""
        parts = [p.compute_us + p.wait_us + p.seal_us for p in (*self.spent, self.closing)]
        return max(0, self.total_us - (max(parts) if self.parallel else sum(parts)))


Effect = (
    Send
    | Want
    | Shut
    | ToEngine
    | RestartEngine
    | PrepareCollective
    | EndCollective
    | Note
    | TokenOut
    | RequestDone
    | RowOpened
    | StepTiming
)
