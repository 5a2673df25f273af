"""STEP, its answer STEP_DONE, and ROW: the work of a serving ring."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.messages.epochs import Epoch, Failure
from sealring_protocol.codec.tensor import Tensor
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_GUESSED, MAX_LOGPROBS, NO_GROUP

NO_LOGPROBS: Final = 255
"""The `Row.logprobs` of a row without log probabilities, not even the chosen token's."""


@attrs.frozen
class NoWork:
    """The step only changes the ledger."""


@attrs.frozen
class Prefill:
    """Prefill *count* tokens of row *uid* into its private cache, starting at *position*. If
    *scored*, the head tells how likely the token after each of them is."""

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

    def __attrs_post_init__(self) -> None:
        rule(self.group != NO_GROUP, "no group has the number 0xFFFF")
        rule(self.guessed <= MAX_GUESSED, "more guesses than a row may have")
        rule(self.ahead <= self.guessed, "fewer guesses than it reads ahead")

    @property
    def on_guess(self) -> bool:
        """Whether it reads a guess in place of the token drawn last."""
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
