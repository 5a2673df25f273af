"""What a caller asks of the scheduler, how it is set, and what comes back."""

from __future__ import annotations

import enum

import attrs

from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import Row
from sealring_protocol.errors import LocalProtocolError


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


@attrs.frozen
class Request:
    """Continue *prompt* (token ids) by at most *max_tokens*, or by what the context allows if 0.

    A token in *eos* ends the row and is not given out. *sampling* is a `Row` without its uid and
    history. Whoever asks is the *owner*: owners take turns in the queue. What the ranks keep of a
    row serves later requests of the same owner in the same *scope*, and no others: a scope is what
    tells apart callers who take turns as one.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 0
    eos: frozenset[int] = frozenset()
    sampling: Row = attrs.field(factory=lambda: Row(0))
    owner: str = ""
    scope: str = ""

    @property
    def sharer(self) -> tuple[str, str]:
        """Whose snapshots it may continue, and whose its own may serve."""
        return self.owner, self.scope


class ContextOverflow(LocalProtocolError):
    """A prompt of *prompt* tokens and *asked* more are beyond the model's *context*."""

    def __init__(self, prompt: int, asked: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt} tokens and {asked} more are asked for; the model's context "
            f"holds {context}. Shorten the prompt or lower max_tokens"
        )
        self.prompt, self.asked, self.context = prompt, asked, context


class RoomOverflow(LocalProtocolError):
    """*tokens* tokens are beyond the *room* for caches of the ring's tightest rank, even alone."""

    def __init__(self, tokens: int, room: int) -> None:
        super().__init__(
            f"the request needs the caches of {tokens} tokens, and the tightest rank has room for "
            f"{room}. Shorten the prompt, lower max_tokens, or give the ranks more memory"
        )
        self.tokens, self.room = tokens, room


class QueueFull(LocalProtocolError):
    """*waiting* requests wait already; that is all the queue takes."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already, as many as may; try again later")
        self.waiting = waiting


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@attrs.frozen
class TokenOut:
    """A token of row *uid*, at *position* from the start of its prompt."""

    uid: int
    token: int
    position: int
    logprobs: Logprobs | None = None


@attrs.frozen
class RequestDone:
    """Row *uid* is over; *message* says why where the reason alone does not."""

    uid: int
    reason: FinishReason
    message: str = ""


@attrs.frozen
class RowOpened:
    """Row *uid* is being read in; the first *cached* of its *tokens* were there already."""

    uid: int
    tokens: int
    cached: int


Outcome = TokenOut | RequestDone
