"""Every message in a sealed frame, as a frozen value.

The bytes of each are in `codec.encoding`. INIT, RESP and FIN, which travel in handshake frames, are
in `security.handshake_messages`. The messages between a node and its engine are in
`local_messages`.
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
    """One period in which the ring serves: the head's *instance* (random, per process) and a
    *counter*."""

    instance: int
    counter: int


NO_EPOCH: Final = Epoch(0, 0)

NO_LOGPROBS: Final = 255
"""The `Row.logprobs` of a row without log probabilities, not even the chosen token's."""


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
    """Why a step failed: on which *rank*, the *kind*, and a short *message*."""

    rank: int
    kind: FailureKind
    message: str


@attrs.frozen
class Progress:
    """The counters in PING and PONG, all since the process began.

    Times are in microseconds, sizes in bytes. *starved_us* is how long the engine was ready to run
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
    """A keepalive request, answered by a `Pong` with the same *echo*."""

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
    """The responder's first sealed frame: the transcript hash (32 bytes), the newer serial of both,
    and the responder's roster if that is newer (else empty)."""

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
    """The bytes that one row takes in this rank's KV cache: *fixed*, plus *per_token* for each
    token, plus for each window ``(tokens, per_token)`` its cost for at most that many tokens."""

    fixed: int
    per_token: int
    windows: tuple[tuple[int, int], ...] = ()

    def of(self, tokens: int) -> int:
        """The bytes of a row of *tokens*."""
        windowed = sum(min(tokens, window) * cost for window, cost in self.windows)
        return self.fixed + self.per_token * tokens + windowed


@attrs.frozen
class Hello:
    """A rank presents itself: the digest of its *model* (32 bytes), the number of *layers*, the
    *dtype* and number of elements of a *hidden* state, and its *room* in bytes for weights and
    caches."""

    CODE: ClassVar = MessageCode.HELLO
    model: bytes
    layers: int
    dtype: DType
    hidden: int
    room: int


@attrs.frozen
class Prepared:
    """A rank has loaded its share for a collective; its engine will listen on *port*."""

    CODE: ClassVar = MessageCode.PREPARED
    epoch: Epoch
    port: int

    def __attrs_post_init__(self) -> None:
        rule(self.port > 0, "PREPARED has no port")


@attrs.frozen
class Ready:
    """A rank can serve *epoch* with its layers from *first* up to, but not including, *last*.

    Raises `LocalProtocolError`, as the other messages do, if the fields contradict each other.

    *room* is in bytes for caches, and *cost* is what a row takes of it. *trimmable* caches can be
    cut at any token. After joining a collective, *sum_us* and *token_us* are medians, in
    microseconds: of summing one row's hidden state over all ranks, and of a forward of one token.
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
    """How the ranks of an epoch share the work."""

    PIPELINE = 1
    RING = 2
    JACCL = 3
    NCCL = 4


@attrs.frozen
class Bootstrap:
    """The order that begins an epoch: the receiver's place in it.

    In a pipeline *bounds* has the first layer of each rank, and then the number of layers: rank i
    has ``bounds[i]:bounds[i + 1]``. With any other back end every rank has all layers, *bounds* is
    0 and their number, and *hosts* has an address and a port for every rank. The order then comes
    twice. With ports of 0, the rank loads its share and prepares for the collective. With the ports
    that all ranks answered, it joins. With *trusted*, the collective runs outside of the sealed
    links.

    The first of two is answered by `Prepared`, any other by `Ready`; a rank that cannot obey
    answers `CannotServe`.
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
        """The number of ranks in the epoch."""
        return len(self.bounds) - 1 if self.backend is Backend.PIPELINE else len(self.hosts)

    @property
    def joins(self) -> bool:
        """True if the ranks are to join their collective now."""
        return any(port for _, port in self.hosts)


@attrs.frozen
class NoWork:
    """The step only changes the ledger."""


