"""Carrying out steps on one rank: ledger, caches, forward, answer.

A step is *launched* and later *finished*. Launching applies it to the ledger and the caches,
builds the graph and hands it to the device; finishing waits for the result and makes the answer.
With nothing but launches between, the device works while the next graph is built; a single rank
decodes from the token that is still on the device, so the next step can be launched before the
last one's token has been read. Whoever drives an executor (see `engine`) finishes in the order
of launching.

What a rank makes of a step depends on its place alone:

| place | input of its layers | answer |
| --- | --- | --- |
| only rank | token ids | STEP_DONE with sampled ids |
| rank 0 of more | token ids | STEP with hidden states; later STEP_DONE with ids, see `close` |
| between | hidden states | STEP with hidden states |
| last rank | hidden states | STEP_DONE with hidden states, of a decode |

The first failure ends the epoch for this rank: its caches may be half changed, so every later
step of the epoch is answered with the same failure.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Final, TypeVar

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import (
    Bootstrap,
    Decode,
    Failure,
    FailureKind,
    NoWork,
    Prefill,
    Row,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import Tensor
from sealring_protocol.codec.wire import clip
from sealring_protocol.control.ledger import Change, Ledger
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_REASON, MAX_SEALED_BODY
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext

from sealring_model.assemble import LoadedStage
from sealring_model.caches import CacheStore, arrays
from sealring_model.errors import IntegrityError, LedgerError, ModelError, RoomError
from sealring_model.hops import Hops
from sealring_model.rows import LastTokens, RowBook
from sealring_model.sampling import sample
from sealring_model.tensors import data_of, from_data, ids_of, outgoing, start

FORWARD_ERRORS: Final = (
    ModelError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""What a forward of some model may raise; all of it is answered, none of it ends the process."""

M = TypeVar("M", Step, StepDone)

_FRAME_SLACK: Final = 256 * 1024
"""Bytes of a frame kept for everything but the hidden states."""


@attrs.frozen
class Launched:
    """A message that the device works on: *arrays* to wait for, then *answer* makes what to send
    of the microseconds that it took."""

    message: Step | StepDone
    started: int
    arrays: tuple[mx.array, ...]
    answer: Callable[[int], Step | StepDone]


@attrs.frozen
class _Away:
    """A decode whose hidden states are on their way round the ring."""

    group: int
    uids: tuple[int, ...]
    rows: tuple[Row, ...]
    positions: tuple[int, ...]


