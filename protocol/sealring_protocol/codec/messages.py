"""Every message that travels in a sealed frame, each with its one encoding.

A message is a frozen value and says what it means; its bytes are in `codec.encoding`. INIT, RESP
and FIN, which travel in handshake frames, live in `security.handshake`. The last section holds
the messages that only a node and its own engine process exchange, in local frames.
"""

from __future__ import annotations

import enum
import math
from itertools import pairwise
from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.waiting import Waiting
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_LOGPROBS, NO_GROUP


@attrs.frozen(order=True)
class Epoch:
    """A life of the ring: the head's *instance* (random, per process) and its *counter*."""

    instance: int
    counter: int


NO_EPOCH: Final = Epoch(0, 0)

NO_LOGPROBS: Final = 255
"""`Row.logprobs` of a row that wants none, not even the chosen token's."""


class FailureKind(enum.IntEnum):
    """What went wrong on a rank."""

    ENGINE_ERROR = 1
    ENGINE_LOST = 2
    LEDGER = 3
    LINK_LOST = 4
    DEADLINE = 5
    MEMORY = 6
    INTEGRITY = 7
    LOAD = 8
    GROUP = 9


@attrs.frozen
class Failure:
    """A step that could not be done: on which *rank*, what *kind*, and a short *message*."""

    rank: int
    kind: FailureKind
    message: str


@attrs.frozen
class Progress:
    """Counters that PING and PONG carry, all since the process began.

    Times are microseconds, sizes are bytes. *starved_us* is how long the engine was ready to run
    and had no processor, or waited for memory to be read back from disk.
    """

    steps_received: int = 0
    steps_answered: int = 0
    compute_us: int = 0
    seal_us: int = 0
    rows: int = 0
    memory: int = 0
    cache: int = 0
    starved_us: int = 0


@attrs.frozen
class Ping:
    """Are you there? Answered by a `Pong` with the same *echo*."""

    CODE: ClassVar = MessageCode.PING
    echo: int
    progress: Progress


@attrs.frozen
class Pong:
    """The answer to a `Ping`."""

    CODE: ClassVar = MessageCode.PONG
    echo: int
    progress: Progress


@attrs.frozen
class Accept:
    """The responder's first sealed frame: transcript hash, its serial, its roster if newer."""

    CODE: ClassVar = MessageCode.ACCEPT
    transcript: bytes
    serial: int
    roster: bytes


@attrs.frozen
class Close:
    """Ends both directions of a link. *code* is a `CloseCode`, or one of a later version."""

    CODE: ClassVar = MessageCode.CLOSE
    code: int
    reason: str


@attrs.frozen
class CacheCost:
    """What one row costs this rank in its KV cache, bytes: *fixed*, then *per_token*, then for
    each window ``(tokens, per_token)`` no more than its tokens."""

    fixed: int
    per_token: int
    windows: tuple[tuple[int, int], ...] = ()

    def of(self, tokens: int) -> int:
        """Bytes of a row of *tokens*."""
        windowed = sum(min(tokens, window) * cost for window, cost in self.windows)
        return self.fixed + self.per_token * tokens + windowed


@attrs.frozen
class Hello:
    """A rank presents itself: its *model*, which has so many *layers*, whose hidden states have
    *hidden* elements of *dtype*; *room* is bytes for weights and caches."""

    CODE: ClassVar = MessageCode.HELLO
    model: bytes
    layers: int
    dtype: DType
    hidden: int
    room: int


@attrs.frozen
class Prepared:
    """A rank has loaded its share for a collective, whose *port* its engine will listen on."""

    CODE: ClassVar = MessageCode.PREPARED
    epoch: Epoch
    port: int

    def __attrs_post_init__(self) -> None:
        rule(self.port > 0, "PREPARED has no port")


@attrs.frozen
class Ready:
    """A rank can serve *epoch* with its layers: from *first* to *last*, the latter excluded.

    Raises `LocalProtocolError`, as the other messages do, when the fields contradict each other.

    *room* is bytes for caches, *cost* what a row takes of it; caches that are *trimmable* can be
    cut at any token. Of a rank that has joined a collective *sum_us* and *token_us* are medians, in
    microseconds, of summing one row's hidden state over all ranks and of a forward of one token.
    """

    CODE: ClassVar = MessageCode.READY
    epoch: Epoch
    first: int
    last: int
    trimmable: bool
    room: int
    cost: CacheCost
    sum_us: int = 0
    token_us: int = 0

    def __attrs_post_init__(self) -> None:
        rule(self.first <= self.last, "READY's layers end before they begin")