@attrs.frozen
class Prefill:
    """Prefill *count* tokens of row *uid* into its private cache, starting at *position*."""

    uid: int
    position: int
    count: int

    def __attrs_post_init__(self) -> None:
        rule(self.count > 0, "a prefill reads at least one token")


@attrs.frozen
class Decode:
    """Generate one token for every row of *group*."""

    group: int

    def __attrs_post_init__(self) -> None:
        rule(self.group != NO_GROUP, "no group has the number 0xFFFF")


Work = NoWork | Prefill | Decode
NO_WORK: Final = NoWork()


@attrs.frozen
class Open:
    """Open row *uid*. With a *handle*, start from the first *keep* tokens of that snapshot."""

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
    """A rank's time for one step, in microseconds: work on the device, waiting for the device, and
    sealing and opening hidden states."""

    compute_us: int = 0
    wait_us: int = 0
    seal_us: int = 0


@attrs.frozen
class Step:
    """All inputs of one step, applied in the order of the fields.

    *digest* is the ledger's after the step. *ids* has one token per join, in order, and then the
    tokens of a prefill. They go to engines that hold the embedding, and never down a chain. *drop*
    has row uids and snapshot handles, which share one number space. *spent* has an entry for every
    rank that has finished its part, in order.
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
        """True if rows or snapshots come, go or move before the step's work."""
        return bool(self.save or self.evict or self.drop or self.open or self.join)


@attrs.frozen
class StepDone:
    """The one answer to a step. It has at most one of: the hidden states that come back
    (*tensors*), the tokens drawn (*ids*), or why it *failed*. The answer to a prefill, or to a step
    without work, has none.

    *spent* has an entry for every rank that worked on it, in order. If the head's engine has drawn
    tokens from the hidden states, that second pass is the last entry.
    """

    CODE: ClassVar = MessageCode.STEP_DONE
    epoch: Epoch
    n: int
    ids: tuple[int, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    failed: Failure | None = None
    spent: tuple[Spent, ...] = ()

    def __attrs_post_init__(self) -> None:
        # Checked without `rule`, because this runs for every token.
        if (self.ids and self.tensors) or (self.failed and (self.ids or self.tensors)):
            raise LocalProtocolError("an answer holds more than one of ids, tensors and a failure")


@attrs.frozen
class CannotServe:
    """The sender cannot serve *epoch*, or no longer: the *kind* of failure, and a short *reason*.
    *n* is the first step that it cannot do; 0 if the failure belongs to no step.

    With `NO_EPOCH`, from an engine: it cannot read its model.
    """

    CODE: ClassVar = MessageCode.CANNOT_SERVE
    epoch: Epoch
    kind: FailureKind
    reason: str
    n: int = 0

    def of(self, rank: int) -> Failure:
        """The failure, attributed to *rank*, the sender."""
        return Failure(rank, self.kind, self.reason)


@attrs.frozen
class Row:
    """How the engines that draw tokens sample row *uid*. Rank 0 sends it to its own engine, and in
    tensor parallelism to every rank, before the step that opens the row.

    A *temperature* of 0 is greedy. *top_p* 1, *top_k* 0 and *min_p* 0 leave the distribution whole,
    and so do a *repetition* penalty of 1 and *presence* and *frequency* penalties of 0. *bias* has
    pairs of a token id and the value added to its logit. *logprobs* is the number of alternatives
    to report with the chosen token's log probability; `NO_LOGPROBS` reports none at all.

    *history* has the row's tokens so far, of which the last *generated* are the model's own. Only a
    `penalised` row needs it.
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
        rule(0 <= self.temperature < float("inf"), "a temperature must be finite and at least 0")
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
        """True if its sampling depends on its earlier tokens."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


class TunnelEvent(enum.IntEnum):
    """What happens to a connection in a tunnel."""

    DATA = 0
    OPEN = 1
    CLOSE = 2


@attrs.frozen
class Tunnel:
    """Bytes of one connection of *epoch*'s collective: the one dialed by the engine of rank
    *stream*. Only DATA has *data*, at least one byte."""

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
