"""Carrying out steps on one rank: ledger, caches, forward, answer.

A step is *in_flight* and later *finished*. Launching applies it to the ledger and the caches,
builds the graph and hands it to the device; finishing waits for the result and makes the answer.
So the device works while the next graph is built; a single rank decodes from the token that is
still on the device, and the next step can be launched before the last one's token has been read.
One thread launches, and another may finish, in the order of launching (see `answers`).

What a rank makes of a step depends on its place alone:

| place | input of its layers | answer |
| --- | --- | --- |
| only rank | token ids | STEP_DONE with sampled ids |
| rank 0 of more | token ids | STEP with hidden states; later STEP_DONE with ids, see `close` |
| between | hidden states | STEP with hidden states |
| last rank | hidden states | STEP_DONE with hidden states, of a decode |

The first failure ends the epoch for this rank: its caches may be half changed, so every later
step of the epoch is answered with the same failure.

Members of a group (see `batch`) each carry out the same steps. MLX matches their collectives by
order alone, so whatever leads to one is launched by the compute thread, in the order of steps, as
the same graph on every member: nothing here may depend on time, on memory or on the member before
that. What does (room, caches given back) comes before the graph and refuses the step, or launches
nothing; and what was built ahead is what would be built now. So one member may fail alone, and
tells; the others wait for it until they are ended.
"""

from __future__ import annotations

import contextlib
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

from sealring_model.engine.activation_seal import ActivationSeal
from sealring_model.engine.hidden_io import HiddenIO, check_filled
from sealring_model.engine.inflight import Clock, InFlight, PendingAnswer
from sealring_model.errors import (
    FORWARD_ERRORS,
    CacheMemoryError,
    LedgerError,
    failure_of,
)
from sealring_model.loading.assemble import LoadedStage
from sealring_model.lookahead.device_io import DeviceIO, Inlet
from sealring_model.lookahead.lookahead import BuiltDecode, Lookahead
from sealring_model.sampling.rows import RowParams
from sealring_model.sampling.sampler_state import Sampled, Sampler, SamplerState
from sealring_model.stage.caches import CacheStore, arrays

M = TypeVar("M", Step, StepDone)


@attrs.frozen(eq=False)
class _EarlyFill:
    """*message*, whose *contents* the device was told before its turn; *begun*, if that was in
    time, and *opening* are as in `InFlight`."""

    message: Step | StepDone
    contents: Buffer
    begun: int | None
    opening: int


_CLEAR_EVERY: Final = 256
"""Steps after which MLX gives back the memory that it keeps for arrays of sizes seen before. As
rows grow, sizes do not come again, and it would keep more with every token."""

_EVALUATE_EVERY: Final = 64
"""Decodes of a group between two that evaluate all of its caches' state: a layer without rotary
positions never looks at its cache's offsets."""


