"""The scheduler's requests, configuration and results."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cached_property
from typing import ClassVar

import attrs

from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.codec.messages import Row
from sealring_protocol.errors import LocalProtocolError


@attrs.frozen
class SchedulerConfig:
    """The scheduler's limits.

    *groups* of at most *rows* rows decode (0 groups: the head chooses), and *queue* rows may wait.
    A prefill *chunk* has at most so many tokens; other rows' tokens come at most about
    *chunk_seconds* later because of chunks.
    At most *prefixes* snapshots are kept, in at most the fraction *prefix_share* of the ranks'
    room. A request ends when it fails alone and more than *retries* forwards with it have failed,
    or after more than *stalls* lost steps without a token between them. A token's hidden state has
    *hidden_bytes* bytes, and the layers have *weights* bytes; 0 if that is not known.

    A row that is alone in its group may read up to *ahead* guesses after the first token of a step,
    where that pays.
    None means what the head's engine says (`EngineInfo.ahead`). Guesses are below *vocabulary*; 0
    is no bound. Texts call the *ranks* so (`words.named`).
    """

    groups: int = 0
    rows: int = 8
    queue: int = 256
    chunk: int = 2048
    chunk_seconds: float = 0.5
    prefixes: int = 0
    prefix_share: float = 0.25
    retries: int = 2
    stalls: int = 32
    hidden_bytes: int = 0
    ahead: int | None = None
    vocabulary: int = 0
    weights: int = 0
    ranks: tuple[str, ...] = ()


class TokenIds(tuple[int, ...]):
    """Token ids that any number of requests may share: what looks at all of them is worked out
    once, and `TokenIds` of them are no copy."""

    def __new__(cls, ids: Iterable[int] = ()) -> TokenIds:
        """*ids* themselves, if they are `TokenIds`."""
        return ids if isinstance(ids, TokenIds) else super().__new__(cls, ids)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest of them; 0 and 0 if there are none."""
        return min(self, default=0), max(self, default=0)

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@attrs.frozen
class Request:
    """Continue *prompt* (token ids) by at most *max_tokens*; None means as many as the context
    allows. With 0 the prompt is read, and no token is drawn.

    With *scores* it gets how likely each token of the prompt but the first was, as
    *sampling* says of the tokens that are drawn (`Row.logprobs`).

    A token in *eos* ends the row and is not output, and comes after *min_tokens* others at the
    earliest. *sampling* is a `Row` without uid, history, least length and ends.
    *prediction* has tokens that the answer is likely to contain: guesses are looked up there, too.
    *guesses* has a guess for each place of the answer; then none is looked up.
    *drawn* are the tokens of the answer that are known already, none of them in *eos*: the row goes
    on after them as if it had drawn them itself. They count to *max_tokens*, are not output again,
    and no scores come if there are any.
    Owners take turns in the queue. Snapshots of a row serve only later requests of the same *owner*
    and *scope*. The scope separates callers that share an owner's turns. *branches* are lengths of
    the prompt at which a later one is likely to go another way.
    """

    prompt: TokenIds = attrs.field(converter=TokenIds)
    max_tokens: int | None = None
    eos: frozenset[int] = frozenset()
    sampling: Row = attrs.field(factory=lambda: Row(0))
    owner: str = ""
    scope: str = ""
    prediction: TokenIds = attrs.field(default=TokenIds(), converter=TokenIds)
    guesses: tuple[int, ...] | None = None
    scores: bool = False
    min_tokens: int = 0
    branches: tuple[int, ...] = ()
    drawn: TokenIds = attrs.field(default=TokenIds(), converter=TokenIds)

    @property
    def known(self) -> int:
        """The number of its tokens before the first that is still to be drawn."""
        return len(self.prompt) + len(self.drawn)

    @property
    def sharer(self) -> tuple[str, str]:
        """The key of the snapshots that it may use, and that its own are kept under."""
        return self.owner, self.scope


class ContextOverflow(LocalProtocolError):
    """The *prompt* tokens and the *asked* further ones exceed the model's *context*, in tokens."""

    HOLDER: ClassVar = "the model's context"

    def __init__(self, prompt: int, asked: int, context: int) -> None:
        more, cure = (f" and {asked} more are asked for", " or lower max_tokens")
        if asked <= 1:  # the shortest answer that there is
            more = cure = ""
        super().__init__(
            f"the prompt has {prompt} tokens{more}; {self.HOLDER} holds {context}, the answer's "
            f"included. Shorten the prompt{cure}"
        )
        self.prompt, self.asked, self.context = prompt, asked, context


class HistoryOverflow(ContextOverflow):
    """As `ContextOverflow`, for a request of which every token depends on all earlier ones: its ROW
    has them, and holds no more than *context*."""

    HOLDER = "a request with penalties, a form or bad words"


class RoomOverflow(LocalProtocolError):
    """The caches of *tokens* tokens exceed the *room*, in tokens, of the tightest rank, even
    alone."""

    def __init__(self, tokens: int, room: int) -> None:
        super().__init__(
            f"the request needs the caches of {tokens} tokens, and the tightest rank has room for "
            f"{room}. Shorten the prompt, lower max_tokens, or give the ranks more memory"
        )
        self.tokens, self.room = tokens, room


class QueueFull(LocalProtocolError):
    """The queue is full: *waiting* requests wait already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already, and the queue is full; try again later")
        self.waiting = waiting


class NotServed(LocalProtocolError):
    """The ring cannot serve until somebody changes something; the message says what is in the
    way."""


class NoMajority(NotServed):
    """The head does not lead: a majority of the members may have another one. The message says who
    is missing."""


class FinishReason(enum.Enum):
    """Why a request ended. REFUSED: the ring cannot serve until somebody changes something. UNHELD:
    the grammar that holds it cannot be followed any further."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"
    UNHELD = "unheld"


@attrs.frozen
class TokenOut:
    """A token of row *uid*, at *position* from the start of its prompt."""

    uid: int
    token: int
    position: int
    logprobs: Logprobs | None = None


@attrs.frozen
class ScoresOut:
    """Scores of the next tokens of row *uid*'s prompt. Those of all its tokens but the first come,
    in order and once, before the first token that is drawn."""

    uid: int
    scores: Scores


@attrs.frozen
class RequestDone:
    """Row *uid* is over. *message* gives details where *reason* is not enough. Of the guesses of
    its tokens so many were *accepted* and *rejected*."""

    uid: int
    reason: FinishReason
    message: str = ""
    accepted: int = 0
    rejected: int = 0


@attrs.frozen
class RowOpened:
    """The prefill of row *uid* begins. Of its *tokens* tokens the first *cached* come from a
    snapshot."""

    uid: int
    tokens: int
    cached: int


Outcome = TokenOut | ScoresOut | RequestDone