class Executor:
    """One rank in one epoch. Nothing that a step or a model does wrong is raised: it is answered
    with a `Failure`."""

    def __init__(
        self, loaded: LoadedStage, place: Bootstrap, book: RowBook, hops: Hops, limit: int
    ) -> None:
        self._loaded: Final = loaded
        self._stage: Final = loaded.stage
        self._place: Final = place
        self._first: Final = place.rank == 0
        self._last: Final = place.rank == place.world - 1
        self._book: Final = book
        self._hops: Final = hops
        self._limit: Final = limit
        self._ledger: Final = Ledger()
        self._caches: Final = CacheStore(loaded.stage, self._ledger)
        self._tokens: Final = LastTokens()
        self._away: Final[dict[int, _Away]] = {}
        self._due = 1
        self._finished = 0
        self._failure: Failure | None = None
        self.compute_us = 0

    @property
    def live_rows(self) -> int:
        """Rows that have caches here."""
        groups = self._ledger.groups.values()
        return len(self._ledger.private) + sum(len(rows) for rows in groups)

    @property
    def cache_bytes(self) -> int:
        """Bytes in caches."""
        return self._caches.nbytes

    # ------------------------------------------------------------ launch, finish

    def launch(self, step: Step) -> Launched:
        """Apply *step* and set the device to work on it."""
        return self._guarded(step, self._launch)

    def close(self, done: StepDone) -> Launched:
        """Rank 0 of several: norm, head and sampling over what came back from the last rank."""
        return self._guarded(done, self._close)

    def finish(self, launched: Launched) -> Step | StepDone:
        """Wait for *launched* and give its answer."""
        try:
            mx.eval(*launched.arrays)
            now = time.perf_counter_ns()
            took = (now - max(launched.started, self._finished)) // 1000
            self._finished = now
            self.compute_us += took
            return launched.answer(took)
        except (SealringError, *FORWARD_ERRORS) as error:
            self._failure = self._failure or self._told(error)
            return self._failed(launched.message, self._failure)

    def _guarded(self, message: M, work: Callable[[M, int], Launched]) -> Launched:
        started = time.perf_counter_ns()
        if self._failure is None:
            try:
                return work(message, started)
            except (SealringError, *FORWARD_ERRORS) as error:
                self._failure = self._told(error)
        failure = self._failure
        return Launched(message, started, (), lambda _: self._failed(message, failure))

    def _told(self, error: Exception) -> Failure:
        kind, text = FailureKind.ENGINE_ERROR, f"{type(error).__name__}: {error}"
        if isinstance(error, ModelError):
            kind, text = error.KIND, str(error)
        elif isinstance(error, SealringError):
            kind, text = FailureKind.LEDGER, str(error)
        elif isinstance(error, MemoryError) or "malloc" in text or "out of memory" in text:
            kind = FailureKind.MEMORY
        return Failure(self._place.rank, kind, clip(text, MAX_REASON))

    def _failed(self, message: Step | StepDone, failure: Failure) -> Step | StepDone:
        if isinstance(message, StepDone) or self._last:
            return StepDone(message.epoch, message.n, spent=message.spent, failed=failure)
        return attrs.evolve(message, ids=(), tensors=(), failed=failure)

    # --------------------------------------------------------------- the steps

    def _launch(self, step: Step, started: int) -> Launched:
        self._check_ids(step)
        change = self._apply(step)
        self._check_room(step, change)
        self._caches.apply(change)
        self._remember(step, change)
        match step.work:
            case Decode(group):
                return self._decode(step, group, started)
            case Prefill(uid, _, count):
                return self._prefill(step, uid, count, started)
            case NoWork():
                return Launched(step, started, (), lambda took: self._idle(step, took))

    def _check_ids(self, step: Step) -> None:
        count = step.work.count if isinstance(step.work, Prefill) else 0
        expected = len(step.join) + count if self._first else 0
        if len(step.ids) != expected:
            raise LedgerError(f"step {step.n} has {len(step.ids)} token ids, not {expected}")
        if step.ids and max(step.ids) >= self._loaded.vocabulary:
            raise LedgerError(f"token id {max(step.ids)} is beyond the vocabulary")

    def _apply(self, step: Step) -> Change:
        if step.n != self._due:
            raise LedgerError(f"step {step.n} came where {self._due} was due")
        self._due += 1
        change = self._ledger.apply(step)
        if not hmac.compare_digest(self._ledger.digest(step.n), step.digest):
            raise LedgerError(f"after step {step.n} this rank's ledger is not the head's")
        return change

    def _check_room(self, step: Step, change: Change) -> None:
        """Refuse what would surely not fit. A regrouped rectangle is copied: it counts whole."""
        cost = self._loaded.cost
        needed = 0
        for group in change.regroup:
            rows = self._ledger.rows(group)
            if rows:
                needed += len(rows) * cost.of(max(self._ledger.length(uid) for uid in rows))
        if isinstance(step.work, Prefill):
            needed += cost.of(step.work.position + step.work.count) - cost.of(step.work.position)
        if needed and mx.get_active_memory() + needed > self._limit:
            raise RoomError(
                f"step {step.n} needs {needed >> 20} MiB more for caches; "
                f"{mx.get_active_memory() >> 20} of {self._limit >> 20} MiB are in use"
            )

    def _remember(self, step: Step, change: Change) -> None:
        for uid in (*step.evict, *change.dropped_rows):
            self._book.forget(uid)
            self._tokens.forget(uid)
        for group in change.regroup:
            if not self._ledger.rows(group):
                self._tokens.forget_group(group)
        if self._first:
            for join, token in zip(step.join, step.ids, strict=False):
                self._tokens.give(join.uid, token)
        if self._ledger.empty:
            mx.clear_cache()

    def _idle(self, step: Step, took: int) -> Step | StepDone:
        if self._last:
            return StepDone(step.epoch, step.n, spent=(*step.spent, Spent(took)))
        return self._onward(step, took, ())

    def _decode(self, step: Step, group: int, started: int) -> Launched:
        uids = self._ledger.rows(group)
        if self._first:
            inputs = self._tokens.take(group, uids)[:, None]
        else:
            context = self._context(step.n, group, self._place.rank, uids)
            inputs = self._received(step, context, (len(uids), 1, self._loaded.hidden))
        outputs = self._stage.run(inputs, self._caches.group(group))
        if self._first:
            positions = tuple(self._ledger.length(uid) for uid in uids)
            # Rows may leave before the hidden states are back, so all they need goes with them.
            away = _Away(group, uids, self._book.get(uids), positions)
            if self._last:
                return self._sampling(step, away, self._stage.logits(outputs), started)
            self._away[step.n] = away
        context = self._context(step.n, group, self._place.rank + 1, uids)
        return self._sending(step, context, outputs, (), started)

    def _prefill(self, step: Step, uid: int, count: int, started: int) -> Launched:
        if self._first:
            inputs = mx.array(step.ids[len(step.join) :], mx.uint32)[None]
        else:
            context = self._context(step.n, PREFILL_GROUP, self._place.rank, (uid,))
            inputs = self._received(step, context, (1, count, self._loaded.hidden))
        slots = self._caches.row(uid)
        outputs = self._stage.run(inputs, slots)
        # A small array that waits for the caches: to hold them themselves would have the next
        # chunk copy them.
        written = mx.depends([mx.array(0)], arrays(slots))
        if self._last:
            start(written)
            return Launched(step, started, tuple(written), lambda took: self._idle(step, took))
        context = self._context(step.n, PREFILL_GROUP, self._place.rank + 1, (uid,))
        return self._sending(step, context, outputs, tuple(written), started)

    def _close(self, done: StepDone, started: int) -> Launched:
        away = self._away.pop(done.n, None)
        if away is None:
            raise LedgerError(f"hidden states of step {done.n} came back, and none are away")
        context = self._context(done.n, away.group, self._place.world, away.uids)
        shape = (len(away.uids), 1, self._loaded.hidden)
        logits = self._stage.logits(self._received(done, context, shape))
        return self._sampling(done, away, logits, started)

    # --------------------------------------------------------- in, out, sampled

    def _context(self, n: int, group: int, hop: int, uids: tuple[int, ...]) -> InnerContext:
        """Where the hidden states that leave rank *hop* - 1 belong."""
        return InnerContext(self._place.epoch, n, group, self._place.bounds[hop], uids)

    def _received(
        self, message: Step | StepDone, context: InnerContext, shape: tuple[int, ...]
    ) -> mx.array:
        if len(message.tensors) != 1:
            raise IntegrityError(f"{len(message.tensors)} tensors came where one belongs")
        tensor = message.tensors[0]
        if tensor.dtype != self._loaded.dtype or tensor.shape != shape:
            raise IntegrityError(
                f"hidden states came as {tensor.dtype.name} {tensor.shape}, "
                f"not {self._loaded.dtype.name} {shape}"
            )
        return from_data(tensor.dtype, shape, self._hops.open(context, tensor))

    def _sending(
        self,
        step: Step,
        context: InnerContext,
        hidden: mx.array,
        others: tuple[mx.array, ...],
        started: int,
    ) -> Launched:
        if hidden.nbytes > MAX_SEALED_BODY - _FRAME_SLACK:
            raise ModelError(
                f"{hidden.shape[1]} tokens make {hidden.nbytes} bytes of hidden state, more than "
                "a frame takes; read the prompt in smaller chunks"
            )
        block = outgoing(hidden)
        start(block, *others)

        def answer(took: int) -> Step | StepDone:
            shape = tuple(block.shape)
            tensor = self._hops.seal(context, self._loaded.dtype, shape, data_of(block))
            return self._onward(step, took, (tensor,))

        return Launched(step, started, (block, *others), answer)

    def _onward(self, step: Step, took: int, tensors: tuple[Tensor, ...]) -> Step | StepDone:
        spent = (*step.spent, Spent(took))
        if self._last:
            return StepDone(step.epoch, step.n, tensors=tensors, spent=spent)
        return attrs.evolve(step, ids=(), tensors=tensors, spent=spent)

    def _sampling(
        self, message: Step | StepDone, away: _Away, logits: mx.array, started: int
    ) -> Launched:
        tokens = sample(logits, away.rows, away.positions)
        start(tokens)
        self._tokens.sampled(away.group, away.uids, tokens)

        def answer(took: int) -> StepDone:
            spent = (*message.spent, Spent(took))
            return StepDone(message.epoch, message.n, ids_of(tokens), spent=spent)

        return Launched(message, started, (tokens,), answer)
