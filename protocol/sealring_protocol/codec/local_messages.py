"""The messages that only a node and its own engine process exchange, in local frames."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CannotServe,
    Ping,
    Pong,
    Ready,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.limits import MAX_LOGPROBS


@attrs.frozen
class EngineInfo:
    """What an engine says of its model before it loads anything. Sizes are bytes.

    *ends* is the size of embedding, final norm and output head, which rank 0 holds; *context* is
    the longest row in tokens; *room* is memory for weights and caches. Tensor parallelism can
    take any number of ranks that divides *splits*, none if that is 0, over the back ends that
    have their bit (``1 << Backend``) in *backends*. A pipeline cannot be cut before the layers
    *joined*, rising, for *reason*.
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


@attrs.frozen
class HopKey:
    """The activation secret of one direction of a step link, handed to the process that computes.

    *suite* is the code of the AEAD; *cluster* goes into the associated data.
    """

    CODE: ClassVar = MessageCode.HOP_KEY
    outgoing: bool
    suite: int
    cluster: bytes
    secret: bytes = attrs.field(repr=False)


@attrs.frozen
class Logprobs:
    """Log probabilities, from the logits as they were, of the token that step *n* gave row *uid*:
    the *chosen* one's, and the likeliest *ids*' *values*. It comes before the step's answer."""

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
class Loaded:
    """What loading cost: bytes *read* from disk, bytes of weights *held*, *load_us*."""

    CODE: ClassVar = MessageCode.LOADED
    read: int
    held: int
    load_us: int


@attrs.frozen
class Group:
    """Be member *rank* of *size* of a collective over *backend*.

    Without *hosts*, before BOOTSTRAP: what is loaded from now on is this member's share. With
    them, after LOADED: join within *deadline_ms*. *hosts* are as this member is to see them: over
    a ring it listens on its own entry and connects to its right neighbour's; elsewhere the first
    one coordinates. A process joins one group in its life.
    """

    CODE: ClassVar = MessageCode.GROUP
    backend: Backend
    rank: int
    size: int
    deadline_ms: int
    hosts: tuple[tuple[str, int], ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(self.rank < self.size, "GROUP names a member that the group does not have")
        rule(len(self.hosts) in (0, self.size), "GROUP has an address for some members")
        rule(self.backend is not Backend.PIPELINE, "a pipeline is no collective")


@attrs.frozen
class Grouped:
    """The group of *size* stands, and sums right. Medians, microseconds: *sum_us* of summing one
    row's hidden state, *token_us* of a forward of one token."""

    CODE: ClassVar = MessageCode.GROUPED
    size: int
    sum_us: int
    token_us: int


EngineMessage = EngineInfo | HopKey | Row | Loaded | Logprobs | Group | Grouped
LocalMessage = Ping | Pong | Ready | Bootstrap | Step | StepDone | CannotServe | EngineMessage
