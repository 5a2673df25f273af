"""What a rank's brain asks the node around it to do: the outputs of `control.head` and
`control.epoch.follower`. They name ranks, not addresses, and messages, not bytes."""

from __future__ import annotations

import enum

import attrs

from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Checked, Epoch, Message, Spent, Work
from sealring_protocol.control.requests import RequestDone, RowOpened, ScoresOut, TokenOut
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
    """Keep a link with *purpose* to *rank* up from now on: dial it now, and again whenever it is
    lost. If this end *yields*, it dials a moment later, because the other end wants the same link
    and dials first."""

    rank: int
    purpose: Purpose
    yields: bool = False


@attrs.frozen
class Shut:
    """Close the link with *purpose* to *rank*, and tell it *code* and *reason*."""

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
    """Kill the engine process, whatever it is doing, and start another. A *planned* restart follows
    at once, without back-off, because nothing is wrong with the engine."""

    reason: str
    planned: bool = False


@attrs.frozen
class PrepareCollective:
    """Find a free port for the engine to listen on. If *sealed*, also open a relay for the engine's
    outgoing connection. Answer by `Node.collective_prepared` or `Node.collective_failed`.

    An *epoch* has at most one collective. A later epoch's collective, or `EndCollective`, ends it.
    """

    epoch: Epoch
    sealed: bool


@attrs.frozen
class EndCollective:
    """Close the listener and the connections of *epoch*'s collective at once, which unblocks any
    rank that hangs in it."""

    epoch: Epoch


class Level(enum.Enum):
    """How important a note is to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Note:
    """A line for the log, in plain words. `links.logs.Notes` limits the rate of each *kind*; a note
    without a kind is limited by its text."""

    level: Level
    text: str
    kind: str = ""


@attrs.frozen
class StepTiming:
    """Where the time of step *n* went. The step did *work* for the rows *uids*. *total_us* is the
    time in microseconds from the head's order to its engine until the answer. *spent* has the time
    of each rank that the step reached, by rank.

    In a ring of several ranks *closing* is the head's second pass: norm, output head and sampling.
    If *parallel*, all ranks worked at the same time.
    """

    n: int
    work: Work
    uids: tuple[int, ...]
    total_us: int
    spent: tuple[Spent, ...]
    closing: Spent = attrs.field(factory=Spent)
    parallel: bool = False

    @property
    def away_us(self) -> int:
        """Microseconds on the network: no rank computed, queued or sealed the step."""
        parts = [p.compute_us + p.wait_us + p.seal_us for p in (*self.spent, self.closing)]
        return max(0, self.total_us - (max(parts) if self.parallel else sum(parts)))


@attrs.frozen
class StepToCheck:
    """Step *n* of a checked epoch begins. It reads *tokens* tokens of each of *rows*: a uid, and
    the position of the first of them. Only a decode draws tokens."""

    n: int
    rows: tuple[tuple[int, int], ...]
    tokens: int
    is_decode: bool


@attrs.frozen
class StepChecked:
    """The fingerprints that *rank* sent of a step."""

    rank: int
    message: Checked


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
    | ScoresOut
    | RequestDone
    | RowOpened
    | StepTiming
    | StepToCheck
    | StepChecked
)
