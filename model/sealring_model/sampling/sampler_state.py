"""Rank 0's sampling: which tokens a decode reads, and which tokens come out.

A decode's `SamplerState` is made when the decode is launched, and sampled from once there are
logits: at once on a single rank, in a pipeline when the hidden states have come back. Rows may
leave in between, or come back under their old number, so the state holds all that sampling needs.
`Sampler.end` builds a graph only; the caller launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs, RowOver
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.scheduler.guesses import right_ones

from sealring_model.sampling.constraints import Constraint, Constraints, Masks
from sealring_model.sampling.logit_processors import LogitProcessor, LogitProcessors
from sealring_model.sampling.rows import LastTokens, RowParams
from sealring_model.sampling.sampler import sample
from sealring_model.sampling.scores import LogprobArrays, logprobs_of
from sealring_model.stage.device_io import DeviceIO, Outlet


@attrs.define(eq=False)
class SamplerState:
    """What sampling needs for one decode of *batch*: its rows in order, the positions of their new
    tokens, and the processor of their logits.

    A decode on a guess begins before the token that it reads is drawn, by the decode *before*. Its
    processor follows the one *after* that.

    A decode that reads *guesses* ahead, after its first token, has one row. A token is drawn for
    the place of each of these guesses, and one more. *positions* has that of the first.

    If some of the rows have *constraints*, it is sampled with *masks*, which cannot be made before
    the tokens before are known here.
    """

    batch: int
    uids: tuple[int, ...]
    rows: tuple[Row, ...]
    positions: tuple[int, ...]
    processor: LogitProcessor | None
    before: SamplerState | None = None
    after: LogitProcessor | None = None
    on_guess: bool = False
    guesses: tuple[int, ...] = ()
    constraints: tuple[Constraint | None, ...] = ()
    masks: Masks | None = None

    @property
    def lacks_masks(self) -> bool:
        """Whether masks are still to be made."""
        return self.masks is None and any(self.constraints)

    @property
    def is_sure(self) -> bool:
        """Whether all is known of how it is sampled, and it is sure to be."""
        return not (self.on_guess or self.lacks_masks)


@attrs.frozen(eq=False)
class SampledTokens:
    """What was sampled: *tokens*, uint32, one for each row, and their log probabilities. If
    *guesses* were read ahead, one for the place of each, and one more.

    Both are for the answer alone, as the next decode reads an array of its own, *last*. *changed*
    is what the next sampling starts from, to be evaluated with them. Rows that are *over* are those
    of `Masks`. *followed* has the constraints that follow the tokens, and what reads those.
    """

    tokens: Outlet
    last: mx.array
    logprobs: LogprobArrays | None
    changed: tuple[mx.array, ...]
    guesses: tuple[int, ...] = ()
    over: tuple[tuple[int, int, str], ...] = ()
    followed: tuple[tuple[Constraint, Callable[[], Sequence[int]]], ...] = ()

    def come_true(self) -> None:
        """They are what was drawn, so the constraints of their rows follow them. What was built
        ahead, and then dropped, is not."""
        for constraint, read in self.followed:
            constraint.drawn(read)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays that the answer waits for."""
        return (self.tokens.ready, *(self.logprobs.arrays if self.logprobs else ()))

    def ids(self) -> tuple[int, ...]:
        """The tokens, which must have been computed, up to the first that is not the guess in its
        place."""
        tokens = tuple(self.tokens.data().cast("I"))
        return tokens[: 1 + right_ones(self.guesses, tokens)] if self.guesses else tokens

    def messages(self, n: int) -> tuple[Logprobs | RowOver, ...]:
        """The LOGPROBS and ROW_OVER messages that go before the answer to step *n*."""
        told: tuple[Logprobs | RowOver, ...] = self.logprobs.messages(n) if self.logprobs else ()
        if not self.over:
            return told
        places = len(self.ids()) if self.guesses else 1
        return told + tuple(RowOver(n, uid, why) for uid, at, why in self.over if at < places)


