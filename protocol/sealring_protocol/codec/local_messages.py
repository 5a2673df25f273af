"""The messages that only a node and its own engine process exchange, in local frames."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CannotServe,
    Checked,
    Epoch,
    Ping,
    Pong,
    Ready,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.limits import MAX_LOGPROBS, MAX_SCORES


@attrs.frozen
class EngineInfo:
    """What an engine reports of its model before it loads anything. Sizes are bytes.

    *ends* is the size of embedding, final norm and output head, which rank 0 holds; *head* is what
    a token reads of them, in thousandths of what it reads of a layer on average. *hop* is what a
    token's hidden states take between two ranks, at most; 0 if that is not known. A row may read
    *ahead* guesses after the first token of a step, if nobody says otherwise. *context* is the
    longest row in tokens. *room* is memory for weights and caches. Tensor parallelism works with
    any number of ranks that divides *splits* (0: none), over the back ends whose bit (``1 <<
    Backend``) is in *backends*. A pipeline cannot be cut before the layers *joined*, in rising
    order, for *reason*. Unless it *batches*, each row is decoded alone. *pins* are those of
    `Hello`.
    """

    CODE: ClassVar = MessageCode.ENGINE_INFO
    model: bytes
    dtype: DType
    hidden: int
    vocabulary: int
    context: int
    trimmable: bool
    room: int
    ends: int
    layers: tuple[int, ...]
    splits: int = 0
    backends: int = 0
    joined: tuple[int, ...] = ()
    reason: str = ""
    batches: bool = True
    pins: tuple[int, ...] = ()
    head: int = 0
    hop: int = 0
    ahead: int = 0

    def __attrs_post_init__(self) -> None:
        known = len(self.pins) in (0, len(self.layers) + 2)
        rule(known, "a pin of the files, the ends and each layer")
        places = pairwise((0, *self.joined, len(self.layers)))
        ordered = not self.joined or all(a < b for a, b in places)
        rule(ordered, "ENGINE_INFO joins layers that are not there, or out of order")


@attrs.frozen
class HopKey:
    """The activation secret of one direction of a step link, for the engine process.

    *suite* is the code of the AEAD; *cluster* goes into the associated data.
    """

    CODE: ClassVar = MessageCode.HOP_KEY
    outgoing: bool
    suite: int
    cluster: bytes
    secret: bytes = attrs.field(repr=False)


@attrs.frozen
class Logprobs:
    """Log probabilities of the token that step *n* gave row *uid*, from the unmodified logits: of
    the *chosen* token, and of the likeliest *ids* (*values*). It comes before the step's answer."""

    CODE: ClassVar = MessageCode.LOGPROBS
    n: int
    uid: int
    chosen: float
    ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(len(self.ids) == len(self.values), "a log probability for each id")
        rule(len(self.ids) <= MAX_LOGPROBS, f"at most {MAX_LOGPROBS} alternatives")


@attrs.frozen
class Scores:
    """How likely tokens of row *uid*'s prompt were, given all tokens before them, from the
    unmodified logits: of those that step *n* scores, the ones from *position* on.

    *chosen* has each token's log probability, *ranks* its place among the vocabulary, from 1: one
    more than there were likelier ones. *ids* (*values*) has the likeliest tokens in each place,
    equally many for each, all in one list. They come before the step's answer.
    """

    CODE: ClassVar = MessageCode.SCORES
    n: int
    uid: int
    position: int
    chosen: tuple[float, ...]
    ranks: tuple[int, ...]
    ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(0 < len(self.chosen) <= MAX_SCORES, f"scores are of 1 to {MAX_SCORES} tokens")
        rule(len(self.ranks) == len(self.chosen), "a rank for each score")
        rule(self.position > 0, "the first token follows nothing, and has no score")
        rule(len(self.ids) == len(self.values), "a log probability for each id")
        rule(len(self.ids) % len(self.chosen) == 0, "as many alternatives for each score")
        rule(self.alternatives <= MAX_LOGPROBS, f"at most {MAX_LOGPROBS} alternatives")

    @property
    def alternatives(self) -> int:
        """How many likeliest tokens there are for each place."""
        return len(self.ids) // len(self.chosen)

    @property
    def end(self) -> int:
        """The place after the last token."""
        return self.position + len(self.chosen)

    def since(self, position: int) -> Scores:
        """Those of the tokens from *position* on, which is before `end`."""
        skip = max(0, position - self.position)
        if not skip:
            return self
        cut = skip * self.alternatives
        return attrs.evolve(
            self,
            position=position,
            chosen=self.chosen[skip:],
            ranks=self.ranks[skip:],
            ids=self.ids[cut:],
            values=self.values[cut:],
        )


@attrs.frozen
class RowOver:
    """Row *uid* is over: nothing may follow the tokens that it had before step *n*. Without a
    *reason* it is complete; else that says why it cannot go on. It comes before the step's answer,
    in which the row's last token means nothing."""

    CODE: ClassVar = MessageCode.ROW_OVER
    n: int
    uid: int
    reason: str = ""


@attrs.frozen
class RowReady:
    """The answer to a ROW that came in *epoch* and had a grammar: row *uid* may decode, for what
    follows its grammar is made. With a *reason* it cannot be made, and the row must not decode.

    Each such ROW is answered once, in the order of ROWs."""

    CODE: ClassVar = MessageCode.ROW_READY
    epoch: Epoch
    uid: int
    reason: str = ""


@attrs.frozen
class Loaded:
    """The cost of loading: bytes *read* from disk, bytes of weights *held*, and *load_us*
    microseconds."""

    CODE: ClassVar = MessageCode.LOADED
    read: int
    held: int
    load_us: int


@attrs.frozen
class Group:
    """Make the engine member *rank* of *size* in a collective over *backend*.

    It comes without *hosts* before BOOTSTRAP: what the engine loads from then on is this member's
    share. It comes with *hosts* after LOADED: join within *deadline_ms*. *hosts* has each member's
    address and port as this member sees them. Over a ring, the member listens on its own and
    connects to its right neighbour's; elsewhere the first one coordinates. A process joins one
    group in its life.
    """

    CODE: ClassVar = MessageCode.GROUP
    backend: Backend
    rank: int
    size: int
    deadline_ms: int
    hosts: tuple[tuple[str, int], ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(self.rank < self.size, "GROUP names a member that the group does not have")
        rule(len(self.hosts) in (0, self.size), "GROUP has an address for only some members")
        rule(self.backend is not Backend.PIPELINE, "a pipeline is no collective")


@attrs.frozen
class Grouped:
    """The group of *size* is complete, and its sums are right. Medians in microseconds: *sum_us*
    for summing one row's hidden state, *token_us* for a forward of one token."""

    CODE: ClassVar = MessageCode.GROUPED
    size: int
    sum_us: int
    token_us: int


Told = Logprobs | Scores | RowOver | RowReady
"""What an engine reports of rows, beside its answers to steps."""

EngineMessage = EngineInfo | HopKey | Row | Loaded | Told | Group | Grouped
LocalMessage = (
    Ping | Pong | Ready | Bootstrap | Step | StepDone | CannotServe | Checked | EngineMessage
)