class Backend(enum.IntEnum):
    """How the ranks of an epoch work together."""

    PIPELINE = 1
    RING = 2
    JACCL = 3
    NCCL = 4


@attrs.frozen
class Bootstrap:
    """Step 0 of an epoch: the receiver's place in it.

    In a pipeline *bounds* are the first layers of the ranks and the number of layers, so rank i
    holds ``bounds[i]:bounds[i + 1]``. With any other back end every rank has all layers, *bounds*
    are 0 and their number, and *hosts* has an address and port for every rank. It comes twice
    then: with ports of 0, to load one's share and prepare for the collective; with the ports that
    all ranks answered, to join. *trusted* has the collective go beside the sealed links.

    The first of two is answered by `Prepared`, any other by `Ready`; either by `CannotServe` if it
    cannot be done.
    """

    CODE: ClassVar = MessageCode.BOOTSTRAP
    epoch: Epoch
    backend: Backend
    rank: int
    inner_seal: bool
    deadline_ms: int
    model: bytes
    bounds: tuple[int, ...]
    hosts: tuple[tuple[str, int], ...] = ()
    trusted: bool = False

    def __attrs_post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.bounds))
        rule(
            len(self.bounds) > 1 and self.bounds[0] == 0 and rising,
            "BOOTSTRAP's layer bounds do not rise from 0",
        )
        rule(self.rank < self.world, "BOOTSTRAP names a rank that the ring does not have")
        if self.backend is Backend.PIPELINE:
            rule(not self.hosts and not self.trusted, "a pipeline has no collective")
            return
        sealable = self.backend is Backend.RING
        rule(sealable or self.trusted, "what this back end sends cannot be sealed")
        rule(len(self.bounds) == 2, "ranks of a collective have all layers")
        rule(len(self.hosts) > 1, "a collective has two ranks or more")
        ports = {port > 0 for _, port in self.hosts}
        rule(len(ports) == 1, "BOOTSTRAP gives a port to some ranks and not to others")

    @property
    def world(self) -> int:
        """Ranks in the epoch."""
        return len(self.bounds) - 1 if self.backend is Backend.PIPELINE else len(self.hosts)

    @property
    def joins(self) -> bool:
        """The ranks of a collective are to join now."""
        return any(port for _, port in self.hosts)


@attrs.frozen
class NoWork:
    """The step only changes the ledger."""


@attrs.frozen
class Prefill:
    """Read *count* tokens of row *uid* into its private cache, from *position* on."""

    uid: int
    position: int
    count: int

    def __attrs_post_init__(self) -> None:
        rule(self.count > 0, "a prefill reads at least one token")


@attrs.frozen
class Decode:
    """One token for every row of *group*."""

    group: int

    def __attrs_post_init__(self) -> None:
        rule(self.group != NO_GROUP, "no group has the number 0xFFFF")


Work = NoWork | Prefill | Decode
NO_WORK: Final = NoWork()


@attrs.frozen
class Open:
    """Begin row *uid*; with *handle*, from the first *keep* tokens of that snapshot."""

    uid: int
    handle: int = 0
    keep: int = 0


@attrs.frozen
class Save:
    """Keep row *uid*'s private cache as snapshot *handle*."""

    uid: int
    handle: int


@attrs.frozen
class Join:
    """Move row *uid* from its private cache to the end of *group*."""

    uid: int
    group: int

    def __attrs_post_init__(self) -> None:
        rule(self.group != NO_GROUP, "no group has the number 0xFFFF")


@attrs.frozen
class Spent:
    """Where a rank's time with one step went, microseconds: its work on the device, waiting for
    its turn there, and sealing and opening hidden states."""

    compute_us: int = 0
    wait_us: int = 0
    seal_us: int = 0