class Sampler:
    """Samples the tokens of every batch. Each sampling of a batch follows the one before."""

    def __init__(self, params: RowParams, vocabulary: int, device_io: DeviceIO) -> None:
        self._device_io: Final = device_io
        self._params: Final = params
        self._last: Final = LastTokens()
        self._processors: Final = LogitProcessors(vocabulary)
        self._begun: Final[dict[int, SamplerState]] = {}  # by batch, the last
        self._constraints: Final = Constraints(vocabulary, params.matchers)

    def give(self, uid: int, token: int) -> None:
        """Row *uid* joins with *token* as its last."""
        self._last.give(uid, token)

    def forget(self, uids: Iterable[int]) -> None:
        """Rows *uids* are gone."""
        for uid in uids:
            self._last.forget(uid)
            self._constraints.forget(uid)

    def forget_batch(self, batch: int) -> None:
        """*batch* is empty."""
        self._last.forget_batch(batch)
        self._processors.forget_batch(batch)
        self._begun.pop(batch, None)

    def inputs(self, batch: int, uids: tuple[int, ...]) -> mx.array:
        """What a decode of *batch* reads: the last tokens of *uids*, uint32 ``(rows,)``."""
        return self._last.take(batch, uids)

    def answered(self, batch: int, sampled: SampledTokens, ids: Sequence[int]) -> None:
        """What was *sampled* for *batch* was answered with *ids*. For the thread that answers."""
        self._last.answered(batch, sampled.last, ids[-1])

    def last_id(self, batch: int, uids: tuple[int, ...]) -> int | None:
        """The last token of *uids*, which is one row, if it was drawn and answered here."""
        return self._last.known(batch, uids)

    def begin(
        self,
        batch: int,
        uids: tuple[int, ...],
        positions: tuple[int, ...],
        guesses: tuple[int, ...] = (),
        *,
        on_guess: bool = False,
    ) -> SamplerState:
        """The state that the decode of *batch* is sampled with; *positions* are those of the new
        tokens, the first one's where *guesses* are read ahead."""
        rows = self._params.get(uids)
        constraints = self._constraints.begin(rows)
        processor = None if on_guess else self._processors.take(batch, rows)
        before = self._begun.get(batch) if on_guess else None
        state = SamplerState(
            batch,
            uids,
            rows,
            positions,
            processor,
            before,
            on_guess=on_guess,
            guesses=guesses,
            constraints=constraints,
        )
        self._begun[batch] = state
        return state

    def make_masks(self, state: SamplerState) -> None:
        """Make the masks that *state* lacks; the decode before must have been sampled. Waits for
        its tokens."""
        state.masks = self._constraints.masks(state.constraints, state.positions, state.guesses)

    def end(self, state: SamplerState, logits: mx.array) -> SampledTokens:
        """Sample from *logits* ``(rows, vocabulary)``; builds a graph and launches nothing. *state*
        must not lack masks."""
        before, state.before = state.before, None
        processor = state.processor
        if before is not None:  # rows may have left in between
            processor = self._processors.following(before.after, state.rows)
        if state.guesses:
            return self._end_ahead(state, processor, logits)
        adjusted = logits if processor is None else processor.apply(logits)
        tokens = sample(_masked(adjusted, state), state.rows, state.positions)
        after = None if processor is None else processor.after(tokens)
        logprobs = logprobs_of(logits, state.rows, tokens)
        return self._ended(state, tokens, tokens, after, logprobs)

    def _end_ahead(
        self, state: SamplerState, processor: LogitProcessor | None, logits: mx.array
    ) -> SampledTokens:
        """Sample the tokens of one row from *logits* ``(1 + guesses, vocabulary)``.

        Each is drawn as if the guesses before it were right. The next decode reads the last one
        that was drawn before, or in place of, the first wrong guess.
        """
        (first,) = state.positions
        places, guesses = len(state.guesses) + 1, mx.array(state.guesses, mx.uint32)
        adjusted = logits
        if processor is not None:
            adjusted = processor.apply_ahead(logits, guesses)
        positions = range(first, first + places)
        tokens = sample(_masked(adjusted, state), state.rows * places, positions)
        right = mx.cumprod((tokens[:-1] == guesses).astype(mx.int32)).sum(keepdims=True)
        after = None if processor is None else processor.after_ahead(tokens, right)
        # Not by an index: CUDA would have to compile that, when the first guesses come.
        last = mx.where(mx.arange(places) == right, tokens, 0).sum(keepdims=True)
        return self._ended(state, tokens, last, after, None)

    def _ended(
        self,
        state: SamplerState,
        tokens: mx.array,
        last: mx.array,
        after: LogitProcessor | None,
        logprobs: LogprobArrays | None,
    ) -> SampledTokens:
        """What was sampled. Nothing can fail any more: from now on the next sampling follows this
        one, which drew *last*."""
        changed = () if after is None else after.arrays
        over = () if state.masks is None else state.masks.over
        following = [(at, one) for at, one in enumerate(state.constraints) if one and one.follows]
        followed = []
        if following:
            outlet = self._device_io.outlet(tokens)  # for this thread to read
            changed = (*changed, outlet.ready)
            read = partial(_drawn, outlet, guesses=state.guesses)
            followed = [(constraint, partial(read, at)) for at, constraint in following]
        answered = self._device_io.outlet(tokens)
        sampled = SampledTokens(
            answered, last, logprobs, changed, state.guesses, over, tuple(followed)
        )
        self._last.sampled(state.batch, state.uids, last)
        state.after = after
        if after is not None:
            self._processors.put(state.batch, after)
        return sampled


def _drawn(tokens: Outlet, row: int, guesses: tuple[int, ...]) -> tuple[int, ...]:
    """The *tokens* that were drawn for a *row*, of which there is one if *guesses* were read. Waits
    for the device."""
    mx.eval(tokens.ready)
    ids = tuple(tokens.data().cast("I"))
    return ids[: 1 + right_ones(guesses, ids)] if guesses else ids[row : row + 1]


def _masked(logits: mx.array, state: SamplerState) -> mx.array:
    return logits if state.masks is None else state.masks.apply(logits)
