"""The graphs of one rank's part of a step, and what each is answered with.

What a rank computes depends on its place alone:

| place | input of its layers | answer |
| --- | --- | --- |
| only rank | token ids | STEP_DONE with sampled ids |
| rank 0 of more | token ids | STEP with hidden states; after the closing pass STEP_DONE with ids |
| between | hidden states | STEP with hidden states |
| last rank | hidden states | STEP_DONE, with hidden states if it decodes or scores |

Of a prefill that is scored rank 0 also sends the scores (`sampling/scores.py`), before STEP_DONE.

Call these methods from the compute thread, in the order of the steps, once the ledger and the
caches have changed as the step says. The exceptions are `build_decode` and `build_closing`, which
build a graph ahead and launch nothing (see `lookahead`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.codec.messages import Bootstrap, Decode, Prefill, Step, StepDone
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.security.seal import PREFILL_GROUP

from sealring_model.engine.fingerprints import Fingerprints, of_hop, of_logits
from sealring_model.engine.hidden_io import Clock, HiddenIO, PendingAnswer, Received, check_filled
from sealring_model.loading.assemble import LoadedStage
from sealring_model.lookahead import (
    BuiltClosing,
    BuiltDecode,
    Unplaced,
    make_room,
    run_unplaced,
    unplaced_inlet,
)
from sealring_model.sampling.rows import RowParams, SampledTokens, Sampler, SamplerState
from sealring_model.sampling.scores import ScoreArrays, Scoring
from sealring_model.stage.caches import CacheStore, arrays
from sealring_model.stage.device import DeviceIO, Inlet, dtype_of


class Forward:
    """Forwards of one rank in one epoch. With *gates* a decode that rank 0 builds ahead has a gate
    (see `lookahead`); with *reports_logprobs* answers come with the log probabilities that rows ask
    for."""

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
        for state in self._next_closings() if self.awaiting_logits else ():
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
            dtype, shape = dtype_of(tensor.spec.dtype), tensor.spec.shape(1, tokens)
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