@attrs.frozen
class Step:
    """Everything that one step depends on; applied in the order of the fields.

    *digest* is the ledger's after the step. *ids* holds one token per join, in order, and then
    the tokens of a prefill; they go to engines that hold the embedding, and never down a chain.
    *drop* takes row uids and snapshot handles, which share one number space. *spent* has an entry
    of every rank that has done with it, in order.
    """

    CODE: ClassVar = MessageCode.STEP
    epoch: Epoch
    n: int
    digest: bytes
    save: tuple[Save, ...] = ()
    evict: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    open: tuple[Open, ...] = ()
    join: tuple[Join, ...] = ()
    work: Work = NO_WORK
    ids: tuple[int, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    failed: Failure | None = None
    spent: tuple[Spent, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether rows or snapshots come, go or move before its work is done."""
        return bool(self.save or self.evict or self.drop or self.open or self.join)


@attrs.frozen
class StepDone:
    """The one answer to a step. It holds one thing at most: the hidden states that come back
    (*tensors*), the tokens that were drawn (*ids*), or why it *failed*. The answer to a prefill,
    and to a step without work, holds none.

    *spent* has an entry of every rank that worked on it, in order; where the head's engine has
    drawn tokens of what came back, that closing pass is the last.
    """

    CODE: ClassVar = MessageCode.STEP_DONE
    epoch: Epoch
    n: int
    ids: tuple[int, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    failed: Failure | None = None
    spent: tuple[Spent, ...] = ()

    def __attrs_post_init__(self) -> None:
        # Not by `rule`: this is made for every token.
        if (self.ids and self.tensors) or (self.failed and (self.ids or self.tensors)):
            raise LocalProtocolError("an answer holds more than one of ids, tensors and a failure")


@attrs.frozen
class CannotServe:
    """The sender cannot serve *epoch*, or not any more: what *kind* of failure, and a short
    *reason*; *n* is the first step that it cannot do, or 0 where it is no step's.

    With `NO_EPOCH`, from an engine: it cannot read its model.
    """

    CODE: ClassVar = MessageCode.CANNOT_SERVE
    epoch: Epoch
    kind: FailureKind
    reason: str
    n: int = 0

    def of(self, rank: int) -> Failure:
        """The failure, which is that of the *rank* that sent this."""
        return Failure(rank, self.kind, self.reason)


@attrs.frozen
class Row:
    """How the ranks that sample draw for row *uid*; sent before the step that opens it: to its own
    engine by rank 0, and in tensor parallelism to every rank.

    *temperature* 0 is greedy. *top_p* 1, *top_k* 0 and *min_p* 0 leave the distribution whole, and
    so do a *repetition* penalty of 1 and *presence* and *frequency* penalties of 0. *bias* has
    pairs of a token id and what is added to its logit. *logprobs* is how many alternatives to
    tell with the chosen token's log probability; `NO_LOGPROBS` tells none of it.

    *history* is the row so far, its last *generated* tokens the model's own; only a row that is
    `penalised` has need of it.
    """

    CODE: ClassVar = MessageCode.ROW
    uid: int
    seed: int = 0
    choice: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    logprobs: int = NO_LOGPROBS
    bias: tuple[tuple[int, float], ...] = ()
    history: tuple[int, ...] = ()
    generated: int = 0

    def __attrs_post_init__(self) -> None:
        rule(0 <= self.temperature < float("inf"), "a temperature is 0 or more, and finite")
        rule(0 < self.top_p <= 1, "top_p is above 0 and at most 1")
        rule(0 <= self.min_p <= 1, "min_p is from 0 to 1")
        rule(0 < self.repetition < float("inf"), "a repetition penalty is above 0, and finite")
        finite = all(map(math.isfinite, (self.presence, self.frequency)))
        rule(finite, "presence and frequency penalties are finite")
        wanted = self.logprobs == NO_LOGPROBS or 0 <= self.logprobs <= MAX_LOGPROBS
        rule(wanted, f"logprobs are of at most {MAX_LOGPROBS} alternatives")
        rule(all(math.isfinite(value) for _, value in self.bias), "a bias is finite")
        rule(self.generated <= len(self.history), "more tokens generated than there are")

    @property
    def penalised(self) -> bool:
        """Which tokens it has had matters to what it draws."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


class TunnelEvent(enum.IntEnum):
    """What happens to a connection that is carried in a tunnel."""

    DATA = 0
    OPEN = 1
    CLOSE = 2


@attrs.frozen
class Tunnel:
    """Bytes of one connection of *epoch*'s collective: the one that the engine of rank *stream*
    dialed. Only DATA has *data*, and it has some."""

    CODE: ClassVar = MessageCode.TUNNEL
    epoch: Epoch
    stream: int
    event: TunnelEvent
    data: Buffer = b""

    def __attrs_post_init__(self) -> None:
        has_data = self.event is TunnelEvent.DATA
        rule(
            has_data == (len(self.data) > 0), "a TUNNEL frame has data if, and only if, it is DATA"
        )


Message = (
    Accept
    | Ping
    | Pong
    | Close
    | Hello
    | Prepared
    | Ready
    | Bootstrap
    | Step
    | StepDone
    | CannotServe
    | Row
    | Tunnel
    | Waiting
)
