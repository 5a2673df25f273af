"""Every message in a sealed frame, as a frozen value.

The bytes of each are in `codec.encoding`. INIT, RESP and FIN, which travel in handshake frames,
are in `security.handshake`. The messages of relayed requests are in `codec.relay_messages`, those
of elections in `codec.election_messages`, and those between a node and its engine in
`codec.local_messages`.
"""

from __future__ import annotations

import enum
import math
from itertools import pairwise
from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.election_messages import (
    Candidacy,
    NoVote,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Reply
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer, is_plain
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import (
    MAX_GUESSED,
    MAX_LOGPROBS,
    MAX_PIECE,
    MAX_TENSORS,
    NO_GROUP,
)

# ---------------------------------------------------------------------- waiting
# WAITING: why the head has begun no epoch, for people at the other machines.


class Hindrance(enum.IntEnum):
    """What keeps a head from beginning an epoch."""

    ABSENT = 1
    REFUSED = 2
    MODEL = 3
    ENGINE = 4
    PLAN = 5
    FAILED = 6
    COLLECTIVE = 7
    LINK = 8
    UNSERVABLE = 9
    OUTSIDE = 10


@attrs.frozen
class Reason:
    """One reason why the head begins no epoch, in its words (*text*). It concerns *rank*, or no
    rank in particular (`NO_RANK`)."""

    hindrance: Hindrance
    rank: int
    text: str

    def __attrs_post_init__(self) -> None:
        rule(bool(self.text), "a reason has words")


@attrs.frozen
class Waiting:
    """The head has begun no epoch, for these *reasons*. Without any, it withdraws the earlier ones.

    It is for people only: a rank shows it and does not act on it.
    """

    CODE: ClassVar = MessageCode.WAITING
    reasons: tuple[Reason, ...] = ()


# ---------------------------------------------------------------------- addresses
# ADDRESSES: where a member can be reached, beside what the roster says.


@attrs.frozen
class Addresses:
    """The member with rank *member* listens at *addresses*, which take the place of those that were
    sent of it before. Each has the 16 bytes of an IP address, IPv4 written as IPv6 (RFC 4291,
    2.5.5.2), and a port.

    A rank sends its own, and the head those of any other. An address of 16 zeros, which only the
    sender has of itself, stands for the one that its connection comes from.
    """

    CODE: ClassVar = MessageCode.ADDRESSES
    member: int
    addresses: tuple[tuple[bytes, int], ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(all(port > 0 for _, port in self.addresses), "an address has a port")


# ---------------------------------------------------------------------- epochs
# An epoch's messages: a rank presents itself, is given its place, and can serve or cannot.


@attrs.frozen(order=True)
class Epoch:
    """One period in which the ring serves: the head's *instance* (random, per process) and a
    *counter*."""

    instance: int
    counter: int


NO_EPOCH: Final = Epoch(0, 0)


class FailureKind(enum.IntEnum):
    """What went wrong on a rank. After UNSERVABLE the next try would go wrong in the same way."""

    ENGINE_ERROR = 1
    ENGINE_LOST = 2
    LEDGER = 3
    LINK_LOST = 4
    DEADLINE = 5
    MEMORY = 6
    INTEGRITY = 7
    LOAD = 8
    GROUP = 9
    UNSERVABLE = 10


@attrs.frozen
class Failure:
    """Why a step failed: on which *rank*, the *kind*, and a short *message*."""

    rank: int
    kind: FailureKind
    message: str


OLDEST_STEPS: Final = 1
"""The oldest step version that this program can take part in."""

NEWEST_STEPS: Final = 1
"""The newest step version that this program can take part in. It rises when what a step computes,
or what a message means, changes (see CONTRIBUTING)."""


@attrs.frozen
class Build:
    """What a program can do: the step versions from *oldest* to *newest*. *version* names the
    program to people; empty if it does not say.

    Programs that have a step version in common work together, whatever their names.
    """

    version: str = ""
    oldest: int = OLDEST_STEPS
    newest: int = NEWEST_STEPS

    def __attrs_post_init__(self) -> None:
        rule(1 <= self.oldest <= self.newest, "step versions rise from 1")

    @property
    def steps(self) -> range:
        """The step versions that it can take part in."""
        return range(self.oldest, self.newest + 1)

    @property
    def text(self) -> str:
        """The name and the step versions, as ``0.1.0 (steps 1 to 2)``."""
        several = f" to {self.newest}" if self.newest > self.oldest else ""
        return f"{self.version or 'of no version'} (steps {self.oldest}{several})"


@attrs.frozen
class Hello:
    """A rank presents itself: the digest of its *model* (32 bytes), the number of *layers*, the
    *dtype* and number of elements of a *hidden* state, and its *room* in bytes for weights and
    caches.

    *pins* differ where weights do, see the specification (8.15): of the files' hashes, of the ends,
    and of each layer; 0 for what it does not have, and none at all if it has looked at no weights.

    *build* is what its program can do."""

    CODE: ClassVar = MessageCode.HELLO
    model: bytes
    layers: int
    dtype: DType
    hidden: int
    room: int
    pins: tuple[int, ...] = ()
    build: Build = attrs.field(factory=Build)

    def __attrs_post_init__(self) -> None:
        rule(len(self.pins) in (0, self.layers + 2), "a pin of the files, the ends and each layer")


@attrs.frozen
class Prepared:
    """A rank has loaded its share for a collective; its engine will listen on *port*."""

    CODE: ClassVar = MessageCode.PREPARED
    epoch: Epoch
    port: int

    def __attrs_post_init__(self) -> None:
        rule(self.port > 0, "PREPARED has no port")


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
class KeptCache:
    """A cache that outlives its epoch: of *number*, a row's uid or a snapshot's handle, its first
    *length* tokens."""

    number: int
    length: int

    def __attrs_post_init__(self) -> None:
        rule(self.number > 0 and self.length > 0, "nothing is kept under 0, or of no length")


@attrs.frozen
class Bootstrap:
    """The order that begins an epoch: the receiver's place in it.

    In a pipeline *bounds* has the first layer of each rank, and then the number of layers: rank i
    has ``bounds[i]:bounds[i + 1]``. With any other back end every rank has all layers, *bounds* is
    0 and their number, and *hosts* has an address and a port for every rank. The order then comes
    twice. With ports of 0, the rank loads its share and prepares for the collective. With the ports
    that all ranks answered, it joins. With *trusted*, the collective runs outside of the sealed
    links. In a *checked* epoch each rank sends CHECKED with each step. *steps* is the step version
    of the epoch, which every rank's `Build` has.

    A ring may leave ranks of the roster out. Then *rank* is the receiver's place in the ring, and
    *members* has the roster's rank of each place; it is empty where each place is its rank.

    A pipeline may go on from caches of the epoch before: each rank has those that are *kept* as
    snapshots when the epoch begins, and no others. Their numbers rise.

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
    checked: bool = False
    steps: int = OLDEST_STEPS
    members: tuple[int, ...] = ()
    kept: tuple[KeptCache, ...] = ()

    def __attrs_post_init__(self) -> None:
        rule(self.steps > 0, "step versions begin with 1")
        rising = all(a < b for a, b in pairwise(self.bounds))
        rule(
            len(self.bounds) > 1 and self.bounds[0] == 0 and rising,
            "BOOTSTRAP's layer bounds do not rise from 0",
        )
        rule(self.rank < self.world, "BOOTSTRAP names a rank that the ring does not have")
        if self.members:
            up = self.members[0] == 0 and all(a < b for a, b in pairwise(self.members))
            rule(up and len(self.members) == self.world, "BOOTSTRAP's members are no ring")
            rule(self.members[-1] >= self.world, "BOOTSTRAP lists members whose places are ranks")
        in_order = all(a.number < b.number for a, b in pairwise(self.kept))
        rule(in_order, "the numbers of caches that are kept do not rise")
        if self.backend is Backend.PIPELINE:
            rule(not self.hosts and not self.trusted, "a pipeline has no collective")
            return
        rule(not self.kept, "a collective keeps no caches")
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
    def ring(self) -> tuple[int, ...]:
        """The roster's rank of each place."""
        return self.members or tuple(range(self.world))

    @property
    def joins(self) -> bool:
        """True if the ranks are to join their collective now."""
        return any(port for _, port in self.hosts)


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


# ---------------------------------------------------------------------- links
# What the two ends of a link say about the link itself: it is open, alive, and over.


@attrs.frozen
class Progress:
    """The counters in PING and PONG, all since the process began.

    Times are in microseconds, sizes in bytes. *starved_us* is how long the engine was ready to run
    and had no processor, or waited for memory to be read back from disk. While the node fetches
    tensors of its model, *fetch_bytes* is the size of all that its rank owns, and *fetched_bytes*
    what is here of them; else both are 0. A peer may claim any number.
    """

    steps_received: int = 0
    steps_answered: int = 0
    compute_us: int = 0
    seal_us: int = 0
    rows: int = 0
    memory: int = 0
    cache: int = 0
    starved_us: int = 0
    fetched_bytes: int = 0
    fetch_bytes: int = 0

    @property
    def here(self) -> int:
        """*fetched_bytes*, and no more than *fetch_bytes*."""
        return min(self.fetched_bytes, self.fetch_bytes)


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


# ---------------------------------------------------------------------- joining
# ADMIT and JOINED end the exchange of `joining`. No link has them.


@attrs.frozen
class Admit:
    """The newcomer may join: the signed *roster* that holds it, and the *settings* that its node is
    to begin with, a text that the two programs agree on."""

    CODE: ClassVar = MessageCode.ADMIT
    roster: bytes
    settings: str


@attrs.frozen
class Joined:
    """The newcomer has stored what `Admit` brought."""

    CODE: ClassVar = MessageCode.JOINED


# ---------------------------------------------------------------------- steps
# STEP, its answer STEP_DONE, and ROW: the work of a serving ring.


NO_LOGPROBS: Final = 255
"""The `Row.logprobs` of a row without log probabilities, not even the chosen token's."""


@attrs.frozen
class NoWork:
    """The step only changes the ledger."""


@attrs.frozen
class Prefill:
    """Prefill *count* tokens of row *uid* into its private cache, starting at *position*. If
    *scored*, the head reports how likely the token after each of them is."""

    uid: int
    position: int
    count: int
    scored: bool = False

    def __attrs_post_init__(self) -> None:
        rule(self.count > 0, "a prefill reads at least one token")


@attrs.frozen
class Decode:
    """Read the next token of every row of *group*, and draw the one after it.

    With *guessed* the group has one row. The last *guessed* tokens of its cache, those that it
    reads now included, are guesses of the head's and may be taken back.

    With *ahead* the row reads so many guesses after its first token. It draws a token after each,
    up to the first that is not the next guess. The first token is the one drawn last; with more
    *guessed* than *ahead*, a guess stands in its place.
    """

    group: int
    guessed: int = 0
    ahead: int = 0
    on_guess: bool = attrs.field(init=False, repr=False, eq=False)
    """Whether it reads a guess in place of the token drawn last."""

    def __attrs_post_init__(self) -> None:
        # Checked without `rule`, because this runs for every token.
        if self.group == NO_GROUP:
            raise LocalProtocolError("no group has the number 0xFFFF")
        if self.guessed > MAX_GUESSED:
            raise LocalProtocolError("more guesses than a row may have")
        if self.ahead > self.guessed:
            raise LocalProtocolError("fewer guesses than it reads ahead")

    @on_guess.default
    def _is_on_guess(self) -> bool:
        return self.guessed > self.ahead

    @property
    def guesses(self) -> int:
        """How many guesses it reads."""
        return self.ahead + self.on_guess


Work = NoWork | Prefill | Decode

NO_WORK: Final = NoWork()


@attrs.frozen
class TakeBack:
    """Drop the last *count* tokens, which were guessed wrongly, from the cache of row *uid*."""

    uid: int
    count: int


@attrs.frozen
class Open:
    """Open row *uid*. With a *handle*, start from the first *keep* tokens of that snapshot. One of
    the same number is taken over, whole: it is no snapshot any more."""

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
    tokens of a prefill (and the one after them, if it is scored), or the guesses that a decode
    reads. They go to engines that hold the
    embedding, and never down a chain. *drop* has row uids and snapshot handles, which share one
    number space. *spent* has an entry for every rank that has finished its part, in order.
    """

    CODE: ClassVar = MessageCode.STEP
    epoch: Epoch
    n: int
    digest: bytes
    back: tuple[TakeBack, ...] = ()
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
        """True if rows or snapshots change before the step's work."""
        return bool(self.back or self.save or self.evict or self.drop or self.open or self.join)


@attrs.frozen
class StepDone:
    """The one answer to a step. It has at most one of: the hidden states that come back
    (*tensors*), the tokens drawn (*ids*), or why it *failed*. The answer to a step without work has
    none, nor has that to a prefill, but hidden states come back from one that is scored.

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
class Row:
    """How the engines that draw tokens sample row *uid*. Rank 0 sends it to its own engine, and in
    tensor parallelism to every rank, before the step that opens the row.

    A *temperature* of 0 is greedy. *top_p* 1, *top_k* 0 and *min_p* 0 leave the distribution whole,
    and so do a *repetition* penalty of 1 and *presence* and *frequency* penalties of 0. *bias* has
    pairs of a token id and the value added to its logit. *logprobs* is the number of alternatives
    to report with the log probability of a token that is drawn, or scored; `NO_LOGPROBS` reports
    none at all.

    A `constrained` row may not have every token. Those in *ends* end the row; before *least* tokens
    (its prompt included) it has none of them. It never has one of the sequences *bad* among its own
    tokens. What it generates is held to *grammar*: a text that the engines know how to read, empty
    for none. Then it ends only where the grammar does.

    *history* has the row's tokens so far, of which the last *generated* are the model's own. Only a
    row that `remembers` needs it.
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
    least: int = 0
    ends: tuple[int, ...] = ()
    bad: tuple[tuple[int, ...], ...] = ()
    grammar: bytes = b""

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
        rule(all(self.bad), "a bad sequence has at least one token")

    @property
    def penalised(self) -> bool:
        """True if its sampling depends on its earlier tokens."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def constrained(self) -> bool:
        """True if it may not have every token."""
        return bool(self.least or self.bad or self.grammar)

    @property
    def remembers(self) -> bool:
        """True if how its next token is drawn depends on its earlier ones."""
        return self.penalised or bool(self.bad or self.grammar)


# ---------------------------------------------------------------------- tunnel
# TUNNEL: bytes of a collective's TCP connections.


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


# ---------------------------------------------------------------------- weights
# GET and PIECE: files of the model, from a member that has them.


LISTING: Final = ""
"""The name of the listing: which files and tensors the asked node has."""


def is_file_name(name: str) -> bool:
    """True if *name* may be asked for: the listing, or one file's name without a folder."""
    return is_plain(name) and not {"/", "\\"} & set(name) and name not in (".", "..")


@attrs.frozen
class Get:
    """Asks for *length* bytes from *offset* on of the model's file *name*."""

    CODE: ClassVar = MessageCode.GET
    name: str
    offset: int
    length: int

    def __attrs_post_init__(self) -> None:
        rule(is_file_name(self.name), "a file's name has no folder and no hidden character")
        rule(self.length <= MAX_PIECE, f"a GET asks for at most {MAX_PIECE} bytes")


@attrs.frozen
class Piece:
    """Answers the oldest GET that has none: *data*, of a file of *size* bytes. It is what the GET
    asked for, or less where the file ends. With a *reason* there is none, and this is why."""

    CODE: ClassVar = MessageCode.PIECE
    size: int
    data: Buffer = attrs.field(default=b"", repr=False)
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        empty = not self.size and not len(self.data)
        rule(not self.reason or empty, "a PIECE has a reason or data")
        rule(len(self.data) <= self.size, "a PIECE is within its file")


# ---------------------------------------------------------------------- checked
# CHECKED: what a rank's engine made of a step, in three numbers a row and position.
#
# They are there for whoever verifies a ring: he computes the same numbers from the weights, and
# finds the first rank whose numbers are others. They say too little to rebuild a hidden state
# from them.


FINGERPRINT: Final = 3
"""Numbers of a fingerprint: two projections, and the root mean square."""


@attrs.frozen
class Checked:
    """The fingerprints of step *n*: of what the sender's layers *received*, and of what they have
    *given*. Each is f32 ``(tensors, rows, tokens, 3)``.

    With *closing* it is of the head's second pass: it received what came back, and gave logits.
    """

    CODE: ClassVar = MessageCode.CHECKED
    epoch: Epoch
    n: int
    closing: bool
    received: Tensor
    given: Tensor

    def __attrs_post_init__(self) -> None:
        for tensor in (self.received, self.given):
            rule(tensor.dtype is DType.F32 and not tensor.sealed, "fingerprints are plain f32")
            rule(len(tensor.shape) == 4, "fingerprints have four dimensions")
            rule(tensor.shape[0] <= MAX_TENSORS, f"fingerprints of at most {MAX_TENSORS} tensors")
            rule(tensor.shape[3] == FINGERPRINT, f"a fingerprint has {FINGERPRINT} numbers")
        rule(self.received.shape[1:] == self.given.shape[1:], "fingerprints of other rows")

    @property
    def rows(self) -> int:
        """The rows of the step."""
        return self.given.shape[1]

    @property
    def tokens(self) -> int:
        """The positions of each row."""
        return self.given.shape[2]


__all__ = [
    "FINGERPRINT",
    "LISTING",
    "NEWEST_STEPS",
    "NO_EPOCH",
    "NO_LOGPROBS",
    "NO_WORK",
    "OLDEST_STEPS",
    "Accept",
    "Addresses",
    "Admit",
    "Backend",
    "Bootstrap",
    "Build",
    "CacheCost",
    "CannotServe",
    "Checked",
    "Close",
    "Decode",
    "Epoch",
    "Failure",
    "FailureKind",
    "Get",
    "Hello",
    "Hindrance",
    "Join",
    "Joined",
    "KeptCache",
    "Message",
    "NoWork",
    "Open",
    "Piece",
    "Ping",
    "Pong",
    "Prefill",
    "Prepared",
    "Progress",
    "Ready",
    "Reason",
    "Row",
    "Save",
    "Spent",
    "Step",
    "StepDone",
    "TakeBack",
    "Tunnel",
    "TunnelEvent",
    "Waiting",
    "Work",
    "is_file_name",
]

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
    | Checked
    | Row
    | Tunnel
    | Waiting
    | Addresses
    | Get
    | Piece
    | Ask
    | Reply
    | BodyPart
    | Credit
    | Drop
    | Candidacy
    | Vote
    | NoVote
    | Renew
    | Renewed
    | Admit
    | Joined
)
