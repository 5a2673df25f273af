"""Carries out steps on one rank: ledger, caches, forward, answer.

A step is *launched* and later *finished*. To launch it is to apply it to the ledger and the caches,
build its graph and hand that to the device. To finish it is to wait for the result and make the
answer. So the device works while the next graph is built. A single rank decodes from a token that
is still on the device, and launches the next step before it has read the last one's token. One
thread launches; another may finish, in the order of launching (see `answers`). What is computed is
in `forward`.

The first failure ends the epoch for this rank. Its caches may be half changed, so every later step
of the epoch is answered with the same failure.

Members of a collective (see `engine/collective.py`) carry out the same steps. MLX matches their
sums by order alone. So whatever leads to a sum is launched by the compute thread, in the order of
steps, as the same graph on every member. Nothing here may depend on time, on memory or on the
member before that point. What does depend on them (the memory check, freed caches) comes before the
graph, and refuses the step or launches nothing; and a graph that was built ahead equals the one
that would be built now, but where the device waits. So one member may fail alone. It says so, and
the others wait for it until their processes are ended.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import (
    Bootstrap,
    Decode,
    Failure,
    NoWork,
    Prefill,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.epoch.ledger import Change, Ledger
from sealring_protocol.errors import SealringError
from sealring_protocol.security.seal import PREFILL_GROUP

from sealring_model.engine.forward import Forward
from sealring_model.engine.hidden_io import (
    Clock,
    HiddenIO,
    InFlight,
    PendingAnswer,
    PlainActivations,
    Received,
)
from sealring_model.errors import FORWARD_ERRORS, CacheMemoryError, LedgerError, failure_of
from sealring_model.loading.assemble import LoadedStage
from sealring_model.lookahead import Due, Lookahead, are_plain, can_run_unplaced
from sealring_model.machine import drop_unloadable
from sealring_model.sampling.rows import RowParams, Sampler
from sealring_model.stage.caches import CacheStore
from sealring_model.stage.device import DeviceIO

M = TypeVar("M", Step, StepDone)

_CLEAR_EVERY: Final = 256
"""Steps after which MLX frees the memory that it keeps for arrays of sizes seen before. As rows
grow their sizes do not recur, and MLX would keep more with every token."""

_EVALUATE_EVERY: Final = 64
"""Tokens of a batch's first row after which all state of the batch's caches is evaluated. A layer
without rotary positions never looks at its cache's offsets, which then grow as a graph."""


