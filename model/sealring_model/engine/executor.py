"""Carries out steps on one rank: ledger, caches, forward, answer.

A step is *launched* and later *finished*. To launch it is to apply it to the ledger and the caches,
build its graph and hand that to the device. To finish it is to wait for the result and make the
answer. So the device works while the next graph is built. A single rank decodes from a token that
is still on the device, and launches the next step before it has read the last one's token. One
thread launches; another may finish, in the order of launching (see `answers`).

`Forward` has the graphs, and what each is answered with. What a rank computes depends on its place
alone:

| place | input of its layers | answer |
| --- | --- | --- |
| only rank | token ids | STEP_DONE with sampled ids |
| rank 0 of more | token ids | STEP with hidden states; after the closing pass STEP_DONE with ids |
| between | hidden states | STEP with hidden states |
| last rank | hidden states | STEP_DONE, with hidden states if it decodes or scores |

Of a prefill that is scored rank 0 also sends the scores (`sampling/scores.py`), before STEP_DONE.

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
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Scores
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
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.epoch.ledger import Change, Ledger
from sealring_protocol.errors import SealringError
from sealring_protocol.security.seal import PREFILL_GROUP

from sealring_model.engine.fingerprints import Fingerprints, of_hop, of_logits
from sealring_model.engine.hidden_io import (
    Clock,
    HiddenIO,
    InFlight,
    PendingAnswer,
    PlainActivations,
    Received,
    check_filled,
)
from sealring_model.errors import FORWARD_ERRORS, CacheMemoryError, LedgerError, failure_of
from sealring_model.loading.assemble import LoadedStage
from sealring_model.lookahead import (
    BuiltClosing,
    BuiltDecode,
    Due,
    Lookahead,
    Unplaced,
    are_plain,
    can_run_unplaced,
    make_room,
    run_unplaced,
    unplaced_inlet,
)
from sealring_model.machine import drop_unloadable
from sealring_model.sampling.rows import RowParams, SampledTokens, Sampler, SamplerState
from sealring_model.sampling.scores import ScoreArrays, Scoring
from sealring_model.stage.caches import CacheStore, arrays
from sealring_model.stage.device import DTYPES, DeviceIO, Inlet


class Forward:
    """Forwards of one rank in one epoch. With *gates* a decode that rank 0 builds ahead has a gate
    (see `lookahead`); with *reports_logprobs* answers come with the log probabilities that rows ask
    for.

    Call these methods from the compute thread, in the order of the steps, once the ledger and the
    caches have changed as the step says. The exceptions are `build_decode` and `build_closing`,
    which build a graph ahead and launch nothing (see `lookahead`)."""

    def __init__(
        self,
        loaded: LoadedStage,
        place: Bootstrap,
        ledger: Ledger,
        caches: CacheStore,
        hidden_io: HiddenIO,
        params: RowParams,
        sampler: Sampler,
        device_io: DeviceIO,
        *,
        gates: bool,
        reports_logprobs: bool,
    ) -> None:
        self._stage: Final = loaded.stage
        self._dtype: Final = loaded.dtype
        self._vocabulary: Final = loaded.vocabulary
        self._first: Final = place.rank == 0
        self._whole: Final = place.world == 1
        self._checked: Final = place.checked
        self._last: Final = place.rank == place.world - 1
        self._ledger: Final = ledger
        self._caches: Final = caches
        self._hidden_io: Final = hidden_io
        self._params: Final = params
        self._sampler: Final = sampler
        self._device_io: Final = device_io
        self._gates: Final = gates
        self._reports_logprobs: Final = reports_logprobs
        self.awaiting_logits: Final[dict[int, SamplerState]] = {}
        """On rank 0 of several: the decodes whose hidden states are on their way round the ring, by
        step."""
        self.awaiting_scores: Final[dict[int, Scoring]] = {}
        """The same of the prefills that are scored."""

    # ------------------------------------------------------------- steps, launched

    def prefill(self, step: Step, work: Prefill) -> PendingAnswer:
        """Launch the prefill of *step*, which is *work*."""
        uid, count = work.uid, work.count
        ids = step.ids[len(step.join) :]
        if work.scored and self._first:
            (row,) = self._params.get([uid])
            scoring = Scoring(row, work.position + 1, ids[1:], self._vocabulary)
            if self._whole:
                return self._prefill_and_score(step, scoring, ids)
            self.awaiting_scores[step.n] = scoring
        if self._first:
            inputs = [mx.array(ids[:count], mx.uint32)[None]]
        else:
            received = self._hidden_io.open(step, PREFILL_GROUP, (uid,), count)
            inputs = self._hidden_io.to_arrays(step, received, 1, count)
        slots = self._caches.row(uid)
        outputs = self._stage.run(inputs, slots)
        self._caches.trim_windows(uid)
        # A small array that depends on the caches. To hold the caches' own arrays would make the
        # next chunk copy them.
        written = mx.depends([mx.array(0)], arrays(slots))
        prints = self._fingerprints(step, 1, count, inputs, outputs)
        launched = (*written, *(prints.arrays if prints else ()))
        if self._last and not work.scored:
            self._device_io.start(*launched)
            pending = PendingAnswer(launched, lambda clock: self._hidden_io.forward(step, clock))
        else:
            context = self._hidden_io.outgoing_context(step.n, PREFILL_GROUP, (uid,))
            pending = self._hidden_io.start_and_send(step, context, outputs, launched)
        return _prefaced(pending, prints)

    def _prefill_and_score(
        self, step: Step, scoring: Scoring, ids: tuple[int, ...]
    ) -> PendingAnswer:
        """Read *ids* but the last with the whole model, which gives logits: in slices of their
        own."""
        uid = scoring.row.uid
        slots = self._caches.row(uid)

        def logits_of(part: slice, after: tuple[mx.array, ...]) -> mx.array:
            inputs = mx.array(ids[part], mx.uint32)[None]
            outputs = self._stage.run([mx.depends(inputs, after) if after else inputs], slots)
            return self._stage.logits(outputs, inputs.size)

        scores = scoring.score(logits_of)
        self._caches.trim_windows(uid)
        written = mx.depends([mx.array(0)], arrays(slots))
        prints = self._fingerprints(step, 1, len(scoring.targets), (), ())
        launched = (*written, *scores.arrays, *(prints.arrays if prints else ()))
        self._device_io.start(*launched)
        return _prefaced(
            PendingAnswer(
                launched,
                lambda clock: self._hidden_io.forward(step, clock),
                self._preface(step.n, scores),
            ),
            prints,
        )

    def close_scores(self, done: StepDone, scoring: Scoring, received: Received) -> PendingAnswer:
        """Launch the closing pass of a prefill that is scored, on the *received* hidden states."""
        outputs = self._hidden_io.to_arrays(done, received, 1, len(scoring.targets))

        def logits_of(part: slice, after: tuple[mx.array, ...]) -> mx.array:
            some = self._stage.returned(outputs, part)
            return self._stage.logits(
                mx.depends(some, after) if after else some, part.stop - part.start
            )

        scores = scoring.score(logits_of)
        self._device_io.start(*scores.arrays)
        return PendingAnswer(
            scores.arrays,
            lambda clock: StepDone(done.epoch, done.n, spent=(*done.spent, clock())),
            self._preface(done.n, scores),
        )

    def _preface(self, n: int, scores: ScoreArrays) -> Callable[[], tuple[Scores, ...]]:
        return (lambda: scores.messages(n)) if self._reports_logprobs else tuple

    def _fingerprints(
        self,
        step: Step,
        rows: int,
        tokens: int,
        inputs: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Fingerprints | None:
        """Those of a pass of this rank's layers; None unless the epoch is checked."""
        if not self._checked:
            return None
        received = None if self._first else of_hop(self._stage.hop_in, inputs)
        if not self._whole:
            given = of_hop(self._stage.hop_out, outputs)
        elif isinstance(step.work, Decode):
            given = of_logits(outputs[0][:, -1, :])
        else:  # nobody asks for these logits, and they are large
            given = None
        return Fingerprints(step.epoch, step.n, rows, tokens, received, given)

    def decode(
        self, step: Step, work: Decode, received: Received | None, built: BuiltDecode | None
    ) -> PendingAnswer:
        """Launch *work*, which *step* has, on the *received* hidden states, which rank 0 has not;
        or answer *built*, which was launched ahead."""
        batch, ahead = work.group, work.ahead
        uids = self._ledger.groups[batch]
        prints = None
        if built is None:
            if received is None:
                inputs = [self._tokens(step, work)]
            else:
                inputs = self._hidden_io.to_arrays(step, received, len(uids), 1 + ahead)
            outputs = self._stage.run(inputs, self._caches.batch(batch))
            prints = self._fingerprints(step, len(uids), 1 + ahead, inputs, outputs)
        if self._first:
            positions = tuple([self._ledger.length(uid) - ahead for uid in uids])
            guesses = step.ids[len(step.ids) - ahead :]
            state = self._sampler.begin(batch, uids, positions, guesses, on_guess=work.on_guess)
            if self._last:
                return self._sample(step, state, outputs, prints)
            self.awaiting_logits[step.n] = state
        context = self._hidden_io.outgoing_context(step.n, batch, uids)
        if built is None:
            launched = prints.arrays if prints else ()
            pending = self._hidden_io.start_and_send(step, context, outputs, launched)
            return _prefaced(pending, prints)
        shapes = [tensor.spec.shape(len(uids), 1 + ahead) for tensor in self._stage.hop_out]
        return self._hidden_io.send_when_done(step, context, shapes, [built.outlet], built.inlet)

    def close(
        self, done: StepDone, state: SamplerState, received: Received, built: BuiltClosing | None
    ) -> PendingAnswer:
        """Launch the closing pass on the *received* hidden states, or answer *built*, which was
        launched ahead."""
        if built is not None:
            return self._answer(done, state, built.sampled, built.inlet, None)
        rows, tokens = len(state.uids), 1 + len(state.guesses)
        outputs = self._hidden_io.to_arrays(done, received, rows, tokens)
        return self._sample(done, state, outputs, None)

    def _tokens(self, step: Step, work: Decode) -> mx.array:
        if work.on_guess:
            return mx.array([step.ids[-1 - work.ahead :]], mx.uint32)
        last = self._sampled_last(work.group)
        if not work.ahead:
            return last
        return mx.concatenate([last, mx.array([step.ids[-work.ahead :]], mx.uint32)], axis=1)

    def _sampled_last(self, batch: int) -> mx.array:
        return self._sampler.inputs(batch, self._ledger.groups.get(batch, ()))[:, None]

    @property
    def lacks_masks(self) -> bool:
        """Whether `make_masks` has something to do."""
        return any(state.lacks_masks for state in self._next_closings())

    def make_masks(self) -> bool:
        """Make the masks of one closing pass that is to come; False if there is none. Waits for the
        tokens of the pass before it."""
        for state in self._next_closings():
            if state.lacks_masks:
                self._sampler.make_masks(state)
                return True
        return False

    def _next_closings(self) -> Iterable[SamplerState]:
        """Of each batch, the closing pass that comes next."""
        first: dict[int, SamplerState] = {}
        for state in tuple(self.awaiting_logits.values()):
            first.setdefault(state.batch, state)
        return first.values()

    def forget_wrong(self, uid: int, length: int) -> None:
        """Of row *uid* only *length* tokens are right: no tokens are drawn from what was computed
        on the others."""
        for n, state in list(self.awaiting_logits.items()):
            if state.uids == (uid,) and state.positions[0] > length:
                del self.awaiting_logits[n]

    # ----------------------------------------------------------- graphs built ahead

    def ids_of(self, step: Step, work: Decode) -> Buffer | None:
        """On rank 0: the ids that *step* reads, which is *work* and has one row, uint32; None if
        its first token is not known here."""
        ids = step.ids[len(step.ids) - work.guesses :]
        if not work.on_guess:
            last = self._sampler.last_id(work.group, self._ledger.groups[work.group])
            if last is None:
                return None
            ids = (last, *ids)
        return array("I", ids).tobytes()

    def build_decode(self, batch: int, tokens: int) -> BuiltDecode:
        """The graph of the next decode of *batch*, of *tokens* tokens of each row, if its rows stay
        as they are."""
        slots = self._caches.fork(batch)
        if tokens > 1:
            return self._build_unplaced(batch, tokens, slots)
        inlet = gate = None
        if self._first:
            inputs = self._sampled_last(batch)
            if self._gates:
                gate = self._device_io.inlet(self._dtype, (1, 1, 1))
                inputs = mx.depends(inputs, gate.array)
        else:
            rows = len(self._ledger.groups.get(batch, ()))
            inlet = self._hidden_io.inlet(self._stage.hop_in, rows)
            inputs = inlet.array
        (output,) = self._stage.run([inputs], slots)
        outlet = self._device_io.outlet(output)
        return BuiltDecode(batch, inlet, gate, slots, outlet)

    def _build_unplaced(self, batch: int, tokens: int, slots: list[Any]) -> BuiltDecode:
        """The same of several *tokens*, whose place in the row comes with them."""
        last_place, grew = make_room(slots, tokens)
        shape: tuple[int, ...]
        if self._first:
            dtype, shape = DType.U32, (1, tokens)
        else:
            (tensor,) = self._stage.hop_in
            dtype, shape = DTYPES[tensor.spec.dtype], tensor.spec.shape(1, tokens)
        inlet, given, distance = unplaced_inlet(self._device_io, dtype, shape)
        (output,) = run_unplaced(self._stage, [given], slots, last_place - distance)
        outlet = self._device_io.outlet(output)
        return BuiltDecode(batch, inlet, None, slots, outlet, Unplaced(tokens, last_place, grew))

    def build_closing(self, state: SamplerState) -> tuple[Inlet, SampledTokens]:
        """The graph of the closing pass of the decode that *state* is of."""
        tokens = 1 + len(state.guesses)
        inlet = self._hidden_io.inlet(self._stage.hop_back, len(state.uids), tokens)
        return inlet, self._sampler.end(state, self._stage.logits([inlet.array], tokens))

    # -------------------------------------------------------------------- sampling

    def _sample(
        self,
        message: Step | StepDone,
        state: SamplerState,
        outputs: Sequence[mx.array],
        prints: Fingerprints | None,
    ) -> PendingAnswer:
        logits = self._stage.logits(outputs, 1 + len(state.guesses))
        if state.lacks_masks:
            self._device_io.start(logits)  # the device works while they are made
            self._sampler.make_masks(state)
        sampled = self._sampler.end(state, logits)
        if self._checked and prints is None:  # the second pass
            received = of_hop(self._stage.hop_back, outputs)
            prints = Fingerprints(
                message.epoch,
                message.n,
                len(state.uids),
                1,
                received,
                of_logits(logits),
                closing=True,
            )
        launched = prints.arrays if prints else ()
        self._device_io.start(*sampled.arrays, *sampled.changed, *launched)
        return self._answer(message, state, sampled, None, prints)

    def _answer(
        self,
        message: Step | StepDone,
        state: SamplerState,
        sampled: SampledTokens,
        inlet: Inlet | None,
        prints: Fingerprints | None,
    ) -> PendingAnswer:
        """Answer *message* with what is *sampled* with *state*, on *inlet* if it was launched
        ahead."""

        sampled.come_true()

        def answer(clock: Clock) -> StepDone:
            check_filled(inlet)
            spent, ids = (*message.spent, clock()), sampled.ids()
            self._sampler.answered(state.batch, sampled, ids)
            return StepDone(message.epoch, message.n, ids, spent=spent)

        # All members of a collective compute what one of them reports: their graphs must be equal.
        logprobs = (lambda: sampled.messages(message.n)) if self._reports_logprobs else tuple
        return _prefaced(PendingAnswer(sampled.arrays, answer, logprobs), prints)


def _prefaced(pending: PendingAnswer, prints: Fingerprints | None) -> PendingAnswer:
    """*pending*, before which *prints* are sent, if there are any."""
    if prints is None:
        return pending
    before = pending.preface
    return attrs.evolve(
        pending,
        arrays=(*pending.arrays, *prints.arrays),
        preface=lambda: (*before(), *prints.messages()),
    )


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
            awaiting = self._forward.awaiting_logits
            masked = bool(awaiting) and self._lookahead.held is None and self._forward.make_masks()
            if masked or not self.builds_ahead:
                return masked
            if self._clear_due:
                self._clear_mlx_cache()
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