class Executor:
    """One rank in one epoch. Nothing that a step or a model does wrong is raised: it is answered
    with a `Failure`."""

    def __init__(
        self,
        loaded: LoadedStage,
        place: Bootstrap,
        params: RowParams,
        activation_seal: ActivationSeal,
        limit: int,
        *,
        device_io: DeviceIO,
        reports_logprobs: bool = True,
    ) -> None:
        self._loaded: Final = loaded
        self._stage: Final = loaded.stage
        self._place: Final = place
        self._first: Final = place.rank == 0
        self._last: Final = place.rank == place.world - 1
        self._params: Final = params
        self._device_io: Final = device_io
        self._hidden_io: Final = HiddenIO(
            place, loaded.dtype, loaded.hidden, activation_seal, device_io
        )
        self._sampler: Final = Sampler(params, loaded.vocabulary, device_io)
        self._activation_seal: Final = activation_seal
        self._limit: Final = limit
        self._reports_logprobs: Final = reports_logprobs
        self._ledger: Final = Ledger()
        self._caches: Final = CacheStore(loaded.stage, self._ledger)
        self._awaiting_logits: Final[dict[int, SamplerState]] = {}
        self._lookahead: Final = Lookahead(
            self._caches, device_io, self._build, launches_ahead=self.launches_ahead
        )
        self._early_fill: _EarlyFill | None = None
        self._clear_due = False
        self._next_step = 1
        self._finished = 0
        self._answered_to = 0
        self._failure: Failure | None = None
        self._device_failure: Failure | None = None
        self.compute_us = 0

    @property
    def builds_ahead(self) -> bool:
        """Whether `work_ahead` may ever have something to do."""
        return self._place.world > 1 and self._loaded.blind

    @property
    def launches_ahead(self) -> bool:
        """Whether it may launch something, and so has something to do while the device works."""
        return self.builds_ahead and self._device_io.device_waits and self._loaded.trimmable

    @property
    def device_waits(self) -> bool:
        """Whether the device waits for hidden states, and does nothing else until they come."""
        return self._lookahead.held is not None

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

    def launch(self, step: Step, arrived: int = 0) -> InFlight:
        """Apply *step*, that came at *arrived* or just now, and set the device to work on it."""
        return self._timed(step, self._launch, arrived)

    def close(self, done: StepDone, arrived: int = 0) -> InFlight:
        """Rank 0 of several: norm, head and sampling over what came back from the last rank."""
        return self._timed(done, self._close, arrived)

    def finish(self, in_flight: InFlight) -> Step | StepDone:
        """Wait for *in_flight* and give its answer."""
        if self._device_failure is None:
            try:
                mx.eval(*in_flight.pending_answer.arrays)
                if isinstance(in_flight.message, Step):
                    self._answered_to = in_flight.message.n
                return in_flight.pending_answer.answer(self._clock(in_flight))
            except (SealringError, *FORWARD_ERRORS) as error:
                # Nothing of this epoch is waited for again: a collective that has lost a member
                # says so once or twice, and then never comes back.
                self._device_failure = self._failure = self._failure or failure_of(
                    error, self._place.rank
                )
        return self._hidden_io.forward_failure(in_flight.message, self._device_failure)

    def _clock(self, in_flight: InFlight) -> Clock:
        """The clock of *in_flight*, whose arrays are there; sealing them is still to come."""
        now, sealing = time.perf_counter_ns(), self._activation_seal.sealing_ns - in_flight.opening
        begun = max(in_flight.begun, self._finished)
        self._finished = now
        compute = (now - begun) // 1000
        self.compute_us += compute
        wait = max(0, begun - in_flight.arrived - in_flight.opening) // 1000
        return lambda: Spent(compute, wait, (self._activation_seal.sealing_ns - sealing) // 1000)

    def _timed(self, message: M, do: Callable[[M], PendingAnswer], arrived: int) -> InFlight:
        told, started, opened = (
            self._early_fill,
            time.perf_counter_ns(),
            self._activation_seal.opening_ns,
        )
        pending_answer = self._attempt(message, do)
        if told is not None and told.message is message:
            begun = told.begun or started
            return InFlight(message, pending_answer, arrived or begun, begun, told.opening)
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
        self._failure = failure = failure_of(error, self._place.rank)
        return failure

    def end(self) -> None:
        """There will be no more steps: the device waits for nothing."""
        self._lookahead.end()

    # --------------------------------------------------------------- the steps

    def _launch(self, step: Step) -> PendingAnswer:
        self._check_ids(step)
        change = self._apply(step)
        self._check_memory(step, change)
        self._lookahead.ledger_changes(
            change, step.work.group if isinstance(step.work, Decode) else None
        )
        self._caches.apply(change)
        self._update_rows(step, change)
        match step.work:
            case Decode(batch):
                return self._decode(step, batch)
            case Prefill(uid, _, count):
                return self._prefill(step, uid, count)
            case NoWork():
                return PendingAnswer((), lambda clock: self._hidden_io.forward(step, clock))

    def _check_ids(self, step: Step) -> None:
        count = step.work.count if isinstance(step.work, Prefill) else 0
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
        """Refuse what would surely not fit."""
        needed = self._caches.bytes_needed(step, change, self._loaded.cost)
        if needed and mx.get_active_memory() + needed > self._limit:
            raise CacheMemoryError(
                f"step {step.n} needs {needed >> 20} MiB more for caches; "
                f"{mx.get_active_memory() >> 20} of {self._limit >> 20} MiB are in use"
            )

    def _update_rows(self, step: Step, change: Change) -> None:
        gone = (*step.evict, *change.dropped_rows)
        self._params.opened(row.uid for row in step.open)
        self._sampler.forget(gone)
        for uid in {*gone} - {row.uid for row in step.open}:
            self._params.forget(uid)
        for batch in change.regroup:
            if not self._ledger.rows(batch):
                self._sampler.forget_batch(batch)
        if self._first:
            for join, token in zip(step.join, step.ids, strict=False):
                self._sampler.give(join.uid, token)
        idle = (gone or change.dropped_snaps) and not self.live_rows
        if idle or isinstance(step.work, Prefill) or step.n % _CLEAR_EVERY == 0:
            self._clear_due = True
        self._clear_mlx_cache()

    def _clear_mlx_cache(self) -> None:
        """Give memory back that is due to be, unless that would be to wait for a device that
        waits."""
        if self._clear_due and not self.device_waits:
            self._clear_due = False
            mx.clear_cache()

    def _decode(self, step: Step, batch: int) -> PendingAnswer:
        uids = self._ledger.rows(batch)
        if any(state.batch == batch for state in self._awaiting_logits.values()):
            raise LedgerError(f"group {batch} decodes, and its last tokens have not come back")
        came = None if self._first else self._open_hidden(step, batch, uids)
        built = self._lookahead.take_decode(batch, came, self._build_decode)
        pending_answer = self._decoded(step, batch, came, built)
        if self._ledger.length(uids[0]) % _EVALUATE_EVERY == 0:
            self._caches.evaluate(batch)
        return pending_answer

    def _tokens(self, batch: int) -> mx.array:
        return self._sampler.inputs(batch, self._ledger.rows(batch))[:, None]

    def _decoded(
        self, step: Step, batch: int, came: Buffer | None, built: BuiltDecode | None
    ) -> PendingAnswer:
        uids = self._ledger.rows(batch)
        shape = self._hidden_io.hidden_shape(len(uids))
        if built is None:
            inputs = self._tokens(batch) if came is None else self._hidden_io.to_array(shape, came)
            outputs = self._stage.run(inputs, self._caches.batch(batch))
        if self._first:
            positions = tuple(self._ledger.length(uid) for uid in uids)
            state = self._sampler.begin(batch, uids, positions)
            if self._last:
                return self._start_sampling(
                    step, self._sampler.end(state, self._stage.logits(outputs))
                )
            self._awaiting_logits[step.n] = state
        self._lookahead.decode_issued(batch, step.n)
        context = self._hidden_io.outgoing_context(step.n, batch, uids)
        if built is None:
            return self._hidden_io.start_and_send(step, context, outputs)
        return self._hidden_io.send_when_done(step, context, shape, built.outlet, built.inlet)

    def _prefill(self, step: Step, uid: int, count: int) -> PendingAnswer:
        if self._first:
            inputs = mx.array(step.ids[len(step.join) :], mx.uint32)[None]
        else:
            came = self._hidden_io.open(step, PREFILL_GROUP, (uid,), count)
            inputs = self._hidden_io.to_array(self._hidden_io.hidden_shape(1, count), came)
        slots = self._caches.row(uid)
        outputs = self._stage.run(inputs, slots)
        self._caches.trim_windows(uid)
        # A small array that waits for the caches: to hold them themselves would have the next
        # chunk copy them.
        written = mx.depends([mx.array(0)], arrays(slots))
        if self._last:
            self._device_io.start(*written)
            return PendingAnswer(tuple(written), lambda clock: self._hidden_io.forward(step, clock))
        context = self._hidden_io.outgoing_context(step.n, PREFILL_GROUP, (uid,))
        return self._hidden_io.start_and_send(step, context, outputs, tuple(written))

    def _close(self, done: StepDone) -> PendingAnswer:
        state = self._awaiting_logits.pop(done.n, None)
        if state is None:
            raise LedgerError(f"hidden states of step {done.n} came back, and none are away")
        came = self._open_hidden(done, state.batch, state.uids)
        built = self._lookahead.take_closing(done.n, came)
        if built is not None:
            return self._answer_sampled(done, built.sampled, built.inlet)
        shape = self._hidden_io.hidden_shape(len(state.uids))
        logits = self._stage.logits(self._hidden_io.to_array(shape, came))
        return self._start_sampling(done, self._sampler.end(state, logits))

    # ---------------------------------------------------------------- done ahead

    def fill_early(self, message: Step | StepDone) -> None:
        """If *message* is what the device waits for, tell the device now. All else is done when its
        turn comes.

        For any thread, once all that came before *message* is done, and while no other thread does
        anything here but `work_ahead`.
        """
        with contextlib.suppress(SealringError, *FORWARD_ERRORS):  # it fails again in its turn
            held = self._lookahead.waits_for(message, self._next_step)
            if held is None or held.inlet is None:
                return
            opened = self._activation_seal.opening_ns
            contents = self._hidden_io.open(message, held.batch, self._ledger.rows(held.batch))
            opening, begun = self._activation_seal.opening_ns - opened, time.perf_counter_ns()
            in_time = held.inlet.fill(contents)
            self._early_fill = _EarlyFill(message, contents, begun if in_time else None, opening)

    def _open_hidden(self, message: Step | StepDone, batch: int, uids: tuple[int, ...]) -> Buffer:
        """The hidden states of *message*."""
        told, self._early_fill = self._early_fill, None
        if told is not None and told.message is message:
            return told.contents
        return self._hidden_io.open(message, batch, uids)

    def work_ahead(self) -> bool:
        """Do, on a rank of several, a part of what is to come (see `lookahead`); whether there was
        any. For when there is nothing else to do."""
        if self._failure is not None or not self.builds_ahead:
            return False
        try:
            self._clear_mlx_cache()
            if self._lookahead.launch(self._answered_to):
                return True
        except (SealringError, *FORWARD_ERRORS) as error:
            self._fail(error)
            return False
        return self._build()

    def _build(self) -> bool:
        """Build one thing that is to come; in a thread of its own while another is launched."""
        try:
            return self._lookahead.build(
                self._awaiting_logits, self._build_closing, self._build_decode
            )
        except (SealringError, *FORWARD_ERRORS):
            return False  # the step itself tells what is wrong, if it is still wrong then

    def _build_decode(self, batch: int) -> BuiltDecode:
        slots = self._caches.fork(batch)
        inlet = gate = None
        if self._first:
            inputs = self._tokens(batch)
            if self.launches_ahead:
                gate = self._device_io.inlet(self._loaded.dtype, (1, 1, 1))
                inputs = mx.depends(inputs, gate.array)
        else:
            inlet = self._hidden_io.inlet(len(self._ledger.rows(batch)))
            inputs = inlet.array
        outlet = self._device_io.outlet(self._stage.run(inputs, slots))
        return BuiltDecode(batch, inlet, gate, slots, outlet)

    def _build_closing(self, state: SamplerState) -> tuple[Inlet, Sampled]:
        inlet = self._hidden_io.inlet(len(state.uids))
        return inlet, self._sampler.end(state, self._stage.logits(inlet.array))

    # ------------------------------------------------------------------ sampled

    def _start_sampling(self, message: Step | StepDone, sampled: Sampled) -> PendingAnswer:
        self._device_io.start(*sampled.arrays, *sampled.changed)
        return self._answer_sampled(message, sampled, None)

    def _answer_sampled(
        self, message: Step | StepDone, sampled: Sampled, inlet: Inlet | None
    ) -> PendingAnswer:
        """What *sampled*, that was launched behind *inlet*, is answered with."""

        def answer(clock: Clock) -> StepDone:
            check_filled(inlet)
            return StepDone(
                message.epoch, message.n, sampled.ids(), spent=(*message.spent, clock())
            )

        # Members of a group all compute what one of them tells, for their graphs to be the same.
        told = (lambda: sampled.messages(message.n)) if self._reports_logprobs else tuple
        return PendingAnswer(sampled.arrays, answer, told)