class Executor:
    """One rank in one epoch. An error of a step or a model is not raised: it is answered with a
    `Failure`.

    A step is refused if weights and caches would surely need more than *limit* bytes. Call
    `launch`, `close` and `work_ahead` from the compute thread.
    """

    def __init__(
        self,
        loaded: LoadedStage,
        place: Bootstrap,
        params: RowParams,
        activation_seal: PlainActivations,
        limit: int,
        *,
        device_io: DeviceIO,
        reports_logprobs: bool = True,
        kept: dict[int, list[Any]] | None = None,
    ) -> None:
        """*kept* are caches of the epoch before, as *place* says."""
        self._loaded: Final = loaded
        self._place: Final = place
        self._first: Final = place.rank == 0
        self._params: Final = params
        self._activation_seal: Final = activation_seal
        self._limit: Final = limit
        self._ledger: Final = Ledger(place.kept)
        self._caches: Final = CacheStore(loaded.stage, self._ledger, kept)
        self._hidden_io: Final = HiddenIO(place, loaded.stage, activation_seal, device_io)
        self._sampler: Final = Sampler(params, loaded.vocabulary, device_io)
        self.builds_ahead: Final = (
            place.world > 1 and loaded.blind and loaded.stage.carries_one and not place.checked
        )
        """Whether `work_ahead` may ever have something to do. Not in a checked epoch: graphs that
        are built ahead take no fingerprints."""
        self.launches_ahead: Final = (
            self.builds_ahead and device_io.device_waits and loaded.trimmable
        )
        """Whether `work_ahead` may launch, and so has something to do while the device works."""
        self._forward: Final = Forward(
            loaded,
            place,
            self._ledger,
            self._caches,
            self._hidden_io,
            params,
            self._sampler,
            device_io,
            gates=self.launches_ahead,
            reports_logprobs=reports_logprobs,
        )
        self._lookahead: Final = Lookahead(
            self._caches, device_io, self._build_ahead, launches_ahead=self.launches_ahead
        )
        self._places_late: Final = self.launches_ahead and can_run_unplaced(loaded.stage)
        """Whether a decode that reads guesses ahead may be launched ahead, too."""
        self._early_fill: EarlyFill | None = None
        self._clear_due = False
        self._next_step = 1
        self._answered_to = 0
        self._finished = 0  # when the last answer was ready
        self._failure: Failure | None = None
        self._device_failure: Failure | None = None
        self.compute_us = 0
        """Microseconds of work on the device."""

    @property
    def works_ahead(self) -> bool:
        """Whether `work_ahead` may have something to do."""
        return self.builds_ahead or self._forward.lacks_masks

    @property
    def device_waits(self) -> bool:
        """Whether the device waits for hidden states, and does nothing else until they come."""
        return self._lookahead.held is not None

    @property
    def live_rows(self) -> int:
        """Rows that have caches here."""
        batches = self._ledger.groups.values()
        return len(self._ledger.private) + sum(map(len, batches))

    @property
    def cache_bytes(self) -> int:
        """Bytes in caches."""
        return self._caches.nbytes

    # ------------------------------------------------------------ launch, finish

    def launch(self, step: Step, arrived: int = 0) -> InFlight:
        """Apply *step* and launch its forward. It came at *arrived*, nanoseconds of
        `time.perf_counter_ns`; 0 is now."""
        return self._timed(step, self._launch, arrived)

    def close(self, done: StepDone, arrived: int = 0) -> InFlight:
        """On rank 0 of several: launch the closing pass (norm, output head, sampling) over the
        hidden states that the last rank sent back."""
        return self._timed(done, self._close, arrived)

    def finish(self, in_flight: InFlight) -> Step | StepDone:
        """Wait for *in_flight*; its answer. For one thread, in the order of launching."""
        if self._device_failure is None:
            try:
                mx.eval(*in_flight.pending_answer.arrays)
                if isinstance(in_flight.message, Step):
                    self._answered_to = in_flight.message.n
                return in_flight.pending_answer.answer(self._clock(in_flight))
            except (SealringError, *FORWARD_ERRORS) as error:
                # Nothing of this epoch is waited for again: a collective that has lost a member
                # raises an error once or twice, and then never returns.
                drop_unloadable(error)
                self._failure = self._failure or failure_of(error, self._place.rank)
                self._device_failure = self._failure
        return self._hidden_io.forward_failure(in_flight.message, self._device_failure)

    def _clock(self, in_flight: InFlight) -> Clock:
        """The clock of *in_flight*, which the device has just done; sealing is still to come."""
        now, seal = time.perf_counter_ns(), self._activation_seal
        sealing = seal.sealing_ns - in_flight.opening
        begun = max(in_flight.begun, self._finished)
        self._finished = now
        compute = (now - begun) // 1000
        self.compute_us += compute
        wait = max(0, begun - in_flight.arrived - in_flight.opening) // 1000
        return lambda: Spent(compute, wait, (seal.sealing_ns - sealing) // 1000)

    def _timed(self, message: M, do: Callable[[M], PendingAnswer], arrived: int) -> InFlight:
        early, started = self._early_fill, time.perf_counter_ns()
        opened = self._activation_seal.opening_ns
        pending_answer = self._attempt(message, do)
        if early is not None and early.message is message:
            begun = early.begun or started
            return InFlight(message, pending_answer, arrived or begun, begun, early.opening)
        opening = self._activation_seal.opening_ns - opened
        return InFlight(message, pending_answer, arrived or started, started + opening, opening)

    def _attempt(self, message: M, do: Callable[[M], PendingAnswer]) -> PendingAnswer:
        failure = self._failure
        if failure is None:
            try:
                return do(message)
            except (SealringError, *FORWARD_ERRORS) as error:
                failure = self._fail(error)
        return PendingAnswer((), lambda _: self._hidden_io.forward_failure(message, failure))

    def _fail(self, error: Exception) -> Failure:
        self.end()
        drop_unloadable(error)  # the next epoch compiles it again
        self._failure = failure = failure_of(error, self._place.rank)
        return failure

    def end(self) -> None:
        """No more steps will come: release the device if it waits."""
        self._lookahead.end()

    def keep(self, place: Bootstrap) -> dict[int, list[Any]]:
        """What *place*, the order of the next epoch, has this rank keep, by number. Call it after
        `end`, once all is answered; this object is of no use then. Raises `LedgerError` if a step
        has failed, or if something is not here as it should be."""
        own = self._place
        here = (place.epoch.instance, place.bounds, place.rank)
        if here != (own.epoch.instance, own.bounds, own.rank):
            raise LedgerError("this rank had other layers, or another head")
        if self._failure is not None:
            raise LedgerError("a step has failed here")
        return self._caches.keep(place.kept)

    # --------------------------------------------------------------- the steps

    def _launch(self, step: Step) -> PendingAnswer:
        self._check_ids(step)
        change = self._apply(step)
        self._check_memory(step, change)
        decodes = step.work.group if isinstance(step.work, Decode) else None
        self._lookahead.ledger_changes(change, decodes)
        self._caches.apply(change)
        for back in change.taken_back:
            self._forward.forget_wrong(back.uid, back.length)
        self._update_rows(step, change)
        match step.work:
            case Decode() as work:
                return self._decode(step, work)
            case Prefill() as work:
                return self._forward.prefill(step, work)
            case NoWork():
                return PendingAnswer((), lambda clock: self._hidden_io.forward(step, clock))

    def _check_ids(self, step: Step) -> None:
        match step.work:
            case Prefill() as work:
                count = work.count + work.scored
            case Decode() as work:
                count = work.guesses
            case _:
                count = 0
        expected = len(step.join) + count if self._first else 0
        if len(step.ids) != expected:
            raise LedgerError(f"step {step.n} has {len(step.ids)} token ids, not {expected}")
        if step.ids and max(step.ids) >= self._loaded.vocabulary:
            raise LedgerError(f"token id {max(step.ids)} is beyond the vocabulary")

    def _apply(self, step: Step) -> Change:
        if step.n != self._next_step:
            raise LedgerError(f"step {step.n} came where {self._next_step} was due")
        self._next_step += 1
        change = self._ledger.apply(step)
        if not hmac.compare_digest(self._ledger.digest(step.n), step.digest):
            raise LedgerError(f"after step {step.n} this rank's ledger is not the head's")
        return change

    def _check_memory(self, step: Step, change: Change) -> None:
        needed = self._caches.bytes_needed(step, change, self._loaded.cost)
        if needed and mx.get_active_memory() + needed > self._limit:
            raise CacheMemoryError(
                f"step {step.n} needs {needed >> 20} MiB more for caches; "
                f"{mx.get_active_memory() >> 20} of {self._limit >> 20} MiB are in use"
            )

    def _update_rows(self, step: Step, change: Change) -> None:
        """Tell the sampler which rows came and went, and free MLX's memory where that is due."""
        gone = (*step.evict, *change.dropped_rows)
        self._params.opened(row.uid for row in step.open)
        self._sampler.forget(gone)
        for uid in {*gone} - {row.uid for row in step.open}:
            self._params.forget(uid)
        for batch in change.regroup:
            if batch not in self._ledger.groups:
                self._sampler.forget_batch(batch)
        if self._first:
            for join, token in zip(step.join, step.ids, strict=False):
                self._sampler.give(join.uid, token)
        idle = (gone or change.dropped_snaps) and not self.live_rows
        if idle or isinstance(step.work, Prefill) or step.n % _CLEAR_EVERY == 0:
            self._clear_due = True
        if self._clear_due:
            self._clear_mlx_cache()

    def _clear_mlx_cache(self) -> None:
        """Free the memory that MLX keeps. Not while the device waits: CUDA might wait for it."""
        if self._lookahead.held is None:
            self._clear_due = False
            mx.clear_cache()

    def _decode(self, step: Step, work: Decode) -> PendingAnswer:
        batch, uids = work.group, self._ledger.groups[work.group]
        awaiting = self._forward.awaiting_logits.values()
        if not work.on_guess and any(state.batch == batch for state in awaiting):
            raise LedgerError(f"group {batch} decodes, and its last tokens have not come back")
        received = None if self._first else self._open_hidden(step, batch, uids, 1 + work.ahead)
        due = self._due(step, work, received)
        if due is None:
            self._lookahead.drop_decode(batch)
        if work.ahead and not self._loaded.trimmable:
            raise LedgerError(f"group {work.group} reads ahead, and its caches cannot be cut")
        self._caches.reads(work)
        take, build = self._lookahead.take_decode, self._forward.build_decode
        built = None if due is None else take(due, build)
        pending_answer = self._forward.decode(step, work, received, built)
        if due is not None:
            self._lookahead.decode_issued(due, step.n, built)
        if self._ledger.length(uids[0]) % _EVALUATE_EVERY == 0:
            self._caches.evaluate(batch)
        return pending_answer

    def _due(self, step: Step, work: Decode, received: Received | None) -> Due | None:
        """The decode of *step*, if such a one can be built ahead."""
        batch, tokens, given = work.group, 1 + work.ahead, received[0] if received else None
        plain = tokens == 1 and not (work.on_guess and self._first)
        # Only where steps read guesses ahead, for which the arithmetic need not be the same.
        unplaced = self._places_late and max(tokens, self._lookahead.steadiness.most_tokens) > 1
        unplaced = unplaced and are_plain(self._caches.batch(batch))
        if unplaced and self._first:
            given = self._forward.ids_of(step, work)
        unplaced = unplaced and given is not None
        if not self.builds_ahead or not (plain or unplaced):
            return None
        place = self._ledger.length(self._ledger.groups[batch][0]) - tokens
        return Due(batch, tokens, given, plain, unplaced, place, work.guessed > 0)

    def _close(self, done: StepDone) -> PendingAnswer:
        scoring = self._forward.awaiting_scores.pop(done.n, None)
        if scoring is not None:
            uids = (scoring.row.uid,)
            received = self._open_hidden(done, PREFILL_GROUP, uids, len(scoring.targets))
            self._lookahead.take_closing(done.n, received[0])  # none, but the device waits no more
            self._clear_due = True
            return self._forward.close_scores(done, scoring, received)
        state = self._forward.awaiting_logits.pop(done.n, None)
        if state is None:
            raise LedgerError(f"hidden states of step {done.n} came back, and none are away")
        received = self._open_hidden(done, state.batch, state.uids, 1 + len(state.guesses))
        built = self._lookahead.take_closing(done.n, received[0], 1 + len(state.guesses))
        return self._forward.close(done, state, received, built)

    def _open_hidden(
        self, message: Step | StepDone, batch: int, uids: tuple[int, ...], tokens: int
    ) -> Received:
        """The hidden states in *message*, of *tokens* tokens of each row, or as opened early."""
        early, self._early_fill = self._early_fill, None
        if early is not None and early.message is message:
            return early.contents
        return self._hidden_io.open(message, batch, uids, tokens)

    # ---------------------------------------------------------------- look-ahead

    def fill_early(self, message: Step | StepDone) -> None:
        """If the device waits for the hidden states in *message*, give it them now. The rest is
        done when the message has its turn; so is an error.

        For any thread. Everything that came before *message* must be done, and no other thread may
        call anything here but `work_ahead` meanwhile.
        """
        with contextlib.suppress(SealringError, *FORWARD_ERRORS):
            held = self._lookahead.waits_for(message, self._next_step)
            if held is None:
                return
            opened = self._activation_seal.opening_ns
            rows = self._ledger.groups.get(held.batch, ())
            contents = self._hidden_io.open(message, held.batch, rows, held.tokens)
            opening, begun = self._activation_seal.opening_ns - opened, time.perf_counter_ns()
            in_time = self._lookahead.fill_early(held, contents[0])
            self._early_fill = EarlyFill(message, contents, begun if in_time else None, opening)

    def work_ahead(self) -> bool:
        """Make masks, or launch or build one graph ahead (see `lookahead`); False if there is none.
        For when there is nothing else to do."""
        if self._failure is not None:
            return False
        try:
            masked = self._lookahead.held is None and self._forward.make_masks()
            if masked or not self.builds_ahead:
                return masked
            if self._clear_due:
                self._clear_mlx_cache()
            awaiting = self._forward.awaiting_logits
            if self.launches_ahead and self._lookahead.launch(self._answered_to, awaiting):
                return True
        except (SealringError, *FORWARD_ERRORS) as error:
            self._fail(error)
            return False
        return self._build_ahead()

    def _build_ahead(self) -> bool:
        """Build one graph ahead; False if there is none. Another thread calls this while the
        compute thread launches."""
        forward = self._forward
        closing, decode = forward.build_closing, forward.build_decode
        try:
            return self._lookahead.build(forward.awaiting_logits, closing, decode)
        except (SealringError, *FORWARD_ERRORS):
            return False  # the step itself fails with this error, if it occurs again


@attrs.frozen(eq=False)
class EarlyFill:
    """The *contents* of *message*, opened, that a device which waits was given before the message
    had its turn (see `lookahead`).

    *begun* is when, in nanoseconds of `time.perf_counter_ns`; None if that was too late. Opening
    them took *opening* nanoseconds.
    """

    message: Step | StepDone
    contents: tuple[Buffer, ...]
    begun: int | None
    opening: int
